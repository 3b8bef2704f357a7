"""Credentials in environment variables alone, as in a container or a job. These need no botocore."""

import functools
import os
from pathlib import Path

import msgspec

from m5ws.errors import UsageError
from m5ws.filesystem import stamp

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_TOKENS = ("AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN")
_MORE = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CREDENTIAL_EXPIRATION")
"""Variables that refer to more than the keys."""
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials to sign requests."""

    access_key: str
    secret_key: str
    token: str | None = None


class Plain(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that boto3's chain would find: credentials, this machine's region, and a file of authorities."""

    credentials: Credentials
    here: str | None
    authorities: str | None


def plain() -> Plain | None:
    """Return the credentials in the environment, or None if botocore's chain could find others.

    Variables come first in that chain. Two files provide the rest: a profile's region, its authorities and its endpoint
    (https://docs.aws.amazon.com/boto3/latest/guide/credentials.html).
    """
    access_key, secret_key = (os.environ.get(name) for name in _KEYS)
    if not access_key or not secret_key or any(name in os.environ for name in _MORE):
        return None
    if any(os.path.isfile(os.path.expanduser(os.environ.get(name, usual))) for name, usual in _FILES.items()):
        return None
    token = next((value for name in _TOKENS if (value := os.environ.get(name))), None)
    return Plain(
        credentials=Credentials(access_key=access_key, secret_key=secret_key, token=token),
        here=os.environ.get("AWS_DEFAULT_REGION"),
        authorities=os.environ.get("AWS_CA_BUNDLE"),
    )


def bundle(path: str) -> bytes:
    """Return a file of certificates. Raises UsageError if it has none or cannot be read."""
    import ssl

    try:
        status = os.stat(path)
        return _checked(path, stamp(status))
    except ssl.SSLError as error:
        raise _no_bundle(path, f"without valid certificates ({error.reason or error})") from error
    except OSError as error:
        raise _no_bundle(path, error.strerror or str(error)) from error


@functools.lru_cache(maxsize=1)
def _checked(path: str, _stamp: tuple[int, ...]) -> bytes:
    """Read a bundle, once per stamp: a bundle of all public authorities takes as long as many requests."""
    import ssl

    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    return Path(path).read_bytes()


def _no_bundle(path: str, why: str) -> UsageError:
    hint = "Name a file of PEM certificates, or unset AWS_CA_BUNDLE to trust the public authorities."
    return UsageError(f"AWS_CA_BUNDLE (or ca_bundle in AWS's configuration) is {path}: {why}", hint=hint)
