"""200 secrets of more than 60 kinds, planted as people write them, and the files of everything that is installed here.

No secret here is real: each is drawn when the test runs, and no line of this file looks like one.
"""

import base64
import random
import string
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from m5ws import secret_scan

SEED = 2026
PLANTED = 200
LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + "234567"
Kind = Callable[[random.Random], str]


def text(chance: random.Random, size: int, alphabet: str = LETTERS) -> str:
    return "".join(chance.choices(alphabet, k=size))


def token(head: str, size: int, alphabet: str = LETTERS, tail: str = "") -> Kind:
    """A token that is known by how it begins; in a source it comes as a string, a variable or a word of a command."""
    shapes = ("client = Client('{}')", 'key: "{}"', "export X={}", "curl -H 'X-Key: {}' https://example.org", "{}")
    return lambda chance: chance.choice(shapes).format(head + text(chance, size, alphabet) + tail)


def named(name: str, size: int, alphabet: str = LETTERS) -> Kind:
    """A value that is known by its name, in any case, assigned in one of the ways of shells, YAML, JSON and Python."""
    shapes = ("export {}={}", "{}: {}", '"{}": "{}",', "{} = '{}'", 'os.environ["{}"] = "{}"', "{}={}")

    def make(chance: random.Random) -> str:
        written = chance.choice((name, name.upper(), name.lower(), name.title()))
        return chance.choice(shapes).format(written, text(chance, size, alphabet))

    return make


KINDS: dict[str, Kind] = {
    "github": token("gh" + "p_", 36),
    "github server": token("gh" + "s_", 36),
    "github fine": token("github" + "_pat_", 22, tail="_" + "a1B2" * 14),
    "gitlab": token("gl" + "pat-", 20),
    "gitlab runner": token("gl" + "rt-", 20),
    "gitlab deploy": token("gl" + "dt-", 20),
    "hugging face": token("h" + "f_", 34),
    "hugging face org": token("api" + "_org_", 34),
    "wandb": named("WANDB_API" + "_KEY", 40, HEX),
    "wandb new": token("wandb" + "_v1_", 60),
    "wandb call": lambda c: "wandb.login(key='" + text(c, 40, HEX) + "')",
    "aws id": token("AK" + "IA", 16, UPPER),
    "aws secret": named("aws_secret" + "_access_key", 40),
    "aws camel": named("Secret" + "AccessKey", 40),
    "aws session": named("AWS_SESSION" + "_TOKEN", 300),
    "slack": token("xox" + "b-123456789012-123456789012-", 24),
    "slack hook": token("https://hooks.slack" + ".com/services/T0ABCDEF1/B0ABCDEF1/", 24),
    "google": token("AI" + "za", 35),
    "google oauth": token("ya" + "29.", 120),
    "google refresh": token("1/" + "/0", 60),
    "google client": token("GOC" + "SPX-", 28),
    "openai": token("s" + "k-", 48),
    "openai project": token("s" + "k-proj-", 120),
    "openai service": token("s" + "k-svcacct-", 60),
    "openai admin": token("s" + "k-admin-", 60),
    "anthropic": token("s" + "k-ant-api03-", 90, tail="AA"),
    "openrouter": token("s" + "k-or-v1-", 64, HEX),
    "groq": token("gs" + "k_", 52),
    "replicate": token("r" + "8_", 37),
    "xai": token("xa" + "i-", 80),
    "perplexity": token("pp" + "lx-", 48),
    "nvidia": token("nv" + "api-", 64),
    "together": named("TOGETHER_API" + "_KEY", 64, HEX),
    "fireworks": token("f" + "w_", 24),
    "cohere": named("COHERE_API" + "_KEY", 40),
    "comet": named("COMET_API" + "_KEY", 25),
    "neptune": named("NEPTUNE_API" + "_TOKEN", 140),
    "clearml": named("CLEARML_API_SECRET" + "_KEY", 50),
    "lightning": named("LIGHTNING_API" + "_KEY", 36),
    "stripe": token("sk" + "_live_", 24),
    "stripe rk": token("rk" + "_live_", 24),
    "twilio": token("S" + "K", 32, HEX),
    "sendgrid": token("S" + "G.", 22, tail="." + "a1B2c3D4e5F" * 3 + "a1B2c3D4e5"),
    "mailgun": token("ke" + "y-", 32, HEX),
    "discord hook": token("https://discord.com/api" + "/webhooks/123456789012345678/", 68),
    "telegram": token("123456789:" + "AA", 33),
    "npm": token("np" + "m_", 36),
    "pypi": token("py" + "pi-AgEIcHlwaS5vcmc", 150),
    "docker": token("dckr" + "_pat_", 27),
    "vault": token("hv" + "s.", 90),
    "databricks": token("da" + "pi", 32, HEX),
    "digitalocean": token("dop" + "_v1_", 64, HEX),
    "linear": token("lin" + "_api_", 40),
    "notion": token("nt" + "n_", 46),
    "shopify": token("shp" + "at_", 32, HEX),
    "age": token("AGE-SECRET" + "-KEY-1", 58, UPPER),
    "terraform": lambda c: text(c, 14) + ".atlas" + "v1." + text(c, 64),
    "azure storage": lambda c: "DefaultEndpointsProtocol=https;AccountName=x;Account" + "Key=" + text(c, 86) + "==",
    "azure client": named("AZURE_CLIENT" + "_SECRET", 37),
    "azure sas": token("https://x.blob.core.windows.net/c?sp=r&" + "sig=", 43),
    "jwt": lambda c: "token = 'eyJ" + text(c, 33) + "." + text(c, 80) + "." + text(c, 43) + "'",
    "bearer": lambda c: "Authorization: Bear" + "er " + text(c, 60),
    "basic": lambda c: "Authorization: Bas" + "ic " + base64.b64encode(text(c, 24).encode()).decode(),
    "postgres": lambda c: "postgres" + f"://admin:{text(c, 9)}7a@db.corp.net/x",
    "redis": lambda c: "redis" + f"://:{text(c, 9)}7a@cache:6379/0",
    "pem": lambda c: "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow" + text(c, 64),
    "openssh": lambda c: "-----BEGIN OPENSSH PRIVATE " + "KEY-----\nb3BlbnNza" + text(c, 64),
    "google json": lambda c: '{"private_key":"-----BEGIN PRIVATE ' + "KEY-----\\nMII" + text(c, 60) + '\\n"}',
    "kubeconfig": lambda c: (
        "client-key-data: "
        + base64.b64encode(("-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow" + text(c, 200)).encode()).decode()
    ),
    "docker auth": lambda c: '{"auths":{"ghcr.io":{"auth":"' + base64.b64encode(text(c, 40).encode()).decode() + '"}}}',
    "netrc": lambda c: "machine api.wandb.ai login user pass" + f"word {text(c, 40, HEX)}",
    "password": lambda c: "pass" + f"word = 'S3{text(c, 9)}!9'",
    "any token": named("SERVICE_API" + "_TOKEN", 32),
    "any secret": named("client" + "_secret", 40),
    "digits": named("my_api" + "_key", 32, HEX),
}


def planted() -> Iterator[tuple[str, str]]:
    """Yield secrets with their kinds, each kind about as often, as lines of a file."""
    chance = random.Random(SEED)
    for number in range(PLANTED):
        kind = sorted(KINDS)[number % len(KINDS)]
        yield kind, KINDS[kind](chance)


def test_planted_secrets_are_refused() -> None:
    missed = [kind for kind, line in planted() if not secret_scan.findings("a.txt", f"lr: 1\n{line}\n".encode())]
    assert len(KINDS) >= 60
    assert len(missed) <= 5, missed


def test_no_finding_shows_a_secret() -> None:
    for kind, line in planted():
        longest = max(line.replace("'", " ").replace('"', " ").replace("=", " ").split(), key=len)
        shown = " ".join(found.what for found in secret_scan.findings("a.txt", line.encode()))
        assert longest[-12:] not in shown, kind


def test_every_refused_secret_is_masked() -> None:
    for kind, line in planted():
        if secret_scan.findings("a.txt", line.encode()):
            assert secret_scan.masked(line) != line, kind


@pytest.mark.parametrize("end", ["-----END RSA PRIVATE " + "KEY-----\n", ""])
@pytest.mark.parametrize("newline", ["\n", "\\n"])
def test_all_of_a_private_key_is_masked(end: str, newline: str) -> None:
    lines = [text(random.Random(number), 64) for number in range(8)]
    key = newline.join(["-----BEGIN RSA PRIVATE " + "KEY-----", *lines, end])
    masked = secret_scan.masked(f"login\n{key}" + ("\nbye" if end else ""))
    assert not any(line in masked for line in lines)
    assert masked.startswith("login\n***") and masked.endswith("bye") == bool(end)


def test_a_token_of_npmrc_is_found_and_a_variable_is_not() -> None:
    assert secret_scan.findings(".npmrc", b"//registry.corp/:_auth" + b"Token=8f1a0c2e-77aa-4b1d-9a7c-5d2b0e1f3a6b\n")
    assert not secret_scan.findings(".npmrc", b"//registry.corp/:_auth" + b"Token=${NPM_TOKEN}\n")


@pytest.mark.parametrize("every", [pytest.param(30, marks=pytest.mark.long), pytest.param(1, marks=pytest.mark.soak)])
def test_texts_of_installed_packages_are_not_refused(every: int) -> None:
    """At most one of 10,000 text files is refused. Two files of moto are real private keys."""
    keys = ("moto/moto_proxy/ca.key", "moto/moto_proxy/cert.key")
    texts, refused = 0, []
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*"))[::every]:
        if path.suffix in {".pyc", ".so"} or not path.is_file():
            continue
        with path.open("rb") as file:
            text = b"\0" not in file.read(8192)
            texts += text
            found = secret_scan.kind_by_name(path.as_posix()) or (text and secret_scan.findings_in(path.name, file))
        if found and not path.as_posix().endswith(keys):
            refused.append(path)
    assert texts > 1000
    # A sample may have all files that are refused.
    assert len(refused) * 10_000 <= texts * every, (texts, refused)


def test_a_name_of_a_type_and_the_token_of_a_badge_are_not_refused() -> None:
    code = b"from keys import X25519PrivateKey\n\n\ndef load(private_key: X25519PrivateKey) -> None: ...\n"
    badge = b"![ci](https://codecov.io/gh/org/project/branch/main/graph/badge.svg?to" + b"ken=GU63K7WDBE)\n"
    assert not secret_scan.findings("keys.py", code) and not secret_scan.findings("README.md", badge)
    assert secret_scan.findings("README.md", badge.replace(b"badge", b"chart"))
