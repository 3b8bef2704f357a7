"""Errors of an S3 store, the same for all client libraries. Imports no S3 library.

`s3.retry` retries after `TransientError`. `PreconditionFailed`, `NoSuchKey` and `RangeNotSatisfiable` are expected
responses. Any other error is an `M5Error` that names the store, the action and the next step.
"""

from typing import Any

from m5ws.errors import M5Error
from m5ws.store.s3.location import Location


class StoreError(M5Error):
    """A response of an S3 server makes the store unusable."""

    exit_code = 3
    hint = "Use `m5ws -v` to print each failed request."


class BucketMissing(StoreError):
    """The bucket does not exist."""

    hint = "Correct [store] url in m5ws.toml, or create the bucket: m5ws creates none."


class WrongRegion(StoreError):
    """The bucket is in another region than m5ws.toml or the store's format record requires."""


class AccessDenied(StoreError):
    """The credentials do not allow an action on an object."""

    hint = "Request this permission. Without s3:ListBucket, S3 also denies requests for missing objects."


class StoreFull(StoreError):
    """The quota of this user or of the bucket is exhausted."""

    hint = "Run `m5ws gc` to delete unused objects, or raise the quota. Published data is complete."


class NoCredentials(StoreError):
    """There are no usable credentials, or they have expired."""

    hint = (
        "Run `aws configure` or `aws sso login`, or set AWS_PROFILE, or new values of AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. m5ws finds credentials as the AWS CLI does."
    )


class StoreUnreachable(StoreError):
    """No server responds at the endpoint."""

    hint = "Check the endpoint ([store] endpoint_url, AWS_ENDPOINT_URL), the server and the network."


class StoreFailing(StoreError):
    """All retries of a request failed."""

    hint = "Uploaded data is complete. Run the same command again to continue."


class UnsafeServer(StoreError):
    """The server lets several writers create one object, so it cannot hold a store."""

    hint = "Use a server with conditional PUT (If-None-Match: *). docs/how-to/team-store.md lists some."


class TransientError(Exception):
    """A request failed in a way that a retry can solve. Never leaves the store.

    `expired`: newer credentials are needed; None if the answer, without a body, does not exclude it. `unreachable`: no
    response.
    `unknown`: obstore has no code for the error, so the retry uses boto3.
    """

    def __init__(
        self, why: str, *, expired: bool | None = False, unreachable: bool = False, unknown: bool = False
    ) -> None:
        super().__init__(why)
        self.expired = expired
        self.unreachable = unreachable
        self.unknown = unknown


class PreconditionFailed(Exception):
    """412: the key of a conditional create exists."""


class NoSuchKey(Exception):
    """404: the object does not exist."""


class RangeNotSatisfiable(Exception):
    """416: a range begins after the end of the object."""


def wrong_region(location: Location, region: str | None, wanted: str | None = None) -> WrongRegion:
    """Return the error for a bucket that is not in the `wanted` region."""
    where = f"in {region}" if region else "in another region"
    configured = f", but the configured region is {wanted}" if wanted else ""
    setting = f"[store] region = {region!r} in m5ws.toml" if region else "[store] region in m5ws.toml"
    return WrongRegion(
        f"the bucket {location.bucket} is {where}{configured}", hint=f"To use this bucket, set {setting}."
    )


def region_of(response: Any) -> str | None:
    """Return the bucket's region as reported by the server, if it reports one."""
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or response.get("Error", {}).get("Region")
    return str(region) if region else None
