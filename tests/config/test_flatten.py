"""Config files as flat keys."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config.flatten import flatten

YAML = b"""
optimizer:
  lr: 1e-3
  betas: [0.9, 0.95]
model: {layers: 4, bias: false}
note: "1"
empty: {}
nothing:
"""
_MULTIPLIED = b"a0: &a0 [1, 2]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 60))
"""Sixty lines that stand for 2**60 values."""


def test_yaml_is_flattened_into_dotted_keys() -> None:
    assert flatten("config.yaml", YAML) == {
        "optimizer.lr": "0.001",
        "optimizer.betas.0": "0.9",
        "optimizer.betas.1": "0.95",
        "model.layers": "4",
        "model.bias": "false",
        "note": '"1"',
        "empty": "{}",
        "nothing": "null",
    }


def test_toml_and_json_give_the_same_keys_as_yaml() -> None:
    assert flatten("c.toml", b"[a]\nb = 1\nc = [true]\n") == flatten("c.json", b'{"a": {"b": 1, "c": [true]}}')


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("c.yaml", b"a: [1"),
        ("c.yaml", b"a: 1\na: 2\n"),
        ("c.yaml", b"!!python/object/apply:os.getcwd []"),
        ("c.yaml", b"a: &x [*x]"),
        ("c.yaml", _MULTIPLIED),
        ("c.yaml", b"\xff\xfe\x00"),
        ("c.json", b"{"),
        ("c.toml", b"a = "),
        ("c.ini", b"a = 1"),
    ],
)
def test_an_invalid_file_has_no_keys(name: str, data: bytes) -> None:
    assert flatten(name, data) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), values, max_size=4))
def test_equal_documents_have_equal_keys_and_readable_values(document: dict[str, object]) -> None:
    text = json.dumps(document)
    keys = flatten("c.json", text.encode())
    assert keys == flatten("c.json", json.dumps(document, indent=2).encode())
    assert keys is not None
    for shown in keys.values():
        json.loads(shown)
