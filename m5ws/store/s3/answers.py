"""What botocore's errors mean: by type and by code, never by text.

obstore names a few cases by type and has no code for the others, so a request that it fails is asked again through
botocore's client, whose errors are translated here into those of s3_errors.
"""

from http import HTTPStatus

import botocore.exceptions as boto
import urllib3.exceptions
from botocore.parsers import ResponseParserError

from m5ws.store.s3.errors import (
    Absent,
    AccessDenied,
    BucketMissing,
    NoCredentials,
    Passing,
    PastTheEnd,
    StoreError,
    StoreFull,
    StoreUnreachable,
    Taken,
    elsewhere,
    region_of,
)
from m5ws.store.s3.location import Location

# An answer to HEAD has no body, and so its status for a code: 400 is what an expired token gets there.
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "400"})
_SLOW_CODES = frozenset({"SlowDown", "503", "429", "Throttling", "ThrottlingException", "TooManyRequests"})
_PASSING_CODES = frozenset(
    {
        *("InternalError", "ServiceUnavailable", "RequestTimeout", "RequestTimeoutException", "OperationAborted"),
        # Another conditional request for the key was under way. S3 asks for the upload to be done again.
        "ConditionalRequestConflict",
        # What the server received is not what was sent: it was damaged on the way, and was not stored.
        *("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody", "InvalidDigest"),
    }
)
_ELSEWHERE = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_UNKNOWN_KEY = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthFailure"})
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "Forbidden", "AllAccessDisabled", "403"})
_FULL = frozenset({"QuotaExceeded", "ServiceQuotaExceededException"})
_SKEWED = "RequestTimeTooSkewed"
DAMAGED = (urllib3.exceptions.HTTPError, OSError, KeyError, ValueError, TypeError)
"""What comes of an answer that ends or is damaged where botocore does not look: dates, numbers, missing fields."""
_ANSWERS: dict[HTTPStatus, type[Exception]] = {
    HTTPStatus.PRECONDITION_FAILED: Taken,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: PastTheEnd,
    HTTPStatus.NOT_FOUND: Absent,
}


def translate(error: Exception, location: Location, action: str, path: str | None) -> Exception:
    """Return what an error of boto3 means for `action` (`s3:PutObject`) on `path`, or on the bucket."""
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
        return NoCredentials(f"the credentials for {location.url} could not be had: {error}")
    if isinstance(error, boto.EndpointConnectionError | boto.ConnectTimeoutError | boto.ProxyConnectionError):
        return Passing(str(error), unreachable=True)
    if isinstance(error, boto.SSLError):
        return StoreUnreachable(
            f"no TLS with {location.url}: {error}", hint="AWS_CA_BUNDLE names a file of your own authorities."
        )
    if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError | ResponseParserError):
        return Passing(f"{type(error).__name__}: {error}")
    if isinstance(error, boto.BotoCoreError):
        return StoreError(f"{location.url}: {error}")
    if isinstance(error, DAMAGED):
        return Passing(f"an answer that makes no sense: {type(error).__name__}: {error}")
    return error


def _by_code(error: boto.ClientError, location: Location, action: str, path: str | None) -> Exception:
    code, status = code_of(error), status_of(error)
    said = error.response.get("Error", {}).get("Message") or ""
    if passing := _passing(code, status, f"{code}: {said}"):
        return passing
    if code == "NoSuchBucket":
        return BucketMissing(f"there is no bucket {location.bucket} ({location.url})")
    if status in _ANSWERS:
        return _ANSWERS[HTTPStatus(status)]()
    if code in _ELSEWHERE or status == HTTPStatus.MOVED_PERMANENTLY:
        return elsewhere(location, region_of(error.response), location.options.region)
    if code in _UNKNOWN_KEY:
        return NoCredentials(f"the server does not accept the credentials for {location.url}: {code}: {said}")
    if code == _SKEWED:
        return StoreError(f"{location.url}: {said}", hint="This machine's clock is wrong: S3 allows 15 minutes.")
    if code in _FULL:
        return StoreFull(f"{action} on {location.arn(path)} was refused, there is no room: {code}: {said}")
    if code in _DENIED or status == HTTPStatus.FORBIDDEN:
        return AccessDenied(f"{action} on {location.arn(path)} was denied: {said or code}")
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return StoreError(f"the server of {location.url} does not do what {action} needs: {said or code}")
    return StoreError(f"{action} on {location.arn(path)} failed: {code}: {said}")


def _passing(code: str, status: int, why: str) -> Passing | None:
    """Return what to do again, if an answer is of the kind that passes."""
    if code in _EXPIRED:
        return Passing(why, expired=True)
    if code in _SLOW_CODES or status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        return Passing(why, slow=True)
    broken = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    return Passing(why) if broken or code in _PASSING_CODES or status == HTTPStatus.CONFLICT else None


def code_of(error: boto.ClientError) -> str:
    """Return S3's code; an answer without a body, as to HEAD, has its status for one."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: boto.ClientError) -> int:
    """Return the HTTP status."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
