"""Datasets that stay in their remote: in a snapshot, and read back by its manifest."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from m5ws.config.settings import Settings
from m5ws.data import pinned
from m5ws.data.remote import RemoteFiles
from m5ws.diff import diff
from m5ws.errors import ConfigError, CorruptObject, NotFound
from m5ws.records.snapshot import Manifest
from m5ws.repository.fsck import fsck
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure
from m5ws.snapshot.snapshot import CapturedSnapshot
from m5ws.snapshot.sources.dvc import Dvc
from m5ws.store.local import LocalStore
from tests.snapshot.test_snapshot_dvc import clone, dvc, made, root
from tests.support.s3.s3_servers import S3Server
from tests.support.workspace import captures

pytest.importorskip("dvc")
__all__ = ["clone", "made", "root"]

STAY = captures.make_settings(data={"stay": ["data"]})


def take(folder: Path, repo: Repository, settings: Settings = STAY) -> CapturedSnapshot:
    return captures.take(folder, repo, settings, datasets=Dvc())


def stored(folder: Path, name: str) -> Path:
    """Return a file of the remote, by the content of the file `name` in the workspace."""
    digest = hashlib.md5((folder / name).read_bytes()).hexdigest()
    return folder.parent / "remote" / "files" / "md5" / digest[:2] / digest[2:]


def read(repo: Repository, captured: CapturedSnapshot, cache: Path) -> dict[str, bytes]:
    (remote,) = captured.snapshot.remote
    files = RemoteFiles(remote, repo.objects.get_record(remote.manifest, Manifest), cache, 10**8)
    dataset = pinned.of_remote(files, remote.name)
    return {file.path: dataset.fetch(place).read_bytes() for place, file in enumerate(dataset.files)}


def test_a_staying_dataset_is_pinned_and_not_copied(root: Path, clone: Path, repo: Repository, tmp_path: Path) -> None:
    captured = take(root, repo)
    (remote,) = captured.snapshot.remote
    assert (remote.name, remote.kind, remote.files, remote.size_bytes) == ("data", "dvc", 3, 5 + 10 + 256 * 6000)
    assert captured.snapshot.datasets == ()
    assert sum(stat.size_bytes for stat in repo.store.list("objects/")) < 10_000
    # A clone has neither the data nor DVC's cache.
    other = Repository.create(LocalStore(tmp_path / "second"))
    assert take(clone, other).snapshot == captured.snapshot
    assert read(repo, captured, tmp_path / "cache") == {
        "a.txt": b"alpha", "run.sh": b"#!/bin/sh\n", "sub/b.bin": bytes(range(256)) * 6000
    }  # fmt: skip
    assert remote.manifest in closure.closure(repo, "snapshot", captured.id)
    assert fsck.check(repo).clean


def test_files_that_the_remote_lacks_are_an_error(root: Path, repo: Repository) -> None:
    whole = stored(root, "data/sub/b.bin")
    body = whole.read_bytes()
    whole.unlink()
    with pytest.raises(NotFound, match=r"1 of 3 files of data are missing in .*sub/b\.bin"):
        take(root, repo)
    whole.write_bytes(body[:-1])
    with pytest.raises(CorruptObject, match="a file in the remote is damaged"):
        take(root, repo)
    whole.write_bytes(body)
    (listing,) = (root.parent / "remote" / "files" / "md5").rglob("*.dir")
    listing.chmod(0o644)
    listing.write_bytes(listing.read_bytes().replace(b"a.txt", b"z.txt"))
    with pytest.raises(CorruptObject, match="the list of files of data"):
        take(root, repo)
    listing.unlink()
    with pytest.raises(NotFound, match="the list of files of data is missing"):
        take(root, repo)


def test_a_path_that_dvc_does_not_track_is_an_error(root: Path, repo: Repository) -> None:
    with pytest.raises(ConfigError, match=r"'other' is no dataset of DVC\. Datasets of DVC: data"):
        take(root, repo, captures.make_settings(data={"stay": ["other"]}))


def test_a_difference_of_remote_datasets_names_files(root: Path, repo: Repository) -> None:
    before = take(root, repo)
    (root / "data" / "a.txt").write_text("other")
    (root / "data" / "new").write_text("new")
    dvc(root, "add", "data")
    dvc(root, "push")
    after = take(root, repo)
    (change,) = (change for change in diff.between_snapshots(repo, before.id, after.id) if change.part == "data")
    assert change.detail == "added 1: new\nchanged 1: a.txt"


def test_a_prefix_in_s3_is_pinned_by_versions(
    tmp_path: Path, repo: Repository, s3_server: S3Server, s3_environment: None
) -> None:
    bucket, client = s3_server.bucket(), s3_server.client()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})

    def put(key: str, body: bytes, **options: Any) -> str:
        return str(client.put_object(Bucket=bucket, Key=f"web/{key}", Body=body, **options)["VersionId"])

    put("a b=1", b"old")
    version = put("a b=1", b"first")
    put("sub/c", b"with a checksum", ChecksumAlgorithm="SHA256")
    put("folder/", b"")
    put("gone", b"gone")
    client.delete_object(Bucket=bucket, Key="web/gone")
    (tmp_path / "w").mkdir()
    source = {"path": "data/web", "url": f"s3://{bucket}/web", "endpoint_url": s3_server.endpoint}
    settings = captures.make_settings(data={"s3": [source]})
    captured = take(tmp_path / "w", repo, settings)
    (remote,) = captured.snapshot.remote
    assert "region=eu-west-1" in remote.url
    manifest = repo.objects.get_record(remote.manifest, Manifest)
    digests = {body: f"sha256:{hashlib.sha256(body).hexdigest()}" for body in (b"first", b"with a checksum")}
    assert [(file.path, file.digest) for file in manifest.files] == [
        ("a b=1", digests[b"first"]), ("sub/c", digests[b"with a checksum"])
    ]  # fmt: skip
    assert any("read once" in line for line in captured.warnings)
    # An overwritten object is another version: the snapshot still reads the pinned version.
    put("a b=1", b"later")
    expected = {"a b=1": b"first", "sub/c": b"with a checksum"}
    assert read(repo, captured, tmp_path / "cache") == expected
    later = take(tmp_path / "w", repo, settings)
    assert later.id != captured.id
    again = take(tmp_path / "w", repo, settings)
    assert again.id == later.id
    assert not any("read once" in line for line in again.warnings)
    client.delete_object(Bucket=bucket, Key="web/a b=1", VersionId=version)
    with pytest.raises(NotFound, match="data/web/a b=1"):
        read(repo, captured, tmp_path / "empty")
