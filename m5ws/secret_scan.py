"""Secret detection before any byte reaches the store (promise 9).

Names and contents of files are checked separately. Values are never printed: a match names the file, the line and the
kind of secret. The kinds are in `secret_rules`.
"""

import codecs
import os
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec

from m5ws import secret_rules
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


_URL_PASSWORD = re.compile(
    rb"\b([A-Za-z][A-Za-z0-9+.-]{0,20})://([^\s/:@\"'<>`]{0,256}):([^\s/@\"'<>`]{1,512})@[A-Za-z0-9\[]"
)
_URL_TOKEN = re.compile(rb"\bhttps?://([A-Za-z0-9_-]{20,512})@[A-Za-z0-9]")
_URL_QUERY = re.compile(
    rb"://[^\s\"'<>]{1,2048}?[?&](?:access_token|private_token|auth_token|token|api_?key|sig|X-Amz-Signature)"
    rb"=([A-Za-z0-9%+/_.=-]{8,})",
    re.IGNORECASE,
)
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
_ASSIGNMENT = re.compile(
    rb"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*[=:][ \t]*(.*?)[ \t\r]*$", re.MULTILINE
)
_SECRET_NAME = re.compile(rb"(?i)key|token|secret|passw|pwd|credential|auth|dsn")


_KEY_BODY = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:[\s\S]{0,20000}?-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|(?:(?:\s|\\[rn])*[A-Za-z0-9+/=]{16,})*)"
    rb"|PuTTY-User-Key-File-\d[\s\S]{0,20000}?Private-MAC: \w+"
)
"""A whole private key; the rules match only its first line. A truncated key matches up to its last line."""


def kind_by_name(path: str) -> str | None:
    """Return the kind of secret that a path implies, or None. The content of `.env` files decides about those."""
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
    """Return text for people with each possible secret replaced by `***`."""
    data = _KEY_BODY.sub(b"***", text.encode("utf-8", "surrogateescape"))
    for secret in sorted({secret for _, secret, _ in _secrets(data)}, key=len, reverse=True):
        data = data.replace(secret, b"***")
    data = _URL_PASSWORD.sub(lambda m: m[0].replace(b":" + m[3] + b"@", b":***@"), data)
    for pattern in (_URL_TOKEN, _URL_QUERY):
        data = pattern.sub(lambda m: m[0].replace(m[1], b"***"), data)
    return data.decode("utf-8", "surrogateescape")


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
        for match in _URL_PASSWORD.finditer(data):
            if not _PLACEHOLDER.match(match[3]) and match[2] != match[3] and secret_rules.is_strong(match[3]):
                yield (f"a password in a URL ({_show(match[1])}://…:***@…)", match.start())
        for match in _URL_TOKEN.finditer(data):
            if match.start(1) not in seen and secret_rules.is_strong(match[1]):
                yield f"a token in a URL ({_blot(match[1])})", match.start()
    if b"=" in data:
        for match in _URL_QUERY.finditer(data):
            if not _PLACEHOLDER.match(match[1]) and match.start(1) not in seen and b"badge" not in match[0]:
                yield f"a token in a URL ({_blot(match[1])})", match.start(1)


def _secrets(data: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Yield each secret with a known form or name: its kind, its bytes, and its first position."""
    words = dict[bytes, int]()
    # In a notebook, a line end is two characters of a JSON string.
    for match in _WORD.finditer(data.replace(b"\\n", b"  ")):
        words.setdefault(match[0], match.start())
    joined = b"\n%b\n" % b"\n".join(filter(_MIXED.search, words))
    for rule in secret_rules.select("token", joined):
        yield from ((rule.shown, secret, data.find(secret)) for secret, _ in rule.secrets(joined))
    for rule in secret_rules.select("text", data):
        yield from ((rule.shown, secret, at) for secret, at in rule.secrets(data))
    for word, at in words.items():
        if at and data[at - 1] in _SIGNS and _DIGIT.search(word):
            yield from _named_secrets(data, word.rstrip(b"."), at)


def _named_secrets(data: bytes, value: bytes, at: int) -> Iterator[tuple[str, bytes, int]]:
    """Yield the value at a position if the name before it makes it a secret."""
    name = _name_before(data[max(0, at - _BEFORE) : at])
    rule = secret_rules.select_named(name, value)
    if rule is not None:
        yield rule.shown, value, at


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
        name, value = match[1], match[2].strip(b"\"'")
        value = b"" if match[2].startswith(b"#") else value
        if not value or (template and (_PLACEHOLDER.match(value) or not _secret(name, value))):
            continue
        yield SecretMatch(
            path=path, line=_line(data, match.start(1)), what=f"an environment file that sets {_show(name)}"
        )
        return
    if b"\0" in data:
        yield SecretMatch(path=path, line=0, what="an environment file that is not plain text")


def _secret(name: bytes, value: bytes) -> bool:
    return len(value) >= 12 and _SECRET_NAME.search(name) is not None


def _line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _blot(value: bytes) -> str:
    """Return the public prefix of a value, followed by `***`."""
    head = re.match(rb"[A-Za-z]{2,10}[_-]|AKIA|ASIA|AIza|-----BEGIN[A-Z ]*", value)
    return f"{_show(head[0]) if head else ''}***"


def _show(value: bytes) -> str:
    return value.decode("ascii", "replace")
