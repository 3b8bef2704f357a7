"""Credentials that environment variables alone decide, as in a container or a job: botocore is not loaded for those."""

import functools
import os
from pathlib import Path

import msgspec

from m5ws import inquiry
from m5ws.errors import UsageError


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What signs requests."""

    access_key: str
    secret_key: str
    token: str | None = None


class Plain(msgspec.Struct, frozen=True, kw_only=True):
    """All that the chain would find: credentials, this machine's region, and a file of authorities."""

    credentials: Credentials
    here: str | None
    authorities: str | None


def plain() -> Plain | None:
    """Return what the environment says, or None where more than it must be asked."""
    keys = inquiry.keys(os.environ)
    if keys is None:
        return None
    access_key, secret_key, token = keys
    return Plain(
        credentials=Credentials(access_key=access_key, secret_key=secret_key, token=token),
        here=os.environ.get("AWS_DEFAULT_REGION"),
        authorities=os.environ.get("AWS_CA_BUNDLE"),
    )


def bundle(path: str) -> bytes:
    """Return a file of certificates. Raises UsageError if there is none in it, or one that cannot be read."""
    import ssl

    try:
        found = os.stat(path)
        return _checked(path, (found.st_size, found.st_mtime_ns, found.st_ino))
    except ssl.SSLError as error:
        raise _no_bundle(path, f"that holds no certificates, or broken ones ({error.reason or error})") from error
    except OSError as error:
        raise _no_bundle(path, error.strerror or str(error)) from error


@functools.lru_cache(maxsize=1)
def _checked(path: str, _stamp: tuple[int, ...]) -> bytes:
    """Read a bundle that looks like this, once: one of all public authorities takes as long as many a request."""
    import ssl

    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    return Path(path).read_bytes()


def _no_bundle(path: str, why: str) -> UsageError:
    hint = "A file of certificates in PEM; without the variable, the usual public authorities are trusted."
    return UsageError(f"AWS_CA_BUNDLE (or ca_bundle in AWS's configuration) names {path}: {why}", hint=hint)
