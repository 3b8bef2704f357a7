"""Features of an S3 server, tested one at a time: the rows of docs/reference/servers.md."""

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from tests.support.s3.s3_client import answer_of, fresh_bucket

_BODY = b"right " * 1000
_RACERS = 8
_ROUNDS = 6


class Server:
    """A client of the server, and one of another user if the server has users."""

    def __init__(self, owner: Any, other: Any = None, other_arn: str = "") -> None:
        self.owner = owner
        self.other = other
        self.other_arn = other_arn

    def bucket(self, *, versioned: bool = False, **options: Any) -> str:
        name = fresh_bucket(self.owner, **options)
        if versioned:
            self.owner.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return name


def _create(server: Server) -> str:
    return _twice(server, server.bucket())


def _create_versioned(server: Server) -> str:
    return _twice(server, server.bucket(versioned=True))


def _twice(server: Server, bucket: str) -> str:
    server.owner.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")
    return _kept(answer_of(server.owner.put_object, Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*"))


def _create_multipart(server: Server) -> str:
    where = {"Bucket": server.bucket(), "Key": "k"}
    server.owner.put_object(**where, Body=b"1")
    upload = {**where, "UploadId": server.owner.create_multipart_upload(**where)["UploadId"]}
    part = {"PartNumber": 1, "ETag": server.owner.upload_part(**upload, PartNumber=1, Body=b"2")["ETag"]}
    parts = {"Parts": [part]}
    return _kept(answer_of(server.owner.complete_multipart_upload, **upload, MultipartUpload=parts, IfNoneMatch="*"))


def _kept(answer: str) -> str:
    return "yes" if answer.startswith("412") else f"no ({answer})"


def _race(server: Server) -> str:
    bucket = server.bucket()
    winners = {_winners(server, bucket, f"k{number}") for number in range(_ROUNDS)}
    return "yes" if winners == {1} else f"no ({max(winners)} of {_RACERS})"


def _winners(server: Server, bucket: str, key: str) -> int:
    gate, answers = threading.Barrier(_RACERS), [""] * _RACERS

    def write(which: int) -> None:
        gate.wait()
        arguments = {"Bucket": bucket, "Key": key, "Body": b"%d" % which * 2000, "IfNoneMatch": "*"}
        answers[which] = answer_of(server.owner.put_object, **arguments)

    threads = [threading.Thread(target=write, args=(which,)) for which in range(_RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers.count("ok")


def _damaged_signed(server: Server) -> str:
    """Send other bytes than were signed, as after a bit flip in transit."""
    bucket = server.bucket()

    def damage(request: Any, **_: Any) -> None:
        request.body = b"wrong " * 1000

    server.owner.meta.events.register("before-send.s3.PutObject", damage)
    try:
        return _refused(server, bucket)
    finally:
        server.owner.meta.events.unregister("before-send.s3.PutObject", damage)


def _damaged_sha256(server: Server) -> str:
    other = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
    return _refused(server, server.bucket(), ChecksumSHA256=other)


def _damaged_crc64(server: Server) -> str:
    return _refused(server, server.bucket(), ChecksumCRC64NVME="AAAAAAAAAAA=")


def _damaged_md5(server: Server) -> str:
    return _refused(server, server.bucket(), ContentMD5=base64.b64encode(bytes(16)).decode())


def _refused(server: Server, bucket: str, **arguments: Any) -> str:
    answer = answer_of(server.owner.put_object, Bucket=bucket, Key="k", Body=_BODY, **arguments)
    stored = answer_of(server.owner.head_object, Bucket=bucket, Key="k") == "ok"
    return "no" if answer == "ok" else f"yes ({answer})" + (", but stored" if stored else "")


def _checksum_kept(server: Server) -> str:
    bucket, right = server.bucket(), base64.b64encode(hashlib.sha256(_BODY).digest()).decode()
    server.owner.put_object(Bucket=bucket, Key="k", Body=_BODY, ChecksumSHA256=right)
    found = server.owner.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    return "yes" if found.get("ChecksumSHA256") == right else "no"


def _users(server: Server) -> str:
    if server.other is None:
        return "no (anybody may do anything)"
    bucket = server.bucket()
    return "yes" if answer_of(server.other.list_objects_v2, Bucket=bucket) == "403 AccessDenied" else "no"


def _condition(server: Server) -> str:
    """The deny of write-once.json stops exactly the PUTs without If-None-Match."""
    if server.other is None:
        return "no (policies are not enforced)"
    bucket = server.bucket()
    common = {"Principal": {"AWS": [server.other_arn]}, "Action": ["s3:PutObject"]}
    common["Resource"] = [f"arn:aws:s3:::{bucket}/*"]
    demand = {"Effect": "Deny", "Condition": {"Null": {"s3:if-none-match": "true"}}}
    policy = {"Version": "2012-10-17", "Statement": [{**common, "Effect": "Allow"}, {**common, **demand}]}
    server.owner.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    without = answer_of(server.other.put_object, Bucket=bucket, Key="a", Body=b"1")
    with_it = answer_of(server.other.put_object, Bucket=bucket, Key="b", Body=b"1", IfNoneMatch="*")
    return "yes" if (without, with_it) == ("403 AccessDenied", "ok") else f"no (with the header: {with_it})"


def _lock(server: Server) -> str:
    """Test whether an object in a bucket with a default retention can be deleted before its time."""
    bucket = server.bucket(ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    configuration = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    server.owner.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=configuration)
    md5 = base64.b64encode(hashlib.md5(b"1", usedforsecurity=False).digest()).decode()
    try:
        version = server.owner.put_object(Bucket=bucket, Key="k", Body=b"1", ContentMD5=md5)["VersionId"]
    except ClientError as error:
        return f"no (PUT: {error.response['Error']['Code']})"
    answer = answer_of(server.owner.delete_object, Bucket=bucket, Key="k", VersionId=version)
    return "yes" if answer.startswith("403") else f"no ({answer})"


def _encryption(server: Server) -> str:
    bucket = server.bucket()
    answer = answer_of(server.owner.put_object, Bucket=bucket, Key="k", Body=b"1", ServerSideEncryption="AES256")
    if answer != "ok":
        return f"no ({answer})"
    found = server.owner.head_object(Bucket=bucket, Key="k").get("ServerSideEncryption")
    return "yes" if found == "AES256" else "no (ignored)"


def _storage_class(server: Server) -> str:
    bucket = server.bucket()
    answer = answer_of(server.owner.put_object, Bucket=bucket, Key="k", Body=b"1", StorageClass="STANDARD_IA")
    if answer != "ok":
        return f"no ({answer})"
    found = server.owner.head_object(Bucket=bucket, Key="k").get("StorageClass")
    return "yes" if found == "STANDARD_IA" else "no (ignored)"


def _region(server: Server) -> str:
    response = server.owner.head_bucket(Bucket=server.bucket())["ResponseMetadata"]
    return "yes" if "x-amz-bucket-region" in response["HTTPHeaders"] else "no"


CHECKS: dict[str, Callable[[Server], str]] = {
    "`If-None-Match: *` is kept to": _create,
    "of 8 who create a key at once, one wins": _race,
    "`If-None-Match: *` is kept to in a versioned bucket": _create_versioned,
    "`If-None-Match: *` is kept to by multipart uploads": _create_multipart,
    "bytes that were not signed are refused": _damaged_signed,
    "a wrong SHA-256 header is refused": _damaged_sha256,
    "a wrong CRC64NVME header is refused": _damaged_crc64,
    "a wrong Content-MD5 is refused": _damaged_md5,
    "a checksum is kept and told": _checksum_kept,
    "users are separate": _users,
    "a policy can demand `If-None-Match`": _condition,
    "a locked object cannot be destroyed": _lock,
    "encryption at rest on request (AES256)": _encryption,
    "storage class STANDARD_IA": _storage_class,
    "HEAD of a bucket tells its region": _region,
}
