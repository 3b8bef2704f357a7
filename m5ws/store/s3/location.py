"""Address of an S3 store: bucket, prefix and options, all in one URL.

Launched processes and followers get this URL alone, so it contains all options and no secrets:
`s3://bucket/prefix?region=eu-west-1&endpoint_url=http://127.0.0.1:9000`. Credentials are never part of it.
"""

import re
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from m5ws.config.settings import StoreOptions
from m5ws.errors import UsageError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_FORM = "Use s3://bucket/prefix with lower-case letters, digits, '.' and '-'. The prefix may have '_' and capitals."


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket, the prefix of all keys (empty, or ending in `/`), and the options."""

    bucket: str
    prefix: str
    options: StoreOptions

    @property
    def url(self) -> str:
        """The canonical URL, which `parse` reads back. It contains the options that are not at their defaults."""
        query = urlencode(_given(self.options), safe=":/")
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/") + (f"?{query}" if query else "")

    def arn(self, path: str | None = None) -> str:
        """Return the name of an object (prefix and key), or of the bucket, in policies."""
        return f"arn:aws:s3:::{self.bucket}" + (f"/{path}" if path is not None else "")


def parse(url: str, options: StoreOptions | None = None) -> Location:
    """Return the location at `url`. Raises UsageError if it is invalid or contradicts `options`."""
    split = urlsplit(url)
    prefix = split.path.strip("/")
    if split.scheme != "s3" or not _BUCKET.fullmatch(split.netloc) or split.fragment:
        named = split._replace(netloc=split.netloc.rpartition("@")[2], query="").geturl()
        raise UsageError(f"{named!r} does not name a bucket", hint=_FORM)
    if prefix and (not _PREFIX.fullmatch(prefix) or {".", ".."}.intersection(prefix.split("/"))):
        raise UsageError(f"{url!r} has an invalid prefix", hint=_FORM)
    merged = _merged(url, options, dict(parse_qsl(split.query, keep_blank_values=True)))
    return Location(bucket=split.netloc, prefix=f"{prefix}/" if prefix else "", options=_consistent(merged))


def _merged(url: str, options: StoreOptions | None, asked: dict[str, str]) -> StoreOptions:
    given = _given(options) if options else {}
    for name in asked.keys() & given.keys():
        if str(given[name]) != asked[name]:
            raise UsageError(f"{name} in {url!r} contradicts [store] {name} = {given[name]!r}")
    try:
        return msgspec.convert(given | asked, StoreOptions, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{url!r}: {error}", hint=f"Valid options: {', '.join(StoreOptions.__struct_fields__)}."
        ) from error


def _given(options: StoreOptions) -> dict[str, object]:
    """Return the options that are not at their defaults."""
    fields = msgspec.structs.fields(StoreOptions)
    return {field.name: value for field in fields if (value := getattr(options, field.name)) != field.default}


def _consistent(options: StoreOptions) -> StoreOptions:
    endpoint = options.endpoint_url
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise UsageError(
            f"[store] endpoint_url = {endpoint!r} is not a URL", hint="Begin the URL with https:// or http://."
        )
    if endpoint is not None and urlsplit(endpoint).username is not None:
        raise UsageError("[store] endpoint_url contains a user name", hint="Put credentials into AWS's own files.")
    return options
