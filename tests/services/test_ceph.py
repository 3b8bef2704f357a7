"""The Ceph that the tests run: real users, beside another, and gone with those who use it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.network.fault_plan import Settings
from tests.support.network.proxies import DelayLine, FaultProxy
from tests.support.s3 import ceph as ceph_server
from tests.support.s3.ceph import Ceph
from tests.support.s3.s3_client import answer_of, connect, fresh_bucket

pytestmark = pytest.mark.services

_HOLDER = """
import sys, time
from pathlib import Path
import ceph
with ceph.hold(Path(sys.argv[1])) as running:
    print(running.guardian, running.port, running.directory, flush=True)
    sys.stdin.read()
"""


def test_only_users_that_it_knows_are_let_in(ceph: Ceph) -> None:
    admin, researcher = (connect(ceph.endpoint, ceph.users[name]) for name in ("admin", "researcher"))
    bucket = fresh_bucket(admin)
    assert answer_of(admin.put_object, Bucket=bucket, Key="k", Body=b"1") == "ok"
    assert answer_of(researcher.get_object, Bucket=bucket, Key="k") == "403 AccessDenied"
    stranger = ceph_server.Keys("admin", ceph.users["admin"].access_key, "wrong")
    assert answer_of(connect(ceph.endpoint, stranger).list_buckets) == "403 SignatureDoesNotMatch"


def test_a_signature_holds_on_the_way_through_the_proxies(ceph: Ceph) -> None:
    with FaultProxy(f"127.0.0.1:{ceph.port}") as proxy, DelayLine(f"127.0.0.1:{proxy.port}", 5) as line:
        admin, data = connect(line.endpoint, ceph.users["admin"]), bytes(range(256)) * 1000
        bucket = fresh_bucket(connect(ceph.endpoint, ceph.users["admin"]))
        admin.put_object(Bucket=bucket, Key="k", Body=data, IfNoneMatch="*")
        assert admin.get_object(Bucket=bucket, Key="k")["Body"].read() == data
        assert [found["Key"] for found in admin.list_objects_v2(Bucket=bucket)["Contents"]] == ["k"]
        # Bytes that flip on the way are not those that were signed, and the server says so.
        proxy.change(Settings(rates={"corrupt_request": 1.0}))
        answer = answer_of(admin.put_object, Bucket=bucket, Key="damaged", Body=data)
        assert answer == "400 XAmzContentSHA256Mismatch"


def test_it_is_shared_and_ends_with_its_last_user_even_a_killed_one(ceph: Ceph, tmp_path: Path) -> None:
    first, second = _holder(tmp_path), _holder(tmp_path)
    guardian, port, directory = first.said
    # One for both, beside the session's own.
    assert second.said == first.said and port != ceph.port
    first.process.communicate()
    assert ceph_server.answers(port)
    second.process.send_signal(signal.SIGKILL)
    second.process.communicate()
    _until_gone(guardian, directory)
    assert not ceph_server.answers(port) and ceph_server.answers(ceph.port)


class _holder:  # noqa: N801  # called like a function
    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(root)],
            cwd=Path(ceph_server.__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        guardian, port, directory = self.process.stdout.readline().split()
        self.said = (int(guardian), int(port), Path(directory))


def _until_gone(guardian: int, directory: Path) -> None:
    deadline = time.monotonic() + 30
    while _runs(guardian) or directory.exists():
        assert time.monotonic() < deadline, "the guardian is still there"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
