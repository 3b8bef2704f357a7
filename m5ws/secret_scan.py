"""Secret detection before any byte reaches the store (promise 9).

Names and contents of files are checked separately. Values are never printed: a match names the file, the line and the
kind of secret. The kinds are in `secret_rules`.
"""

import codecs
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import BinaryIO

import msgspec

from m5ws import secret_rules, secret_text
from m5ws.errors import M5Error

SCANNED_BYTES = 1 << 20
"""Size of the part that is searched at each end of a file. A file of up to twice this size is searched completely."""

SMALL_BYTES = 1 << 16
"""Data files are searched up to this size. People write files this small by hand; training data is larger."""


_SHOWN = 100


class SecretMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A possible secret. `line` is 0 if the match concerns the whole file."""

    path: str
    line: int
    what: str


class SecretsFound(M5Error):
    """Files to capture seem to contain secrets. The error lists all of them."""

    def __init__(self, findings: Sequence[SecretMatch]) -> None:
        lines = [f"  {f.path}:{f.line}: {f.what}" if f.line else f"  {f.path}: {f.what}" for f in findings[:_SHOWN]]
        lines += [f"  and {len(findings) - _SHOWN:,} more"] if len(findings) > _SHOWN else []
        named = list(dict.fromkeys(finding.path for finding in findings))
        paths = ", ".join(f'"{path}"' for path in named[:_SHOWN]) + (", …" if len(named) > _SHOWN else "")
        super().__init__("\n".join(("possible secrets in files; no snapshot was made:", *lines)))
        self.hint = (
            f"Exclude the files ([code] exclude = [{paths}] in m5ws.toml, or .gitignore). If they contain no "
            f"secret, allow them ([secrets] allow = [{paths}])."
        )
        self.findings = tuple(findings)


_WORD = re.compile(rb"[A-Za-z0-9_.~+/-]{15,}")
"""Words that can be tokens: the shortest token has 15 bytes. Only these words, a tenth of a typical file, are
searched.
"""
_DIGIT = re.compile(rb"\d")
_MIXED = re.compile(rb"[A-Z0-9]")
"""Characters in every random token and in few names."""
_SIGNS = frozenset(b" \t\n\"'`=:,>|\\")
_BEFORE = 80
_BETWEEN = b" \t\r\n\"'`=:,>|\\"
_SIGN = re.compile(rb"[=:]|,|>|\|\|")
_ENDS = bytes(10 if byte in b"\n,;{}<" else byte for byte in range(256))
"""Replaces the bytes that end the name before a value, searched from right to left, by line ends."""


_PLACEHOLDER = re.compile(
    rb"(?i)^(?:pass(?:word|wd|phrase)?|pwd?|x+|\*+|\.{2,}|\xe2\x80\xa6|null|none|change_?me|todo|example|redacted"
    rb"|your[-_ ].*|my[-_ ].*|<.*|\$.*|\{.*|%.*)$"
)

_KEY_FILES = frozenset(("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"))
_KEY_STORES = (".p12", ".pfx", ".jks", ".keystore", ".ppk", ".kdbx")
_CREDENTIAL_FILES = re.compile(
    r"(?:^|/)(?:\.netrc|_netrc|\.pgpass|\.git-credentials|\.pypirc|\.boto|\.s3cfg|rclone\.conf"
    r"|\.aws/credentials|\.docker/config\.json|\.dockercfg|\.kube/config|kubeconfig|\.huggingface/token"
    r"|\.cache/huggingface/(?:token|stored_tokens)|application_default_credentials\.json|credentials\.db"
    r"|kaggle\.json|\.vault-token|\.terraformrc|\.my\.cnf|\.passwd-s3fs|\.dockerconfigjson|\.htpasswd"
    r"|\.config/gh/hosts\.yml|\.cargo/credentials(?:\.toml)?|\.gem/credentials|\.streamlit/secrets\.toml"
    r"|access_tokens\.db|accessTokens\.json|\.azure/.*token.*|\.dvc/config\.local|client_secrets?(?:_[^/]*)?\.json)$"
)
_TEMPLATE = re.compile(r"[.-](?:example|sample|template|tmpl|dist|defaults?|schema)$|^\.envrc$", re.IGNORECASE)
_ASSIGNMENT = re.compile(rb"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*[=:][ \t]*([^\n]*)$", re.MULTILINE)
_SECRET_NAME = re.compile(rb"(?i)key|token|secret|passw|pwd|credential|auth|dsn")


_PASSWORD_NAME = re.compile(
    r"(?i)(?:^|[_.-])(?:pass(?:word|wd|phrase)?|secret|(?:api|access|secret)[_-]?key|(?:api|access|auth)[_-]?token)$"
)
"""Name of an argument or config key whose value is a secret, whatever it looks like."""
_PASSWORD_CHARACTERS = 6
_ASSIGNED = re.compile(
    rb"(?i)(?:passw(?:or)?d|(?<![a-z0-9])(?:passphrase|secret|(?:api|access|secret)[_-]?key|(?:api|access|auth)[_-]?"
    rb"token))=[\"']?([^\s\"'`&,;)]{%d,})" % _PASSWORD_CHARACTERS
)
"""A value after such a name in a text for people."""
_known: set[bytes] = set()


def learn(values: Iterable[str]) -> None:
    """Mask these values in all texts of this process. They have no form of a secret, such as a URL of `[notify]`."""
    _known.update(value.encode() for value in values if len(value) >= _PASSWORD_CHARACTERS)


def kind_by_name(path: str) -> str | None:
    """Return the kind of secret that a path implies, or None. The content of `.env` files decides about such files."""
    name = path.rsplit("/", 1)[-1]
    if name in _KEY_FILES or name.lower().endswith(_KEY_STORES):
        return "a private key (by file name)"
    if _CREDENTIAL_FILES.search(path):
        return "a credentials file (by file name)"
    return None


def named_secret(variable: str) -> bool:
    """Return True if the name of an environment variable implies a secret value."""
    return _SECRET_NAME.search(variable.encode()) is not None and secret_rules.HARMLESS_NAME.search(variable) is None


def is_environment_file(path: str) -> bool:
    """Return True if a file sets environment variables (`.env`, `.env.local`, `prod.env`, `.envrc`)."""
    name = path.rsplit("/", 1)[-1].lower()
    return name in (".env", ".envrc") or name.startswith((".env.", ".env-", ".env_")) or name.endswith(".env")


def findings(path: str, data: bytes) -> list[SecretMatch]:
    """Return the possible secrets in the content of a file, ordered by line."""
    data = _utf8(data)
    matches = list(_environment(path, data)) if is_environment_file(path) else []
    if b"\0" not in data[:8192]:
        matches += [SecretMatch(path=path, line=_line(data, at), what=what) for what, at in _contents(data)]
    unique = {(finding.line, finding.what): finding for finding in matches}
    return [unique[key] for key in sorted(unique)]


def findings_in(path: str, file: BinaryIO) -> list[SecretMatch]:
    """Return the possible secrets in both ends of a file. Matches at the end of a large file have no line."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= 2 * SCANNED_BYTES:
        return findings(path, file.read())
    matches = findings(path, file.read(SCANNED_BYTES))
    file.seek(-SCANNED_BYTES, os.SEEK_END)
    last = [msgspec.structs.replace(finding, line=0) for finding in findings(path, file.read())]
    return matches + list(dict.fromkeys(last))


def _utf8(data: bytes) -> bytes:
    """Return text as UTF-8. UTF-16 is recognised by its byte order mark, or by zeros in every second byte."""
    mark = data[:2]
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        kind = "utf-16"
    elif b"\0" not in data[:64]:
        return data
    elif not any(data[1:64:2]) and all(data[0:64:2]):
        kind = "utf-16-le"
    elif not any(data[0:64:2]) and all(data[1:64:2]):
        kind = "utf-16-be"
    else:
        return data
    return data.decode(kind, "replace").encode("utf-8", "replace")


def masked(text: str) -> str:
    """Return text for people with each possible secret replaced by `***`. Colour codes inside a secret are ignored.

    The work is proportional to the length of the text.
    """
    data = text.encode("utf-8", "surrogateescape")
    plain, begins, origins = secret_text.without_colours(data)
    parts, at = list[bytes](), 0
    for first, last in sorted((start, end - 1) for start, end in _spans(plain) if end > start):
        start, end = (
            place - begins[i] + origins[i] for place in (first, last) for i in [bisect_right(begins, place) - 1]
        )
        if end >= at:
            parts += [data[at:start], b"***"] if start >= at else []
            at = end + 1
    return b"".join((*parts, data[at:])).decode("utf-8", "surrogateescape") if parts else text


def is_secret(name: str, value: str) -> bool:
    """Return True if the value of an argument, an override or a config key can be a secret, also by its name."""
    if masked(value) != value or masked(f"{name}={value}") != f"{name}={value}":
        return True
    real = len(value) >= _PASSWORD_CHARACTERS and not _PLACEHOLDER.match(value.encode("utf-8", "replace"))
    return real and _PASSWORD_NAME.search(name) is not None


def _spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each secret; a word that is a secret in one place is a secret in all places."""
    yield from secret_text.key_spans(data)
    words = _words(data)
    for _, word, start, end in (*_token_secrets(words), *_named_secrets(data, words)):
        yield from ((at + start, at + end) for at in words[word])
    for rule in secret_rules.select("text", data):
        yield from ((at, at + len(secret)) for secret, at in rule.secrets(data))
    for pattern, group in ((secret_text.URL_PASSWORD, 3), (secret_text.URL_TOKEN, 1)):
        yield from (match.span(group) for match in pattern.finditer(data))
    yield from (match.span(1) for _, match in secret_text.url_queries(data))
    yield from (match.span(1) for match in _ASSIGNED.finditer(data) if not _PLACEHOLDER.match(match[1]))
    yield from (match.span() for value in _known for match in re.finditer(re.escape(value), data))


def _contents(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield each possible secret in a text with its position; the first match at each position."""
    seen = set[int]()
    for what, secret, at in _secrets(data):
        if at not in seen:
            seen.add(at)
            yield f"{what} ({_blot(secret)})", at
    if b"://" not in data:
        return
    if b"@" in data:
        for match in secret_text.URL_PASSWORD.finditer(data):
            if not _PLACEHOLDER.match(match[3]) and match[2] != match[3] and secret_rules.is_strong(match[3]):
                yield (f"a password in a URL ({_show(match[1])}://…:***@…)", match.start())
        for match in secret_text.URL_TOKEN.finditer(data):
            if match.start(1) not in seen and secret_rules.is_strong(match[1]):
                yield f"a token in a URL ({_blot(match[1])})", match.start()
    if b"=" in data:
        for url, match in secret_text.url_queries(data):
            if not _PLACEHOLDER.match(match[1]) and match.start(1) not in seen and b"badge" not in url:
                yield f"a token in a URL ({_blot(match[1])})", match.start(1)


def _secrets(data: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Yield each secret with a known form or name: its kind, its bytes, and its first position."""
    words = _words(data)
    yield from ((what, word[start:end], words[word][0] + start) for what, word, start, end in _token_secrets(words))
    for rule in secret_rules.select("text", data):
        yield from ((rule.shown, secret, at) for secret, at in rule.secrets(data))
    # A word that stands elsewhere before may be a name, such as a type: `key: X25519PrivateKey`.
    first = {word: places[:1] for word, places in words.items()}
    yield from ((what, word[:end], words[word][0]) for what, word, _, end in _named_secrets(data, first))


def _words(data: bytes) -> dict[bytes, list[int]]:
    """Return the positions of each word that can be a token."""
    words = dict[bytes, list[int]]()
    # In a notebook, a line end is two characters of a JSON string.
    for match in _WORD.finditer(data.replace(b"\\n", b"  ")):
        words.setdefault(match[0], []).append(match.start())
    return words


def _token_secrets(words: Iterable[bytes]) -> Iterator[tuple[str, bytes, int, int]]:
    """Yield each secret in words: its kind, its word, and its begin and end in the word."""
    mixed = [word for word in words if _MIXED.search(word)]
    joined = b"\n%b\n" % b"\n".join(mixed)
    begins = list(accumulate((len(word) + 1 for word in mixed), initial=1))
    for rule in secret_rules.select("token", joined):
        for secret, at in rule.secrets(joined):
            place = bisect_right(begins, at) - 1
            start = at - begins[place]
            yield rule.shown, mixed[place], start, start + len(secret)


def _named_secrets(data: bytes, words: Mapping[bytes, Sequence[int]]) -> Iterator[tuple[str, bytes, int, int]]:
    """Yield each word that the name before it makes a secret, as `_token_secrets` does."""
    for word, places in words.items():
        value = word.rstrip(b".")
        for at in places if _DIGIT.search(word) else ():
            if at and data[at - 1] in _SIGNS:
                name = _name_before(data[max(0, at - _BEFORE) : at])
                if (rule := secret_rules.select_named(name, value)) is not None:
                    yield rule.shown, word, 0, len(value)
                    break


def _name_before(text: bytes) -> bytes:
    """Return the lower-case name that the next value is assigned to; empty if there is no assignment."""
    left = text.rstrip(_BETWEEN)
    if not _SIGN.search(text, len(left)):
        return b""
    return left.rstrip(b"\"'])\\ \t")[-60:].translate(_ENDS).rpartition(b"\n")[2].lower()


def _environment(path: str, data: bytes) -> Iterator[SecretMatch]:
    """Yield values that an environment file sets. In a template, only values that look real."""
    template = _TEMPLATE.search(path.rsplit("/", 1)[-1]) is not None
    for match in _ASSIGNMENT.finditer(data):
        name, value = match[1], match[2].rstrip(b" \t\r").strip(b"\"'")
        value = b"" if match[2].startswith(b"#") else value
        real = len(value) >= 12 and _SECRET_NAME.search(name) and not _PLACEHOLDER.match(value)
        if not value or (template and not real):
            continue
        yield SecretMatch(
            path=path, line=_line(data, match.start(1)), what=f"an environment file that sets {_show(name)}"
        )
        return
    if b"\0" in data:
        yield SecretMatch(path=path, line=0, what="an environment file that is not plain text")


def _line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _blot(value: bytes) -> str:
    """Return the public prefix of a value, followed by `***`."""
    head = re.match(rb"[A-Za-z]{2,10}[_-]|AKIA|ASIA|AIza|-----BEGIN[A-Z ]*", value)
    return f"{_show(head[0]) if head else ''}***"


def _show(value: bytes) -> str:
    return value.decode("ascii", "replace")
