"""Hashes in lock files, as the tools write them."""

import pytest

from m5ws.environment.rebuild.lock_files import hashes

A, B = "a" * 64, "b" * 64

_REQUIREMENTS = f"""
# comment
Green_Eggs==1.2 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
ham[spam]==3.0 ; python_version >= "3.8" --hash=sha256:{A}
plain==1.0
-e ./here
"""
_UV = f"""
version = 1
[[package]]
name = "green-eggs"
version = "1.2"
source = {{ registry = "https://pypi.org/simple" }}
sdist = {{ url = "https://example.org/a.tar.gz", hash = "sha256:{A}", size = 10 }}
wheels = [ {{ url = "https://example.org/a.whl", hash = "sha256:{B}", size = 10 }} ]
[[package]]
name = "here"
source = {{ editable = "." }}
"""
_POETRY = f"""
[[package]]
name = "Green.Eggs"
version = "1.2"
files = [ {{file = "a.whl", hash = "sha256:{A}"}},
  {{file = "a.tar.gz", hash = "sha256:{B}"}}, {{file = "a.zip", hash = "md5:00"}} ]
"""
_PYLOCK = f"""
lock-version = "1.0"
[[packages]]
name = "green-eggs"
version = "1.2"
wheels = [ {{ name = "a.whl", hashes = {{ sha256 = "{A}" }} }} ]
[packages.sdist]
hashes = {{ sha256 = "{B}" }}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("requirements.txt", _REQUIREMENTS), ("uv.lock", _UV), ("poetry.lock", _POETRY), ("pylock.toml", _PYLOCK)],
)
def test_each_form_is_read(name: str, text: str) -> None:
    table = hashes(name, text.encode())
    assert table[("green-eggs", "1.2")] == {A, B}
    assert ("plain", "1.0") not in table and ("here", "") not in table


def test_a_marker_stands_between_version_and_hash() -> None:
    assert hashes("requirements.txt", _REQUIREMENTS.encode())[("ham", "3.0")] == {A}


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[[package]\n", b"package = 7\n", b'package = [{name = "a"}]\n'])
def test_what_cannot_be_read_names_none(data: bytes) -> None:
    assert hashes("uv.lock", data) == {}


def test_what_is_no_hash_never_becomes_a_word_of_pip_s() -> None:
    text = (
        '[[packages]]\nname = "a"\nversion = "1"\n[[packages.wheels]]\n'
        f'hashes = {{ sha256 = "{A}\\n--index-url=http://there" }}\n'
    )
    assert hashes("pylock.toml", text.encode()) == {}


def test_a_lock_file_that_is_nested_too_deep_names_none() -> None:
    assert hashes("uv.lock", b"a = " + b"[" * 20_000) == {}
