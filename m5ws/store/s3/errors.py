"""What an S3 store says went wrong, in terms of m5ws, whichever library was asked.

What may go away by itself is `Passing`, and s3_retry does it again; `Taken`, `Absent` and `PastTheEnd` are answers;
everything else is an `M5Error` that names the store, the action and what to do. No library of S3 is imported here.
"""

from typing import Any

from m5ws.errors import M5Error
from m5ws.store.s3.location import Location


class StoreError(M5Error):
    """An S3 server answered something that leaves the store unusable."""

    exit_code = 3
    hint = "`m5ws -v` shows each request that failed."


class BucketMissing(StoreError):
    """There is no such bucket."""

    hint = "Correct [store] url in m5ws.toml, or make the bucket: m5ws makes none."


class WrongRegion(StoreError):
    """The bucket is in another region than m5ws.toml, or the store's own record, says."""


class AccessDenied(StoreError):
    """The credentials do not allow an action on an object."""

    hint = "Ask for this permission. Without s3:ListBucket, S3 says the same of objects that are absent."


class StoreFull(StoreError):
    """The server takes no more bytes of this user or into this bucket."""

    hint = "`m5ws gc` deletes what nothing needs; or have the quota raised. What was published is whole."


class NoCredentials(StoreError):
    """There are no usable credentials."""

    hint = "`aws configure`, `aws sso login`, AWS_PROFILE or a role: m5ws looks where the AWS CLI looks."


class StoreUnreachable(StoreError):
    """Nothing answers at the endpoint."""

    hint = "Is the endpoint right ([store] endpoint_url, AWS_ENDPOINT_URL), the server up, the network there?"


class StoreFailing(StoreError):
    """A request failed again and again until its time was over."""

    hint = "What was written before is there and whole: the same command goes on from it."


class UnsafeServer(StoreError):
    """The server lets several writers create one object: it cannot hold a store."""

    hint = "Conditional PUT (If-None-Match: *) must work. docs/how-to/team-store.md names servers on which it does."


class Passing(Exception):
    """A request failed in a way that may pass; it never leaves the store.

    `slow`: the server wants fewer requests; `expired`: it wants newer credentials; `unreachable`: nothing answered;
    `unknown`: obstore has no code for it, and boto3 is to be asked.
    """

    def __init__(
        self, why: str, *, slow: bool = False, expired: bool = False, unreachable: bool = False, unknown: bool = False
    ) -> None:
        super().__init__(why)
        self.slow = slow
        self.expired = expired
        self.unreachable = unreachable
        self.unknown = unknown


class Taken(Exception):
    """412: the key of a conditional create is taken."""


class Absent(Exception):
    """404: there is no such object."""


class PastTheEnd(Exception):
    """416: a range begins after the end of the object."""


def elsewhere(location: Location, region: str | None, wanted: str | None = None) -> WrongRegion:
    """Return the error for a bucket that is in another region than the `wanted` one."""
    where = f"in {region}" if region else "in another region"
    asked = f", and {wanted} is what is configured here" if wanted else ""
    meant = f"[store] region = {region!r} in m5ws.toml" if region else "[store] region in m5ws.toml"
    return WrongRegion(f"the bucket {location.bucket} is {where}{asked}", hint=f"If that is meant, set {meant}.")


def region_of(response: Any) -> str | None:
    """Return the region that the server says the bucket is in, if it says so."""
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or response.get("Error", {}).get("Region")
    return str(region) if region else None
