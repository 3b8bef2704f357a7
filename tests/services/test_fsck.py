"""`fsck` on a real server that keeps no checksums (Ceph 16): nothing is taken on its word."""

from pathlib import Path

import pytest

from m5ws.repository.fsck import fsck
from m5ws.repository.repository import Repository
from m5ws.store.s3.location import parse
from m5ws.store.s3.store import S3Store
from tests.support.records.filled_store import Scale, fill
from tests.support.s3.ceph import Ceph
from tests.support.s3.s3_client import REGION, connect, fresh_bucket

pytestmark = pytest.mark.services


def test_where_the_server_keeps_no_checksums_everything_is_read(
    ceph: Ceph, s3_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = ceph.users["admin"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    client = connect(ceph.endpoint, keys)
    bucket = fresh_bucket(client)
    store = S3Store(parse(f"s3://{bucket}/team?endpoint_url={ceph.endpoint}"))
    repo = Repository.create(store)
    fill(repo, tmp_path / "files", Scale(large=1, large_bytes=2**21))
    told = [(one.key, one.size_bytes) for one in store.list_with_checksums("")]
    assert told == [(one.key, one.size_bytes) for one in store.list("")]
    report = fsck.check(repo)
    assert report.clean and report.vouched == ()
    assert (report.read_objects, report.read_bytes) == (report.objects, report.size_bytes)
    where = max(store.list("objects/"), key=lambda one: one.size_bytes).key
    data = bytearray(store.get(where))
    data[len(data) // 2] ^= 16
    client.put_object(Bucket=bucket, Key=f"team/{where}", Body=bytes(data))
    assert [(one.kind, one.key) for one in fsck.check(repo).damage] == [("corrupt", where)]
