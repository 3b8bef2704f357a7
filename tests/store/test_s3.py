"""The S3 store against a real server that fails: each failure is retried, or raises one clear error."""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.errors import NotFound, ObjectExists, UsageError
from m5ws.store.s3 import clients
from m5ws.store.s3.errors import (
    AccessDenied,
    BucketMissing,
    NoCredentials,
    StoreError,
    StoreFailing,
    StoreUnreachable,
    UnsafeServer,
    WrongRegion,
)
from m5ws.store.s3.location import parse
from m5ws.store.s3.retry import RetryPolicy
from m5ws.store.s3.store import S3Store
from tests.support.s3.scripted_s3 import ScriptedS3

_AT_ONCE = RetryPolicy(budget_s=60.0, first_s=0.0, longest_s=0.0)
_PASSING = ["InternalError", "SlowDown", "TooManyRequests", "RequestTimeout", "reset"]
_DATA = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def _credentials(s3_environment: None) -> None:
    pass


@pytest.mark.parametrize("fault", [*_PASSING, "ConditionalRequestConflict", "damage", "lost"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_create_is_repeated_until_the_object_is_stored(
    server: ScriptedS3, store: S3Store, fault: str, times: int
) -> None:
    server.faults = [fault] * times
    store.create("objects/ab/abc", _DATA)
    assert server.objects == {"objects/ab/abc": _DATA}
    assert not server.faults


@pytest.mark.parametrize("fault", [*_PASSING, "half"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("span", [(0, None), (100, 1000)])
def test_a_read_is_repeated_until_the_data_is_whole(
    server: ScriptedS3, store: S3Store, fault: str, times: int, span: tuple[int, int | None]
) -> None:
    server.objects["objects/ab/abc"] = _DATA
    server.faults = [fault] * times
    start, length = span
    assert store.get("objects/ab/abc", start, length) == _DATA[start:][:length]
    assert not server.faults


@pytest.mark.parametrize("fault", _PASSING)
def test_a_stat_is_repeated_until_the_server_answers(server: ScriptedS3, store: S3Store, fault: str) -> None:
    server.objects["a"] = _DATA
    server.faults = [fault] * 3
    found = store.stat("a")
    assert found is not None and found.size_bytes == len(_DATA)


@pytest.mark.parametrize("fault", [*_PASSING, "half"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_listing_is_repeated_until_all_keys_are_listed(
    server: ScriptedS3, store: S3Store, fault: str, times: int
) -> None:
    server.objects |= {f"runs/{number:04d}/run": b"1" for number in range(1200)}
    server.faults = [fault] * times
    assert [found.key for found in store.list("runs/")] == sorted(server.objects)
    server.faults = [fault] * times
    assert store.names("runs/") == tuple(f"{number:04d}" for number in range(1200))
    assert not server.faults


def test_a_create_with_a_lost_answer_fails_if_another_writer_won(server: ScriptedS3, store: S3Store) -> None:
    server.faults = ["overtaken"]
    with pytest.raises(ObjectExists):
        store.create("runs/r/run", _DATA)
    assert server.objects["runs/r/run"] == b"another's"


def test_a_create_with_a_lost_answer_succeeds_despite_a_flipped_bit(server: ScriptedS3, store: S3Store) -> None:
    server.faults = ["lost", "PreconditionFailed", "flip"]
    store.create("runs/r/run", _DATA)
    assert server.objects == {"runs/r/run": _DATA}
    assert not server.faults


def test_a_create_of_existing_equal_bytes_fails(server: ScriptedS3, store: S3Store) -> None:
    server.objects["runs/r/run"] = _DATA
    with pytest.raises(ObjectExists):
        store.create("runs/r/run", _DATA)


def test_both_clients_repeat_a_stalled_transfer(server: ScriptedS3) -> None:
    store = S3Store(parse(server.url(stall_s="0.2")), _AT_ONCE)
    server.faults = ["stall", "stall"]
    store.create("a", _DATA)
    assert not server.faults
    server.faults = ["stall", "stall"]
    assert store.get("a") == _DATA
    assert not server.faults
    assert server.objects == {"a": _DATA}


def test_an_exhausted_retry_budget_ends_in_an_error_with_its_cause(server: ScriptedS3) -> None:
    store = S3Store(parse(server.url()), RetryPolicy(budget_s=0.0))
    server.always = lambda method, _key: "InternalError" if method == "PUT" else None
    with pytest.raises(StoreFailing, match=r"store/a .*s3://bucket/store.*InternalError"):
        store.create("a", _DATA)
    assert server.count("PUT") == 2


def test_an_unreachable_server_is_reported_soon(server: ScriptedS3) -> None:
    with ScriptedS3() as gone:
        url = gone.url()
    store = S3Store(parse(url), RetryPolicy(contact_s=0.0))
    with pytest.raises(StoreUnreachable, match="s3://bucket/store"):
        store.get("a")


@pytest.mark.parametrize(
    ("ask", "action"),
    [
        (lambda store: store.get("runs/a"), "s3:GetObject on arn:aws:s3:::bucket/store/runs/a"),
        (lambda store: store.create("runs/a", b""), "s3:PutObject on arn:aws:s3:::bucket/store/runs/a"),
        (lambda store: store.delete("runs/a"), "s3:DeleteObject on arn:aws:s3:::bucket/store/runs/a"),
        (lambda store: list(store.list("runs/")), "s3:ListBucket on arn:aws:s3:::bucket"),
    ],
)
def test_an_access_error_names_the_denied_action_and_the_object(
    server: ScriptedS3, store: S3Store, ask: Callable[[S3Store], object], action: str
) -> None:
    server.always = lambda _method, _key: "AccessDenied"
    with pytest.raises(AccessDenied, match=action):
        ask(store)


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ("NoSuchBucket", BucketMissing, "bucket: bucket"),
        ("InvalidAccessKeyId", NoCredentials, "credentials"),
        ("RequestTimeTooSkewed", StoreError, "scripted"),
        ("NotImplemented", StoreError, "s3:PutObject"),
    ],
)
def test_each_refusal_of_the_server_has_its_own_error(
    server: ScriptedS3, store: S3Store, code: str, error: type[StoreError], says: str
) -> None:
    server.always = lambda _method, key: code if key else None
    with pytest.raises(error, match=says):
        store.create("a", b"x")


def test_missing_credentials_are_an_error_with_a_remedy(
    server: ScriptedS3, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(NoCredentials) as caught:
        store.get("a")
    assert "AWS_PROFILE" in caught.value.hint


def test_expired_credentials_are_read_again(
    server: ScriptedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.json"
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} -c \"print(open('{keys}').read())\"\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    def valid(name: str) -> None:
        expires = {"SessionToken": "t", "Expiration": "2099-01-01T00:00:00Z"}
        keys.write_text(json.dumps({"Version": 1, "AccessKeyId": name, "SecretAccessKey": "s"} | expires))
        server.accepted_key = name

    store = S3Store(parse(server.url()), _AT_ONCE)
    for name in ("first", "second"):
        valid(name)
        store.create(f"runs/{name}", _DATA)
        assert store.get(f"runs/{name}") == _DATA


def test_expired_credentials_without_a_new_source_are_an_error_at_once(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.accepted_key = "another"
    shared = tmp_path / "credentials"
    shared.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = s\n")
    for name in (str(tmp_path / "nowhere"), str(shared)):  # With a file of a profile, boto3 reads the variables.
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", name)
        _refused(server, S3Store(parse(server.url()), _AT_ONCE))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    store = S3Store(parse(server.url()), _AT_ONCE)
    _refused(server, store)
    monkeypatch.setattr(clients, "_RENEW_EVERY_S", 0.0)
    shared.write_text("[default]\naws_access_key_id = another\naws_secret_access_key = s\n")
    store.create("a", b"x")


def _refused(server: ScriptedS3, store: S3Store) -> None:
    """Assert that the server refuses the store's credentials at once, and that they are not sent again."""
    for most in (4, 0):
        server.requests.clear()
        with pytest.raises(NoCredentials, match=r"refuses the credentials .* \(attempt \d\): ") as caught:
            store.create("a", b"x")
        assert "AWS_SESSION_TOKEN" in caught.value.hint and len(server.requests) <= most


def test_credentials_of_a_role_are_tried_until_the_budget_is_spent(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.accepted_key = "another"
    keys = {"Version": 1, "AccessKeyId": "old", "SecretAccessKey": "s", "Expiration": "2099-01-01T00:00:00Z"}
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = echo '{json.dumps(keys)}'\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    patience = RetryPolicy(budget_s=0.5, contact_s=0.5, first_s=0.01, longest_s=0.1)
    with pytest.raises(NoCredentials, match=r"\d+ attempts in 0 s"):
        S3Store(parse(server.url()), patience).create("a", b"x")


def test_a_server_that_accepts_several_creates_of_a_key_is_refused(server: ScriptedS3, store: S3Store) -> None:
    store.probe()
    assert not server.objects
    server.conditional = False
    with pytest.raises(UnsafeServer, match=r"8 of 8 .*probe/"):
        S3Store(store.location, _AT_ONCE).probe()


def test_probe_needs_no_permission_to_write(server: ScriptedS3, store: S3Store) -> None:
    server.always = lambda method, _key: "AccessDenied" if method in ("PUT", "DELETE") else None
    store.probe()


@pytest.mark.parametrize("faults", [[], ["InternalError"]])
def test_encryption_and_storage_class_are_sent_with_every_object(server: ScriptedS3, faults: list[str]) -> None:
    wanted = {"sse": "aws:kms", "sse_kms_key": "alias/a", "storage_class": "STANDARD_IA"}
    server.faults = list(faults)
    S3Store(parse(server.url(**wanted)), _AT_ONCE).create("a", b"x")
    method, _, headers = server.requests[-1]
    assert method == "PUT" and headers["if-none-match"] == "*"
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/a"
    assert headers["x-amz-storage-class"] == "STANDARD_IA"
    assert headers["x-amz-checksum-sha256"] == "LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE="
    assert len(headers["x-amz-content-sha256"]) == 64


def test_a_crc_takes_the_place_of_the_checksum_and_not_of_the_signature_without_tls(server: ScriptedS3) -> None:
    S3Store(parse(server.url(integrity="crc64nvme")), _AT_ONCE).create("a", b"x")
    _, _, headers = server.requests[-1]
    assert headers["x-amz-checksum-crc64nvme"] == "Lb1nAmRU5LE="
    assert len(headers["x-amz-content-sha256"]) == 64


def test_unsigned_bytes_are_not_sent_without_tls(server: ScriptedS3) -> None:
    with pytest.raises(UsageError, match="https"):
        S3Store(parse(server.url(integrity="unsigned")), _AT_ONCE).create("a", b"x")


def test_a_store_is_created_only_in_the_expected_region(server: ScriptedS3, store: S3Store) -> None:
    assert store.expected_region() == "eu-west-1"
    with pytest.raises(WrongRegion, match=r"bucket bucket .*eu-west-1.*us-west-2"):
        S3Store(parse(server.url(region="us-west-2"))).expected_region()


def test_joining_from_another_region_succeeds_with_a_warning(
    server: ScriptedS3, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.check_region("eu-west-1") == ""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    warning = S3Store(store.location).check_region("eu-west-1")
    assert "eu-west-1" in warning and "us-west-2" in warning
    with pytest.raises(WrongRegion, match=r"ap-south-1.*eu-west-1"):
        S3Store(store.location).check_region("ap-south-1")


def test_many_threads_share_a_store(server: ScriptedS3, store: S3Store) -> None:
    server.faults = ["SlowDown", "reset", "lost", "InternalError"] * 5
    threads = [threading.Thread(target=store.create, args=(f"a/{number}", b"%d" % number)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.objects == {f"a/{number}": b"%d" % number for number in range(40)}


def test_an_absent_object_is_not_found(store: S3Store) -> None:
    with pytest.raises(NotFound):
        store.get("a")
    with pytest.raises(NotFound):
        store.get("a", 0, 0)


def test_a_store_leaves_no_variable_behind(server: ScriptedS3, store: S3Store) -> None:
    before = dict(os.environ)
    store.create("a", b"x")
    assert dict(os.environ) == before
