"""A workspace with an S3 store: all commands work as with a directory, in every process of a run."""

import json
import subprocess
from pathlib import Path

import pytest

from m5ws.repository.repository import Repository
from m5ws.store import open_store
from tests.support.s3.s3_servers import S3Server
from tests.support.workspace import command_line
from tests.support.workspace.workspaces import Workspace, make_workspace

_RUN = 'outputs = ["out"]'


@pytest.fixture(autouse=True)
def _credentials(s3_environment: None) -> None:
    pass


def _with_store(workspace: Workspace, server: S3Server, bucket: str) -> Workspace:
    settings = workspace.root / "m5ws.toml"
    store = f'\n[store]\nurl = "s3://{bucket}/team"\nendpoint_url = "{server.endpoint}"\n'
    settings.write_text(settings.read_text() + store)
    return workspace


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.bucket()


@pytest.fixture
def workspace(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server, bucket: str) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("w") / "w", "plain.py", nproc=1, mlflow=True, run=_RUN)
    return _with_store(made, s3_server, bucket)


def test_a_snapshot_is_published_read_and_checked(workspace: Workspace, s3_server: S3Server, bucket: str) -> None:
    first = workspace.m5ws("snapshot", "-m", "to the team").stdout.strip()
    assert workspace.m5ws("snapshot").stdout.strip() == first
    assert [snapshot["id"] for snapshot in workspace.json("ls")["snapshots"]] == [first]
    assert "to the team" in workspace.m5ws("show", first).stdout
    workspace.m5ws("checkout", first, str(copy := workspace.root.parent / "copy"))
    assert (copy / "train.py").read_bytes() == (workspace.root / "train.py").read_bytes()
    assert "no damage" in workspace.m5ws("fsck").stdout
    store = open_store(s3_server.url(bucket, "team"))
    assert Repository.open(store).format.home_region == "eu-west-1"
    assert {stat.key.split("/")[0] for stat in store.list("")} == {"format", "index", "objects", "snapshots"}


def test_init_creates_a_bucket_store_or_joins_an_existing_store(
    tmp_path: Path, s3_server: S3Server, bucket: str
) -> None:
    given = ("--store", f"s3://{bucket}/team", "--endpoint-url", s3_server.endpoint, "--region", "eu-west-1")
    _m5ws(tmp_path, "init", *given, "one")
    made = json.loads(_m5ws(tmp_path / "one", "snapshot", "--json").stdout)["id"]
    _m5ws(tmp_path, "init", *given, "--template", "gpt-fsdp", "two")
    assert [snapshot["id"] for snapshot in json.loads(_m5ws(tmp_path / "two", "ls", "--json").stdout)["snapshots"]] == [
        made
    ]


def _m5ws(place: Path, *words: str, expect: int = 0) -> "subprocess.CompletedProcess[str]":
    done = command_line.call("-C", str(place), *words)
    assert done.returncode == expect, done.stderr
    return done


@pytest.mark.long
def test_a_run_and_its_reproduction_find_the_bucket_in_every_process(workspace: Workspace) -> None:
    run = workspace.train()
    verdict = workspace.json("reproduce", run)
    assert verdict["outcome"] == "reproduced"
    assert verdict["compared"]["files"] == 1 and verdict["compared"]["metrics"] == 1


def test_joining_from_another_region_prints_a_note_and_succeeds(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.m5ws("snapshot")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    done = workspace.m5ws("snapshot")
    assert done.stderr.count("home region is eu-west-1") == 1 and "us-west-2" in done.stderr


def test_a_store_in_another_region_is_refused_without_a_configured_region(
    workspace: Workspace, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    done = workspace.m5ws("snapshot", expect=3)
    assert bucket in done.stderr and "us-west-2" in done.stderr
    assert "[store] region = 'eu-west-1'" in done.stderr
    assert "Contents" not in s3_server.client().list_objects_v2(Bucket=bucket)


def test_a_missing_bucket_is_named_in_the_error(workspace: Workspace, bucket: str) -> None:
    settings = workspace.root / "m5ws.toml"
    settings.write_text(settings.read_text().replace(bucket, "no-such-bucket"))
    for verb in ("ls", "snapshot"):
        assert "no-such-bucket" in workspace.m5ws(verb, expect=3).stderr


@pytest.mark.parametrize("lock", [False, True])
def test_versioned_and_locked_buckets_work(workspace: Workspace, s3_server: S3Server, lock: bool) -> None:
    client = s3_server.client()
    bucket = s3_server.bucket(ObjectLockEnabledForBucket=lock)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    if lock:
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
        configuration = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        client.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=configuration)
    settings = workspace.root / "m5ws.toml"
    text = settings.read_text()
    settings.write_text(text[: text.index("[store]")])
    _with_store(workspace, s3_server, bucket)
    workspace.m5ws("snapshot")
    assert "no damage" in workspace.m5ws("fsck").stdout
