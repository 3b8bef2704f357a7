"""Text that looks like a secret is found with its line and never printed. Ordinary code is accepted."""

import re
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws import secret_rules, secret_scan, secret_text

# Joined here, so that no line of this file looks like a secret.
_TOKEN = "ghp" + "_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def _whats(path: str, text: str) -> list[str]:
    return [finding.what for finding in secret_scan.findings(path, text.encode())]


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
    assert secret_scan.findings("a.bin", b"\0" + _TOKEN.encode()) == []


def test_secrets_in_text_for_people_are_masked() -> None:
    text = f"use {_TOKEN} at https://ada:hunter2@example.org"
    assert secret_scan.masked(text) == "use *** at https://ada:***@example.org"


@pytest.mark.parametrize(
    "text",
    ["password={}", "PGPASSWORD={} psql", "login(passwd='{}')", "API_KEY={}", "?client_secret={}&x=1", "auth-token={}"],
)
def test_the_value_after_a_name_of_a_secret_is_masked_whatever_it_looks_like(text: str) -> None:
    assert secret_scan.masked(text.format("hunter2")) == text.format("***")
    assert secret_scan.masked(text.format("$HIDDEN")) == text.format("$HIDDEN")


def test_m5ws_and_its_templates_contain_no_secrets() -> None:
    root = Path(__file__).parents[2]
    for path in [*root.glob("m5ws/**/*.py"), *root.glob("templates/**/*.py")]:
        assert secret_scan.findings(path.name, path.read_bytes()) == [], path


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
