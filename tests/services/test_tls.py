"""A store behind TLS whose certificate an authority of one's own has signed."""

import os
import subprocess
from pathlib import Path

import pytest

from m5ws.errors import M5Error, UsageError
from m5ws.store import open_store
from m5ws.store.interface import ObjectStore, RegionAware
from m5ws.store.s3.clients import Connection
from m5ws.store.s3.errors import StoreUnreachable
from tests.support.s3.ceph import Ceph
from tests.support.s3.s3_client import REGION, connect, fresh_bucket

pytestmark = pytest.mark.services

_KEY = "objects/ab/" + "ab" * 32
_BROKEN = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
def stranger(tmp_path: Path) -> bytes:
    """Return the certificate of an authority that has signed nothing here."""
    words = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=stranger"]
    out = ["-out", str(tmp_path / "stranger.pem"), "-keyout", str(tmp_path / "stranger.key")]
    subprocess.run(["openssl", "req", "-x509", *words, *out], check=True, capture_output=True)
    return (tmp_path / "stranger.pem").read_bytes()


def _open(ceph: Ceph, patch: pytest.MonkeyPatch, authorities: Path, more: str = "") -> ObjectStore:
    admin = ceph.users["admin"]
    patch.setenv("AWS_ACCESS_KEY_ID", admin.access_key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", admin.secret_key)
    patch.setenv("AWS_CA_BUNDLE", str(authorities))
    bucket = fresh_bucket(connect(ceph.endpoint, admin))
    return open_store(f"s3://{bucket}/store?endpoint_url={ceph.secure_endpoint}&region={REGION}{more}")


@pytest.mark.usefixtures("s3_environment")
@pytest.mark.parametrize("more", ["", "&integrity=crc64nvme", "&integrity=unsigned"])
def test_the_fast_client_accepts_every_authority_of_the_bundle(
    ceph: Ceph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stranger: bytes, more: str
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(stranger + Path(ceph.authority).read_bytes())
    store = _open(ceph, monkeypatch, bundle, more)
    store.stat(_KEY)  # whatever is found out once
    monkeypatch.setattr(Connection, "call", lambda *_: pytest.fail("boto3 was asked"))
    data = os.urandom(100_000)
    store.create(_KEY, data)
    assert store.get(_KEY) == data
    assert store.get(_KEY, 10, 100) == data[10:110]


@pytest.mark.usefixtures("s3_environment")
def test_a_server_without_a_trusted_authority_is_refused(
    ceph: Ceph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stranger: bytes
) -> None:
    (tmp_path / "bundle.pem").write_bytes(stranger)
    store = _open(ceph, monkeypatch, tmp_path / "bundle.pem")
    with pytest.raises(StoreUnreachable, match="TLS") as caught:
        store.create(_KEY, b"data")
    assert "AWS_CA_BUNDLE" in str(caught.value.hint)


@pytest.mark.usefixtures("s3_environment")
@pytest.mark.parametrize("content", [None, b"", b"no certificate", _BROKEN])
def test_an_invalid_bundle_is_named_in_the_error(
    ceph: Ceph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "bundle.pem"
    if content is not None:
        path.write_bytes(content)
    store = _open(ceph, monkeypatch, path)
    if isinstance(store, RegionAware):
        store.assume_region(REGION)  # as a workspace does that has joined the store
    for act in (lambda: store.stat(_KEY), lambda: store.create(_KEY, b"data"), lambda: store.get(_KEY)):
        with pytest.raises(M5Error, match=r"bundle\.pem") as caught:
            act()
        assert isinstance(caught.value, UsageError | StoreUnreachable)
