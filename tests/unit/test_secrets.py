"""Text that looks like a secret is found with its line and never printed. Ordinary code is accepted."""

import re
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws import secret_rules, secret_scan, secret_text

# Joined here, so that no line of this file looks like a secret.
PEM = "-----BEGIN {}PRIVATE KEY-----"
TOKENS = {
    "a GitHub token": "gh" + "p_" + "a1B2" * 9,
    "a Hugging Face token": "h" + "f_" + "aBcD" * 8 + "xy",
    "an AWS access key": "AK" + "IA" + "Q3EXAMPLF7ABCDEF",
    "a Slack token": "xox" + "b-123456789012-abcdef",
    "a GitLab token": "glp" + "at-" + "abcdefghij0123456789",
    "an OpenAI or Anthropic key": "s" + "k-proj-" + "abcdefghij0123456789",
    "a Google API key": "AI" + "za" + "b" * 35,
}


def _whats(path: str, text: str) -> list[str]:
    return [finding.what for finding in secret_scan.findings(path, text.encode())]


@pytest.mark.parametrize("what", TOKENS)
def test_tokens_are_found_with_their_line_and_masked(what: str) -> None:
    token = TOKENS[what]
    (finding,) = secret_scan.findings("a.py", f"x = 1\n\nkey = '{token}'\n".encode())
    assert (finding.path, finding.line) == ("a.py", 3)
    assert finding.what.startswith(what)
    assert token[10:] not in finding.what


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\\n"])
def test_private_keys_are_found(kind: str, end: str) -> None:
    assert _whats("k.txt", f"{PEM.format(kind)}{end}MIIEow") == [f"a private key (-----BEGIN {kind}PRIVATE KEY***)"]


@pytest.mark.parametrize(
    "text",
    [
        "git clone https://ada:hunter2@example.org/x",
        "url = 'postgres://app:s3cr3t@db.example.org/app'",
        "https://" + "abcdefghij0123456789" + "@example.org/r",
        "wget 'https://example.org/f?access_" + "token=abcdefgh'",
        "https://b.s3.amazonaws.com/k?X-Amz-" + "Signature=0123456789abcdef",
    ],
)
def test_secrets_in_urls_are_found_and_masked(text: str) -> None:
    (what,) = _whats("a.sh", text)
    assert "URL" in what
    assert "hunter2" not in what


@pytest.mark.parametrize(
    "text",
    [
        "https://user:password@example.org",
        "f'postgres://{user}:{password}@{host}/x'",
        "https://$USER:$TOKEN@example.org",
        "https://<user>:<token>@example.org",
        "git@github.com:o/r.git  ssh://git@host/r",
        "http://localhost:8080/@scope/x",
        "hf_hub_download  skip-this-one task-" + "a" * 50,
        "AKIA" + "IOSFODNN7EXAMPLE",
        "'-----BEGIN PRIVATE KEY-----' in text",
        "token = os.environ['GH_TOKEN']",
        "https://example.org/?page_token=abcdefghij",
    ],
)
def test_ordinary_code_is_left_alone(text: str) -> None:
    assert _whats("a.py", text) == []


@pytest.mark.parametrize(
    ("path", "text", "refused"),
    [
        (".env", "A=1\n", True),
        ("deep/.env.local", "export A='x'", True),
        ("prod.env", "A=1", True),
        (".env", "# nothing\n\nA=\nB=''\n", False),
        (".env.example", "API_KEY=\nPORT=8080\nTOKEN=<your token>\nSECRET=changeme\n", False),
        (".env.example", "API_KEY=9f8e7d6c5b4a3f2e1d0c\n", True),
        (".env.sample", "API_KEY=your-key-comes-here\n", False),
        (".envrc", "layout python\nexport PYTHONPATH=src\n", False),
        ("environment.yml", "name: x\n", False),
        ("envs.py", "A=1", False),
    ],
)
def test_environment_files_are_refused_only_with_secrets(path: str, text: str, refused: bool) -> None:
    assert bool(_whats(path, text)) is refused


@pytest.mark.parametrize(
    "path",
    [
        "id_rsa",
        "keys/id_ed25519",
        "a/b.p12",
        ".netrc",
        "home/.aws/credentials",
        ".docker/config.json",
        ".dvc/config.local",
        "data/kaggle.json",
        "x/.pypirc",
    ],
)
def test_file_names_of_secrets_are_recognised(path: str) -> None:
    assert secret_scan.kind_by_name(path) is not None


@pytest.mark.parametrize(
    "path", ["id_rsa.pub", "netrc.py", "docs/credentials.md", "config.json", "key.py", ".dvc/config"]
)
def test_ordinary_file_names_are_not_recognised_as_secrets(path: str) -> None:
    assert secret_scan.kind_by_name(path) is None


def test_binary_files_are_not_looked_into() -> None:
    assert secret_scan.findings("a.bin", b"\0" + TOKENS["a GitHub token"].encode()) == []


def test_an_error_lists_all_secrets_and_both_remedies() -> None:
    found = [
        secret_scan.SecretMatch(path="a.py", line=3, what="x"),
        secret_scan.SecretMatch(path="id_rsa", line=0, what="y"),
    ]
    error = secret_scan.SecretsFound(found)
    assert "a.py:3: x" in str(error)
    assert "id_rsa: y" in str(error)
    assert '[code] exclude = ["a.py", "id_rsa"]' in error.hint
    assert "[secrets] allow" in error.hint


def test_secrets_in_text_for_people_are_masked() -> None:
    text = f"use {TOKENS['a GitHub token']} at https://ada:hunter2@example.org"
    assert secret_scan.masked(text) == "use *** at https://ada:***@example.org"


def test_hostile_text_is_searched_in_bounded_time() -> None:
    for text in (
        "a." * 300_000,
        "://" * 200_000,
        "a://b:" * 100_000,
        "x" * 600_000 + "://@=",
        "?token=" * 100_000 + "://@",
    ):
        secret_scan.findings(".env", text.encode())


def test_m5ws_and_its_templates_contain_no_secrets() -> None:
    root = Path(__file__).parents[2]
    for path in [*root.glob("m5ws/**/*.py"), *root.glob("templates/**/*.py")]:
        assert secret_scan.findings(path.name, path.read_bytes()) == [], path


_TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
_codes = st.sampled_from(["\x1b[0m", "\x1b[31m", "\x1b[1;38;5;9m", "\x1b[K"])


@given(st.lists(st.tuples(st.integers(1, len(_TOKEN) - 1), _codes), max_size=5), st.text("ab \n", max_size=9))
def test_colour_codes_do_not_hide_a_secret(codes: list[tuple[int, str]], around: str) -> None:
    coloured = _TOKEN
    for place, code in sorted(codes, reverse=True):
        coloured = coloured[:place] + code + coloured[place:]
    assert secret_scan.masked(f"{around} {coloured} \x1b[1m{around}") == f"{around} *** \x1b[1m{around}"


def test_no_rule_has_a_lazy_quantifier() -> None:
    """A lazy quantifier after a start that repeats costs the square of the text."""
    modules = (secret_scan, secret_text, secret_rules)
    compiled = [value for module in modules for value in vars(module).values() if isinstance(value, re.Pattern)]
    rules = secret_rules.load()
    patterns = [each.pattern for each in compiled]
    patterns += [rule.pattern for rule in (*rules.token, *rules.text)] + [rule.name for rule in rules.named]
    assert not [pattern for pattern in patterns if str(_constants.MIN_REPEAT) in str(_parser.parse(pattern))]


@pytest.mark.parametrize(
    "piece",
    [
        "-----BEGIN RSA PRIVATE KEY-----\n", "://a?", "https://u:p", "?token=abcdefgh", f"{_TOKEN} ", "\x1b[0m",
        "api_key=", "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=", "password: '", "a1b2-", "\\n",
    ],
)  # fmt: skip
def test_the_work_is_proportional_to_the_text(piece: str) -> None:
    """Quadratic work on half a megabyte takes hours, and the time limit of tests ends it."""
    text = piece * (2**19 // len(piece))
    assert len(secret_scan.masked(text)) <= len(text)
    assert len(secret_scan.findings(".env", text.encode())) <= len(text)


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("wandb_api_key", "9f8e7d6c5b4a392817069f8e7d6c5b4a39281706", True),
        ("api-key", "9f8e7d6c5b4a39281706", True),
        ("db.password", "hunter2hunter2", True),
        ("secret", "correcthorse", True),
        ("x", _TOKEN, True),
        ("lr", "0.001", False),
        ("tokenizer", "gpt2-medium-bpe-50257", False),
        ("num_tokens", "100000000", False),
        ("key_dim", "64", False),
        ("password", "${PASSWORD}", False),
        ("api_key", "EMPTY", False),
        ("use_auth_token", "False", False),
        ("data", "corpora/web/2026-11-26", False),
        ("revision", "9f8e7d6c5b4a392817069f8e7d6c5b4a39281706", False),
    ],
)
def test_the_name_and_the_value_decide_if_a_value_is_a_secret(name: str, value: str, is_secret: bool) -> None:
    assert secret_scan.is_secret(name, value) == is_secret
