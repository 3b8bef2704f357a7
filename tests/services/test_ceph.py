"""The Ceph that the tests run knows its users alone, and checks signatures behind proxies."""

import pytest

from tests.support.network.fault_plan import Settings
from tests.support.network.proxies import DelayLine, FaultProxy
from tests.support.s3 import ceph as ceph_server
from tests.support.s3.ceph import Ceph
from tests.support.s3.s3_client import answer_of, connect, fresh_bucket

pytestmark = pytest.mark.services


def test_ceph_accepts_only_registered_users(ceph: Ceph) -> None:
    admin, researcher = (connect(ceph.endpoint, ceph.users[name]) for name in ("admin", "researcher"))
    bucket = fresh_bucket(admin)
    assert answer_of(admin.put_object, Bucket=bucket, Key="k", Body=b"1") == "ok"
    assert answer_of(researcher.get_object, Bucket=bucket, Key="k") == "403 AccessDenied"
    stranger = ceph_server.Keys("admin", ceph.users["admin"].access_key, "wrong")
    assert answer_of(connect(ceph.endpoint, stranger).list_buckets) == "403 SignatureDoesNotMatch"


def test_a_signature_stays_valid_through_the_proxies(ceph: Ceph) -> None:
    with FaultProxy(f"127.0.0.1:{ceph.port}") as proxy, DelayLine(f"127.0.0.1:{proxy.port}", 5) as line:
        admin, data = connect(line.endpoint, ceph.users["admin"]), bytes(range(256)) * 1000
        bucket = fresh_bucket(connect(ceph.endpoint, ceph.users["admin"]))
        admin.put_object(Bucket=bucket, Key="k", Body=data, IfNoneMatch="*")
        assert admin.get_object(Bucket=bucket, Key="k")["Body"].read() == data
        assert [found["Key"] for found in admin.list_objects_v2(Bucket=bucket)["Contents"]] == ["k"]
        # Bytes that flip on the way are not the bytes that were signed, and the server says so.
        proxy.change(Settings(rates={"corrupt_request": 1.0}))
        answer = answer_of(admin.put_object, Bucket=bucket, Key="damaged", Body=data)
        assert answer == "400 XAmzContentSHA256Mismatch"
