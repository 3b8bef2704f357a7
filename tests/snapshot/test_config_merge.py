"""Merges of two versions of a config file by keys, in YAML, JSON and TOML."""

import io
import json
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from m5ws.config.flatten import parse
from m5ws.snapshot.config import merge
from m5ws.snapshot.config.merge import Keys, MergeConflict, differing_keys, merged

_NAMES = st.sampled_from(["lr", "steps", "model", "betas", "on", "x.y"])
_VALUES = st.one_of(
    st.booleans(),
    st.integers(-9, 9),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from(["", "1", "no", "1e-3", "text # none", "é\n"]),
)
_TREES = st.dictionaries(
    _NAMES,
    st.recursive(
        _VALUES,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3)),
        max_leaves=5,
    ),
    max_size=4,
)


def _written(suffix: str, value: dict[str, Any]) -> bytes:
    if suffix == "json":
        return json.dumps(value, indent=1).encode()
    if suffix == "toml":
        return tomlkit.dumps(value).encode()
    out = io.StringIO()
    YAML(typ="safe", pure=True).dump(value, out)
    return out.getvalue().encode()


@given(suffix=st.sampled_from(["json", "yaml", "toml"]), old=_TREES, new=_TREES, data=st.data())
def test_a_merge_has_at_each_key_the_value_of_one_side(
    suffix: str, old: dict[str, Any], new: dict[str, Any], data: st.DataObject
) -> None:
    name = f"c.{suffix}"
    before, after = _written(suffix, old), _written(suffix, new)
    places = differing_keys(name, before, after)
    if places is None:
        return
    taken = data.draw(st.sets(st.sampled_from(sorted(places, key=repr))))
    try:
        mixed = merged(name, before, after, taken)
    except MergeConflict:
        # In TOML, keys after a table belong to it: such a merge is refused.
        assert suffix == "toml" and 1 < len(taken) < len(places)
        return
    assert _differing(name, before, mixed) == taken
    assert _differing(name, mixed, after) == places.keys() - taken


def _differing(name: str, old: bytes, new: bytes) -> set[Keys]:
    return {place for place, _, _ in merge._walk((), parse(name, old), parse(name, new))}


def test_each_added_removed_or_retyped_key_is_one_difference() -> None:
    old = b'{"a": {"b": 1, "c": [1, 2]}, "gone": {"x": 1}, "kind": 1}'
    new = b'{"a": {"b": 2, "c": [1, 3]}, "come": [1], "kind": "1"}'
    assert differing_keys("c.json", old, new) == {
        ("a", "b"): ("1", "2"),
        ("a", "c", 1): ("2", "3"),
        ("gone",): ('{"x": 1}', None),
        ("kind",): ("1", '"1"'),
        ("come",): (None, "[1]"),
    }
    assert json.loads(merged("c.json", old, new, [("gone",), ("come",)])) == {
        "a": {"b": 1, "c": [1, 2]},
        "kind": 1,
        "come": [1],
    }


def test_lists_of_different_lengths_are_taken_whole() -> None:
    assert differing_keys("c.yaml", b"a: [1, 2]\n", b"a: [1, 2, 3]\n") == {("a",): ("[1, 2]", "[1, 2, 3]")}


def test_a_merge_keeps_comments_and_layout_of_the_first_file() -> None:
    old = b"# schedule\nlr: 0.1  # rate\nsteps: 3\n"
    assert merged("c.yaml", old, b"lr: 0.2\nsteps: 4\n", [("steps",)]) == old.replace(b"3", b"4")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("c.yaml", b"a: &x {v: 1}\nb: *x\n", b"a: {v: 2}\nb: {v: 1}\n"),  # one value under two names
        ("c.yaml", b"a: 1\n", b"a: [\n"),
        ("c.yaml", b"a: 1\n", b"# other\na: 1\n"),
        ("c.json", b"[1]", b"[2]"),
        ("c.cfg", b"a", b"b"),
        ("c.yaml", b"2001-01-01: 1\n", b"2001-01-01: 2\n"),
    ],
)
def test_files_that_cannot_be_merged_have_no_differing_keys(name: str, old: bytes, new: bytes) -> None:
    assert differing_keys(name, old, new) is None


def test_a_merge_that_would_change_another_key_is_refused() -> None:
    with pytest.raises(MergeConflict, match="share"):
        merged("c.yaml", b"a: &x {v: 1}\nb: *x\n", b"a: {v: 2}\nb: {v: 1}\n", [("a", "v")])


def test_a_table_of_an_array_that_becomes_a_plain_value_takes_the_file_whole() -> None:
    assert differing_keys("c.toml", b"[[on]]\n[[on]]\n", b"on = [true, true]\n") is None
