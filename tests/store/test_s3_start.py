"""The requests and imports of a start on S3: no more than necessary."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from m5ws.store.s3 import joined
from m5ws.store.s3.control import Control
from m5ws.store.s3.location import parse
from m5ws.store.s3.retry import RetryPolicy
from m5ws.store.s3.store import S3Store
from m5ws.store.s3.variables import plain
from tests.support.s3.scripted_s3 import ScriptedS3

_AT_ONCE = RetryPolicy(budget_s=60.0, first_s=0.0, longest_s=0.0)


@pytest.fixture(autouse=True)
def _credentials(s3_environment: None) -> None:
    pass


def test_a_remembered_region_is_not_requested_from_the_server(server: ScriptedS3, store: S3Store) -> None:
    store.assume_region("eu-west-1")
    store.create("a", b"x")
    assert store.check_region("eu-west-1") == "" and store.region() == "eu-west-1"
    assert [method for method, _, _ in server.requests] == ["PUT"]
    assert store.expected_region() == "eu-west-1"
    assert [method for method, _, _ in server.requests] == ["PUT", "HEAD"]


def test_a_workspace_tries_a_server_once_and_remembers_its_region(server: ScriptedS3, tmp_path: Path) -> None:
    path = tmp_path / "joined"
    for region in ("eu-west-1", None):
        server.region = region
        one = S3Store(parse(server.url(stall_s="19" if region else "18")), _AT_ONCE)
        joined.recall(path, one)
        joined.join(path, one)
        assert server.requests
        server.requests.clear()
        other = S3Store(one.location, _AT_ONCE)
        joined.recall(path, other)
        joined.join(path, other)
        assert other.region() == region
        assert not server.requests
    assert len(path.read_text().splitlines()) == 2


_QUIETLY = """
import sys
from m5ws.store import open_store
store = open_store(sys.argv[1])
store.assume_region("eu-west-1")
store.create("a", b"x")
assert store.get("a") == b"x" and store.stat("a") and list(store.list("")) and store.check_region("eu-west-1") == ""
print(*sys.modules)
"""


def test_botocore_is_not_loaded_if_variables_contain_all_settings(server: ScriptedS3) -> None:
    done = subprocess.run([sys.executable, "-c", _QUIETLY, server.url()], capture_output=True, text=True, check=True)
    assert "obstore" in done.stdout.split() and not {"boto3", "botocore"}.intersection(done.stdout.split())


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, True),
        ({"AWS_SESSION_TOKEN": "t"}, True),
        ({"AWS_SECURITY_TOKEN": "s", "AWS_SESSION_TOKEN": "t"}, True),
        ({"AWS_ACCESS_KEY_ID": ""}, False),
        ({"AWS_SECRET_ACCESS_KEY": ""}, False),
        ({"AWS_PROFILE": "team"}, False),
        ({"AWS_CREDENTIAL_EXPIRATION": "2099-01-01T00:00:00Z"}, False),
        ({"AWS_CONFIG_FILE": "config"}, False),
        ({"AWS_SHARED_CREDENTIALS_FILE": "config"}, False),
        ({"AWS_CA_BUNDLE": "/etc/authorities.pem"}, True),
    ],
)
def test_settings_from_variables_equal_settings_of_the_boto3_chain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], found: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").write_text("[default]\nregion = ap-south-1\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = plain()
    assert (said is not None) is found
    if said is not None:
        chain = Control(parse("s3://bucket"))
        assert (said.credentials, said.here, said.authorities) == (chain.credentials(), chain.here, chain.authorities)


def test_an_unreferenced_store_is_freed_with_its_clients(server: ScriptedS3) -> None:
    """Includes its clients, which hold a dozen MiB each: a process may open many."""
    store = S3Store(parse(server.url()), _AT_ONCE)
    store.create("a", b"x")
    assert store.get("a") == b"x" and store.connection.control is not None
    gone = weakref.ref(store.connection)
    del store
    gc.collect()
    assert gone() is None
