"""Asks a bucket, by `curl`, what is there of some objects: without a library, which takes longer to import than git to
look at a large working tree (docs/design/0013).

It asks once: an answer that is not clear is an error, and whoever needs to know asks with all patience. Keys that sign
are read from variables, and reach curl through a pipe alone.
"""

import os

from m5ws import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

OBJECT, FILE, BELOW = "object", "file", "below"
"""What is asked of a key: its length, its length and its version, those of all keys that begin with it.

What is asked for by itself is to be there, and an object to have a least length: else there is no answer.
"""
WHOLE, EACH = "whole", "each"
"""How a bucket is asked: by one list of all that is below the prefix, or for each object by itself."""
MOST_LISTED = 1000
"""So much a server tells at once; a store that holds more is asked for each object."""
_MOST_EACH = 256
_SIDE_BY_SIDE = "8"
_MOST_BYTES = 4 * 2**20
_PIPE_BYTES = 65_536
"""What a pipe holds at least (https://man7.org/linux/man-pages/man7/pipe.7.html): nobody waits for curl to read."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/:")
"""What URL and signature write alike, in paths."""
_EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_CONNECT_S, _LIMIT_S = 2, 5
_PARTED = b"\n--m5ws--\n"
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_TOKENS = ("AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN")
_MORE = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CREDENTIAL_EXPIRATION")
"""Variables that say that there is more to find than the keys."""
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")

Keys = tuple[str, str, str | None]
"""The access key, the secret key, and a session's token."""
Question = tuple[str, str, int]
"""What is asked, of which key, and the least length in bytes."""


class Unanswered(OSError):
    """The bucket, or the question, is not one for curl; or there is no clear answer."""


def keys(environment: "Mapping[str, str]") -> Keys | None:
    """Return what signs, where variables alone decide that; None where more than they must be asked.

    In boto3's chain variables come first, and what else they leave open (a profile's region, its authorities, its
    endpoint) comes from two files. Where neither is there, the variables are all there is to know
    (https://docs.aws.amazon.com/boto3/latest/guide/credentials.html).
    """
    access, secret = (environment.get(name) for name in _KEYS)
    if not access or not secret or any(name in environment for name in _MORE):
        return None
    if any(os.path.isfile(os.path.expanduser(environment.get(name, usual))) for name, usual in _FILES.items()):
        return None
    return access, secret, next((value for name in _TOKENS if (value := environment.get(name))), None)


class Inquiry:
    """What is asked of the objects below one prefix of a bucket.

    `url` is the bucket's, without a `/` at its end; `prefix` is empty or ends in `/`; `authority` is a file of
    certificates, or "" for the usual ones.
    """

    def __init__(
        self, how: str, url: str, prefix: str, region: str, authority: str, asked: "Iterable[Question]"
    ) -> None:
        self._how, self._url, self._prefix, self._region, self._authority = how, url, prefix, region, authority
        self._asked = sorted(asked)
        self._each = list(dict.fromkeys(key for kind, key, _ in self._asked if kind != BELOW)) if how == EACH else []
        self._lists = [key for kind, key, _ in self._asked if kind == BELOW] if how == EACH else [""]
        self._working: list[spawn.Started] = []

    def text(self) -> str:
        """Return it as text, as `read` takes it."""
        lines = (f"{kind} {least_bytes} {key}" for kind, key, least_bytes in self._asked)
        return "\n".join((self._how, self._url, self._prefix, self._region, self._authority, *lines))

    @classmethod
    def read(cls, text: str) -> "Inquiry":
        """Read back what `text` made. Raises Unanswered."""
        try:
            how, url, prefix, region, authority, *lines = text.split("\n")
            questions = [(kind, key, int(least)) for kind, least, key in (line.split(" ") for line in lines)]
        except ValueError as error:
            raise Unanswered from error
        return cls(how, url, prefix, region, authority, questions)

    def begin(self) -> None:
        """Begin to ask. Raises Unanswered, and OSError."""
        signing = keys(os.environ)
        program = spawn.found("curl", os.environ, os.getcwd())
        many = len(self._each) > _MOST_EACH if self._how == EACH else len(self._asked) > MOST_LISTED
        if signing is None or program is None or many or not self._is_plain():
            raise Unanswered
        if any(os.environ.get(name) for proxy in _PROXIES for name in (proxy, proxy.upper())):
            raise Unanswered
        common = self._common(signing)
        try:
            self._start(program, (), [*common, *self._listing()])
            if self._each:
                self._start(program, ("--parallel", "--parallel-max", _SIDE_BY_SIDE), [*common, *self._looking()])
        except OSError:
            self.stop()
            raise

    def end(self) -> "list[bytes]":
        """Wait, and return what there is to be seen of each question. Raises Unanswered, and OSError."""
        working, self._working = self._working, []
        said = spawn.ends(working, _MOST_BYTES, _LIMIT_S)
        if said is None:
            raise Unanswered
        try:
            listed = dict(_listed(said[0], len(self._lists)))
            told = dict(_told(said[1])) if self._each else {}
        except ValueError as error:
            raise Unanswered from error
        if len(told) != len(self._each):
            raise Unanswered
        return [line for question in self._asked for line in self._answered(question, listed, told)]

    def stop(self) -> None:
        """End what nobody has waited for."""
        while self._working:
            self._working.pop().stop()

    def _answered(
        self, question: Question, listed: "Mapping[str, bytes]", told: "Mapping[str, bytes]"
    ) -> "Iterator[bytes]":
        kind, key, least_bytes = question
        path = self._prefix + key
        if kind == BELOW:
            yield from (b"%b %b" % (found.encode(), is_) for found, is_ in listed.items() if found.startswith(path))
            return
        found = told[f"{self._url}/{path}"] if self._how == EACH else listed.get(path)
        size_bytes = found.partition(b" ")[0] if found is not None else b""
        # That it was absent, or short, before a command and after it does not mean that it was so in between.
        if found is None or int(size_bytes) < least_bytes:
            raise Unanswered
        yield size_bytes if kind == OBJECT else found

    def _is_plain(self) -> bool:
        scheme, _, rest = self._url.partition("://")
        text = f"{rest}/{self._prefix}{''.join(key for _, key, _ in self._asked)}{self._region}"
        return scheme in ("http", "https") and _PLAIN.issuperset(text) and self._authority.isprintable()

    def _common(self, signing: Keys) -> list[str]:
        access, secret, token = signing
        lines = [
            "silent",
            f"connect-timeout = {_CONNECT_S}",
            f"max-time = {_LIMIT_S}",
            f"user = {_quoted(f'{access}:{secret}')}",
            f'aws-sigv4 = "aws:amz:{self._region}:s3"',
            f'header = "x-amz-content-sha256: {_EMPTY_SHA256}"',
        ]
        if token:
            lines.append(f"header = {_quoted(f'x-amz-security-token: {token}')}")
        if self._authority:
            lines.append(f"cacert = {_quoted(self._authority)}")
        return lines

    def _listing(self) -> "Iterator[str]":
        yield "fail"
        yield 'write-out = "\\n--m5ws--\\n"'
        for key in self._lists:
            prefix = f"{self._prefix}{key}".replace("/", "%2F").replace(":", "%3A")
            yield f'url = "{self._url}?list-type=2&max-keys={MOST_LISTED}&prefix={prefix}"'

    def _looking(self) -> "Iterator[str]":
        yield "head"
        yield 'write-out = "%{http_code} %header{content-length} %header{etag} %{url}\\n"'
        for key in self._each:
            yield f'url = "{self._url}/{self._prefix}{key}"'
            yield 'output = "/dev/null"'

    def _start(self, program: str, words: "Sequence[str]", lines: "Sequence[str]") -> None:
        fed = "\n".join(lines).encode()
        if len(fed) > _PIPE_BYTES:
            raise Unanswered
        # Without its own file of settings, and without anybody's variables.
        self._working.append(spawn.start(program, ["curl", "-q", *words, "-K", "-"], {"LC_ALL": "C"}, fed))


def _quoted(text: str) -> str:
    if not text.isprintable():
        raise Unanswered
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _told(said: bytes) -> "Iterator[tuple[str, bytes]]":
    """Yield of each object that was asked for its URL, and its length and version. Raises ValueError."""
    for line in said.split(b"\n")[:-1]:
        status, length, version, url = line.split(b" ")
        if status != b"200" or not length.isdigit() or not version:
            raise ValueError(line)
        yield url.decode(), b"%b %b" % (length, version)


def _listed(said: bytes, lists: int) -> "Iterator[tuple[str, bytes]]":
    """Yield of each object in some lists its path, and its length and version. Raises ValueError: one is not whole."""
    *pages, rest = said.split(_PARTED)
    if len(pages) != lists or rest:
        raise ValueError(f"{len(pages)} lists")
    for page in pages:
        yield from _Page(page).found


class _Page:
    """A list of objects as a server tells it
    (https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html).
    """

    def __init__(self, text: bytes) -> None:
        from pyexpat import ExpatError, ParserCreate

        self.found: list[tuple[str, bytes]] = []
        self._within: list[str] = []
        self._texts: dict[str, str] = {}
        self._one: dict[str, str] = {}
        parser = ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._begun
        parser.CharacterDataHandler = self._read
        parser.EndElementHandler = self._ended
        try:
            parser.Parse(text, True)
        except (ExpatError, LookupError) as error:
            raise ValueError("no list of objects") from error
        whole = self._texts.get("IsTruncated") == "false"
        if not whole or self._texts.get("KeyCount", str(len(self.found))) != str(len(self.found)):
            raise ValueError("not all of a list")

    def _begun(self, name: str, _: object) -> None:
        self._within.append(name)
        if self._within[0] != "ListBucketResult":
            raise KeyError(name)
        if self._within[1:] == ["Contents"]:
            self._one = {}

    def _read(self, text: str) -> None:
        if len(self._within) == 2:
            self._texts[self._within[1]] = self._texts.get(self._within[1], "") + text
        elif len(self._within) == 3:
            self._one[self._within[2]] = self._one.get(self._within[2], "") + text

    def _ended(self, _: str) -> None:
        if self._within[1:] == ["Contents"]:
            self.found.append((self._one["Key"], f"{int(self._one['Size'])} {self._one['ETag']}".encode()))
        self._within.pop()
