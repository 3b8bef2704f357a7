"""The plain codec returns equal values, with types and bits, and names values that it cannot store."""

import math
import random
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from m5ws.records import codec
from m5ws.training.state import plain_state, rng
from m5ws.training.state.plain_state import StateError

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.just("!"), inner, max_size=4)
        | st.dictionaries(st.integers(), inner, max_size=4)
    ),
    max_leaves=10,
)


def there_and_back(value: Any) -> Any:
    return plain_state.decode(codec.decode_plain(codec.encode_plain(plain_state.encode(value, "v"))))


def same(a: Any, b: Any) -> bool:
    """Equality in which types count and NaN equals itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


ODD_TEXT = st.text(st.characters(categories=["Cs", "L"]), max_size=3)


@given(ODD_TEXT, ODD_TEXT, ODD_TEXT)
def test_text_that_is_not_unicode_is_refused_wherever_it_is(value: str, key: str, item: str) -> None:
    state = {key: [value], 1: {item: ()}}
    if any("\ud800" <= character <= "\udfff" for character in value + key + item):
        with pytest.raises(StateError, match="not Unicode"):
            plain_state.encode(state, "scheduler")
    else:
        assert plain_state.decode(codec.decode_plain(codec.encode_plain(plain_state.encode(state, "s")))) == state


@given(values)
def test_plain_values_are_unchanged_by_encoding(value: Any) -> None:
    assert same(there_and_back(value), value)


def test_container_and_numpy_types_are_restored() -> None:
    value = {
        "c": Counter({30: 1}),
        "o": OrderedDict([("z", 1), ("a", 2)]),
        "s": np.float32(0.1),
        "a": np.arange(4).reshape(2, 2),
    }
    back = there_and_back(value)
    assert type(back["c"]) is Counter and back["c"] == value["c"]
    assert list(back["o"].items()) == [("z", 1), ("a", 2)]
    assert type(back["s"]) is np.float32 and back["s"] == value["s"]
    assert back["a"].dtype == np.int64 and (back["a"] == value["a"]).all()
    back["a"][0] = 5  # and is writable


@pytest.mark.parametrize("value", [object(), lambda: 1, {1, 2}, np.array([object()]), torch.nn.Linear(1, 1)])
def test_an_unsupported_value_is_an_error_with_its_path(value: Any) -> None:
    with pytest.raises(StateError, match=r"scheduler\.inner\[1\]"):
        plain_state.encode({"inner": [1, value]}, "scheduler")


def test_restored_generators_continue_with_the_same_numbers() -> None:
    own = {"own": torch.Generator().manual_seed(3)}
    random.gauss(0, 1)  # keeps a second number
    np.random.randn()

    def draw() -> list[float]:
        drawn = [
            random.gauss(0, 1),
            float(np.random.randn()),
            float(torch.randn(())),
            float(torch.randn((), generator=own["own"])),
        ]
        return [*drawn, float(torch.randn(17)[16])]

    stored = codec.decode_plain(codec.encode_plain(rng.capture(own)))
    before = draw()
    rng.restore(stored, own)  # type: ignore[arg-type]
    assert rng.digests(rng.capture(own)) == rng.digests(stored)  # type: ignore[arg-type]
    assert draw() == before
    assert {name for name, digest in rng.digests(rng.capture(own)).items() if rng.digests(stored)[name] != digest} == {  # type: ignore[arg-type]
        "python",
        "numpy",
        "torch",
        "own",
    }
