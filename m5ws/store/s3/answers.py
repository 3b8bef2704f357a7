"""Translation of botocore's errors into the errors of `s3.errors`, by type and by code, never by text.

obstore has types for a few cases and codes for none. A request that fails there is repeated with botocore's client, and
the errors of that client are translated here.
"""

from http import HTTPStatus

import botocore.exceptions as boto
import urllib3.exceptions
from botocore.parsers import ResponseParserError

from m5ws.store.s3.errors import (
    AccessDenied,
    BucketMissing,
    NoCredentials,
    NoSuchKey,
    PreconditionFailed,
    RangeNotSatisfiable,
    StoreError,
    StoreFull,
    StoreUnreachable,
    TransientError,
    region_of,
    wrong_region,
)
from m5ws.store.s3.location import Location

_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_BAD_HEAD = "400"
"""A response to HEAD has no body, so its status stands in for the code. An expired token gets 400, and others too."""
_PASSING_CODES = frozenset(
    {
        *("SlowDown", "503", "429", "Throttling", "ThrottlingException", "TooManyRequests"),
        *("InternalError", "ServiceUnavailable", "RequestTimeout", "RequestTimeoutException", "OperationAborted"),
        # Another conditional request for the key was in progress. S3 requires a retry of the upload.
        "ConditionalRequestConflict",
        # The server received damaged bytes, and did not store them.
        *("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody", "InvalidDigest"),
    }
)
_ELSEWHERE = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_UNKNOWN_KEY = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthFailure"})
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "Forbidden", "AllAccessDisabled", "403"})
_FULL = frozenset({"QuotaExceeded", "ServiceQuotaExceededException"})
_SKEWED = "RequestTimeTooSkewed"
DAMAGED = (urllib3.exceptions.HTTPError, OSError, KeyError, ValueError, TypeError)
"""Errors of a response that is truncated or damaged in fields that botocore does not check."""
FAILURES = (boto.ClientError, boto.BotoCoreError, ResponseParserError, *DAMAGED)
"""Errors of a request that `translate` translates."""
_ANSWERS: dict[HTTPStatus, type[Exception]] = {
    HTTPStatus.PRECONDITION_FAILED: PreconditionFailed,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: RangeNotSatisfiable,
    HTTPStatus.NOT_FOUND: NoSuchKey,
}


def translate(error: Exception, location: Location, action: str, path: str | None) -> Exception:
    """Return the m5ws error for an error of boto3, for `action` (`s3:PutObject`) on `path`, or on the bucket."""
    if isinstance(error, boto.ClientError):
        return _by_code(error, location, action, path)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError | boto.ProfileNotFound):
        return NoCredentials(f"no credentials for {location.url}: {error}")
    if isinstance(
        error,
        boto.CredentialRetrievalError
        | boto.TokenRetrievalError
        | boto.SSOError
        | boto.RefreshWithMFAUnsupportedError
        | boto.MetadataRetrievalError,
    ):
        return NoCredentials(f"cannot get credentials for {location.url}: {error}")
    if isinstance(error, boto.EndpointConnectionError | boto.ConnectTimeoutError | boto.ProxyConnectionError):
        return TransientError(str(error), unreachable=True)
    if isinstance(error, boto.SSLError):
        return StoreUnreachable(
            f"TLS connection to {location.url} failed: {error}",
            hint="Set AWS_CA_BUNDLE to a file with your certificate authorities.",
        )
    if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError | ResponseParserError):
        return TransientError(f"{type(error).__name__}: {error}")
    if isinstance(error, boto.BotoCoreError):
        return StoreError(f"{location.url}: {error}")
    if isinstance(error, DAMAGED):
        return TransientError(f"invalid response: {type(error).__name__}: {error}")
    return error


def _by_code(error: boto.ClientError, location: Location, action: str, path: str | None) -> Exception:
    code, status = code_of(error), status_of(error)
    message = error.response.get("Error", {}).get("Message") or ""
    if passing := _passing(code, status, f"{code}: {message}"):
        return passing
    if code == "NoSuchBucket":
        return BucketMissing(f"no such bucket: {location.bucket} ({location.url})")
    if status in _ANSWERS:
        return _ANSWERS[HTTPStatus(status)]()
    if code in _ELSEWHERE or status == HTTPStatus.MOVED_PERMANENTLY:
        return wrong_region(location, region_of(error.response), location.options.region)
    if code in _UNKNOWN_KEY:
        return NoCredentials(f"the server rejected the credentials for {location.url}: {code}: {message}")
    if code == _SKEWED:
        return StoreError(
            f"{location.url}: {message}", hint="Correct this machine's clock: S3 allows a difference of 15 minutes."
        )
    if code in _FULL:
        return StoreFull(f"quota exceeded for {action} on {location.arn(path)}: {code}: {message}")
    if code in _DENIED or status == HTTPStatus.FORBIDDEN:
        return AccessDenied(f"{action} on {location.arn(path)} was denied: {message or code}")
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return StoreError(
            f"the server of {location.url} does not support a feature that {action} needs: {message or code}"
        )
    return StoreError(f"{action} on {location.arn(path)} failed: {code}: {message}")


def _passing(code: str, status: int, why: str) -> TransientError | None:
    """Return a TransientError if a retry can succeed, else None."""
    if code in _EXPIRED or code == _BAD_HEAD:
        return TransientError(why, expired=True if code in _EXPIRED else None)
    broken = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    passing = broken or status in (HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS) or code in _PASSING_CODES
    return TransientError(why) if passing else None


def code_of(error: boto.ClientError) -> str:
    """Return S3's error code; for a response without a body, as to HEAD, its status."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: boto.ClientError) -> int:
    """Return the HTTP status."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
