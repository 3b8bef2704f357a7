"""YAML whose aliases stand for many values is refused, by work that is proportional to the text."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config import flatten
from m5ws.snapshot.config import edit, merge

_BOMBS: dict[str, Callable[[int], str]] = {
    "merge keys": lambda levels: (
        "a0: &a0 {x: 1}\n"
        + "".join(f"a{n}: &a{n} {{k{n}: 1, <<: [{','.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, levels))
    ),
    "lists": lambda levels: (
        "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, levels))
    ),
    "itself": lambda levels: "a: &a\n  b: *a\n",
}


@pytest.mark.parametrize("kind", _BOMBS)
@pytest.mark.parametrize("levels", [9, 60])
def test_a_bomb_is_compared_as_text_and_refused_with_a_reason(kind: str, levels: int) -> None:
    text = _BOMBS[kind](levels)
    with pytest.raises(flatten.TooManyValues):
        flatten.refuse_large(text)
    data = text.encode()
    assert flatten.flatten("c.yaml", data) is None
    assert merge.differing_keys("c.yaml", data, data + b"z: 1\n") is None
    words = "aliases and merge keys stand for more than 100,000 values"
    with pytest.raises(edit.BadConfigFile, match=words):
        edit.check("c.yaml", data)
    with pytest.raises(edit.BadConfigFile, match=words):
        edit.edit("c.yaml", data, lambda document: document)


_documents = st.recursive(
    st.integers(0, 9), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner)
)


@given(_documents, st.integers(0, 3))
def test_small_documents_with_aliases_are_read(document: object, copies: int) -> None:
    text = f"base: &b {document}\nuses: [{', '.join(['*b'] * copies)}]\n"
    flatten.refuse_large(text)
    assert flatten.parse("c.yaml", text.encode()) == {"base": document, "uses": [document] * copies}
