"""Text that looks like a secret is found with its line and never printed. Ordinary code is accepted."""

from pathlib import Path

import pytest

from m5ws import secret_scan

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
def test_tokens_are_found_with_their_line_and_blotted_out(what: str) -> None:
    token = TOKENS[what]
    (finding,) = secret_scan.findings("a.py", f"x = 1\n\nkey = '{token}'\n".encode())
    assert (finding.path, finding.line) == ("a.py", 3)
    assert finding.what.startswith(what)
    assert token[10:] not in finding.what


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\\n"])
def test_private_keys(kind: str, end: str) -> None:
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
def test_tokens_in_urls(text: str) -> None:
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
def test_environment_files(path: str, text: str, refused: bool) -> None:
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
def test_names_that_say_it(path: str) -> None:
    assert secret_scan.kind_by_name(path) is not None


@pytest.mark.parametrize(
    "path", ["id_rsa.pub", "netrc.py", "docs/credentials.md", "config.json", "key.py", ".dvc/config"]
)
def test_names_that_do_not(path: str) -> None:
    assert secret_scan.kind_by_name(path) is None


def test_binary_files_are_not_looked_into() -> None:
    assert secret_scan.findings("a.bin", b"\0" + TOKENS["a GitHub token"].encode()) == []


def test_one_error_names_all_and_says_both_ways_out() -> None:
    found = [
        secret_scan.SecretMatch(path="a.py", line=3, what="x"),
        secret_scan.SecretMatch(path="id_rsa", line=0, what="y"),
    ]
    error = secret_scan.SecretsFound(found)
    assert "a.py:3: x" in str(error)
    assert "id_rsa: y" in str(error)
    assert '[code] exclude = ["a.py", "id_rsa"]' in error.hint
    assert "[secrets] allow" in error.hint


def test_text_for_people_is_blotted_out() -> None:
    text = f"use {TOKENS['a GitHub token']} at https://ada:hunter2@example.org"
    assert secret_scan.masked(text) == "use *** at https://ada:***@example.org"


def test_text_that_could_take_for_ever_does_not() -> None:
    for text in (
        "a." * 300_000,
        "://" * 200_000,
        "a://b:" * 100_000,
        "x" * 600_000 + "://@=",
        "?token=" * 100_000 + "://@",
    ):
        secret_scan.findings(".env", text.encode())


def test_m5ws_and_its_templates_pass() -> None:
    root = Path(__file__).parents[2]
    for path in [*root.glob("m5ws/**/*.py"), *root.glob("templates/**/*.py")]:
        assert secret_scan.findings(path.name, path.read_bytes()) == [], path
