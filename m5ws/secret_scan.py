"""Secrets are found before a byte of them reaches the store (promise 9).

What a file is called and what stands in it are judged apart. Values are never printed; a finding names the file,
the line and what it looks like. A rule rather misses a rare secret than calls ordinary code one.
"""

import functools
import re
from collections.abc import Iterator, Sequence

import msgspec

from m5ws.errors import M5Error

RULES = "1"
"""Changes with the rules, so that what older ones have passed is looked at again."""

SCANNED_BYTES = 1 << 20
"""Larger files are not looked into: no person writes code or config of that size."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that looks like a secret; `line` is 0 where it is the file as a whole."""

    path: str
    line: int
    what: str


class SecretsFound(M5Error):
    """Files to be captured look like they hold secrets. All of them are named at once."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        lines = [f"  {f.path}:{f.line}: {f.what}" if f.line else f"  {f.path}: {f.what}" for f in findings]
        paths = ", ".join(f'"{path}"' for path in dict.fromkeys(finding.path for finding in findings))
        super().__init__("\n".join(("this looks like secrets, and nothing was captured:", *lines)))
        self.hint = (
            f"Leave the files out ([code] exclude = [{paths}] in m5ws.toml, or .gitignore), or, if they hold no "
            f"secret, allow them ([secrets] allow = [{paths}])."
        )
        self.findings = tuple(findings)


class _Rule(msgspec.Struct, frozen=True):
    """`needle`: bytes without which `pattern` cannot match; searching for them is what makes a scan cheap."""

    what: str
    needle: bytes
    pattern: re.Pattern[bytes]


def _rule(what: str, needle: str, pattern: str) -> _Rule:
    return _Rule(what, needle.encode(), re.compile(pattern.encode()))


@functools.cache
def _rules() -> tuple[_Rule, ...]:
    """Return all rules; compiling them is not for a snapshot of which no file is read."""
    return (
        _rule(
            "a private key",
            "PRIVATE KEY",
            r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----\s{0,8}(?:\\[rn]){0,4}\s{0,8}[A-Za-z0-9+/=]",
        ),
        _rule("a PuTTY private key", "PuTTY-User-Key", r"(?m)^PuTTY-User-Key-File-\d"),
        *(_rule("a GitHub token", f"gh{kind}_", rf"\bgh{kind}_[A-Za-z0-9]{{30,}}") for kind in "pousr"),
        _rule("a GitHub token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{40,}"),
        _rule("a GitLab token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20,}"),
        _rule("a Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{30,}\b"),
        _rule("an AWS access key", "AKIA", r"\bAKIA(?![A-Z0-9]{9}EXAMPLE)[A-Z0-9]{16}\b"),
        _rule("an AWS access key", "ASIA", r"\bASIA(?![A-Z0-9]{9}EXAMPLE)[A-Z0-9]{16}\b"),
        _rule(
            "an AWS secret key",
            "aws_secret_access_key",
            r"aws_secret_access_key[\"']?\s*[=:]\s*[\"']?(?![A-Za-z0-9/+]{30}EXAMPLEKEY)[A-Za-z0-9/+]{40}\b",
        ),
        _rule("a Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
        _rule("a Slack token", "xapp-", r"\bxapp-\d-[A-Za-z0-9-]{20,}"),
        _rule("a Slack webhook", "hooks.slack.com", r"hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/\w{20,}"),
        _rule("a Google API key", "AIza", r"\bAIza[A-Za-z0-9_-]{35}\b"),
        _rule(
            "an OpenAI or Anthropic key", "sk-", r"\bsk-(?:(?:proj|ant|svcacct)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{40,})"
        ),
        _rule("an npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
        _rule("a PyPI token", "pypi-", r"\bpypi-[A-Za-z0-9_-]{50,}"),
        _rule("an Azure storage key", "AccountKey=", r"AccountKey=[A-Za-z0-9+/]{60,}"),
    )


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
    r"|access_tokens\.db|accessTokens\.json|\.azure/.*token.*|\.dvc/config\.local|client_secrets?(?:_[^/]*)?\.json)$"
)
_TEMPLATE = re.compile(r"[.-](?:example|sample|template|tmpl|dist|defaults?|schema)$|^\.envrc$", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    rb"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*[=:][ \t]*(.*?)[ \t\r]*$", re.MULTILINE
)
_HARMLESS = re.compile(r"(?i)tokenizers?_|_tokens?_per|max_tokens|keyboard|monkey")
_SECRET_NAME = re.compile(rb"(?i)key|token|secret|passw|pwd|credential|auth|dsn")


def named(path: str) -> str | None:
    """Return what a path alone gives away, or None; `.env` files are judged by their content."""
    name = path.rsplit("/", 1)[-1]
    if name in _KEY_FILES or name.lower().endswith(_KEY_STORES):
        return "a private key, by its name"
    if _CREDENTIAL_FILES.search(path):
        return "a file of credentials, by its name"
    return None


def named_secret(variable: str) -> bool:
    """Return whether an environment variable's name says that its value is a secret."""
    return _SECRET_NAME.search(variable.encode()) is not None and _HARMLESS.search(variable) is None


def is_environment_file(path: str) -> bool:
    """Return whether a file sets environment variables (`.env`, `.env.local`, `prod.env`, `.envrc`)."""
    name = path.rsplit("/", 1)[-1].lower()
    return name in (".env", ".envrc") or name.startswith((".env.", ".env-", ".env_")) or name.endswith(".env")


def findings(path: str, data: bytes) -> list[Finding]:
    """Return what of a file's content looks like a secret, in the order of lines."""
    found = list(_environment(path, data)) if is_environment_file(path) else []
    if b"\0" not in data[:8192]:
        found += [Finding(path=path, line=_line(data, at), what=what) for what, at in _contents(data)]
    unique = {(finding.line, finding.what): finding for finding in found}
    return [unique[key] for key in sorted(unique)]


def masked(text: str) -> str:
    """Return text for people with what looks like a secret blotted out."""
    data = text.encode("utf-8", "surrogateescape")
    for rule in _rules():
        data = rule.pattern.sub(b"***", data)
    data = _URL_PASSWORD.sub(lambda m: m[0].replace(b":" + m[3] + b"@", b":***@"), data)
    for pattern in (_URL_TOKEN, _URL_QUERY):
        data = pattern.sub(lambda m: m[0].replace(m[1], b"***"), data)
    return data.decode("utf-8", "surrogateescape")


def _contents(data: bytes) -> Iterator[tuple[str, int]]:
    for rule in _rules():
        if rule.needle in data:
            yield from ((f"{rule.what} ({_blot(m[0])})", m.start()) for m in rule.pattern.finditer(data))
    if b"://" not in data:
        return
    if b"@" in data:
        for match in _URL_PASSWORD.finditer(data):
            if not _PLACEHOLDER.match(match[3]):
                yield (f"a password in a URL ({_show(match[1])}://…:***@…)", match.start())
        yield from ((f"a token in a URL ({_blot(m[1])})", m.start()) for m in _URL_TOKEN.finditer(data))
    if b"=" in data:
        for match in _URL_QUERY.finditer(data):
            if not _PLACEHOLDER.match(match[1]):
                yield f"a token in a URL ({_blot(match[1])})", match.start(1)


def _environment(path: str, data: bytes) -> Iterator[Finding]:
    """Yield the values that an environment file sets; in an example only those that look like somebody's own."""
    template = _TEMPLATE.search(path.rsplit("/", 1)[-1]) is not None
    for match in _ASSIGNMENT.finditer(data):
        name, value = match[1], match[2].strip(b"\"'")
        value = b"" if match[2].startswith(b"#") else value
        if not value or (template and (_PLACEHOLDER.match(value) or not _secret(name, value))):
            continue
        yield Finding(path=path, line=_line(data, match.start(1)), what=f"an environment file that sets {_show(name)}")
        return
    if b"\0" in data:
        yield Finding(path=path, line=0, what="an environment file that is not plain text")


def _secret(name: bytes, value: bytes) -> bool:
    return len(value) >= 12 and _SECRET_NAME.search(name) is not None


def _line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _blot(value: bytes) -> str:
    """Return enough of a value to find it again, and no more: its public prefix."""
    head = re.match(rb"[A-Za-z]{2,10}[_-]|AKIA|ASIA|AIza|-----BEGIN[A-Z ]*", value)
    return f"{_show(head[0]) if head else ''}***"


def _show(value: bytes) -> str:
    return value.decode("ascii", "replace")
