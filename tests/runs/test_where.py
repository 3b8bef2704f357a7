"""Conditions on runs: their grammar, and their value while not everything was read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.runs import where
from m5ws.runs.where import NOT_READ, Comparison, InvalidCondition, Junction, Known, Not, NotRead

_VALUES: dict[str, Known] = {
    "loss": 2.5, "lr": "0.001", "name": "Warmup 3", "flag": "true", "model.width": "64", "seven": "7", "nan": "nan"
}  # fmt: skip


def _lookup(name: str) -> Known | NotRead:
    return NOT_READ if name.startswith("later") else _VALUES.get(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss<3", True),
        ("loss < 2.5", False),
        ("loss<=2.5e0", True),
        ("loss>=-1", True),
        ("lr>1e-4", True),
        ("lr=1e-3 and model.width==64", True),
        ("lr='1e-3'", False),
        ("name ~ warmup", True),
        ("name ~ 3", True),
        ('name = "Warmup 3"', True),
        ("name != other", True),
        ("name < 3", False),
        ("name != 3", True),
        ("flag=true", True),
        ("`model.width`>=64", True),
        ("missing=1", False),
        ("not missing=1", True),
        ("missing!=1", False),
        ("loss>3 or lr<1 and seven=7", True),
        ("(loss>3 or lr<1) and seven=8", False),
        ("NOT loss>3 AND not not lr<1", True),
        ("later<1", None),
        ("later<1 and loss>3", False),
        ("later<1 or loss<3", True),
        ("not later<1", None),
        ("seven<1m", True),
    ],
)
def test_a_condition_has_its_value_as_soon_as_it_does_not_depend_on_what_was_not_read(
    text: str, expected: bool | None
) -> None:
    assert where.evaluate(where.parse(text), _lookup) is expected


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0),
        ("   ", 0),
        ("loss", 4),
        ("loss <", 6),
        ("loss < and", None),
        ("< 3", 0),
        ("loss<3 lr>1", 7),
        ("loss<3 and or lr>1", 11),
        ("(loss<3 and lr>1", 16),
        ("(loss<3 (", 8),
        ("loss<3 )", 7),
        ("name='open", 5),
        ("a ! b", 2),
        ("not", 3),
        ("(" * 60 + "a=1" + ")" * 60, 51),
    ],
)
def test_an_error_points_at_the_place(text: str, at: int | None) -> None:
    if at is None:
        assert where.parse(text) == Comparison("loss", "<", "and", 0)
        return
    with pytest.raises(InvalidCondition) as error:
        where.parse(text)
    assert str(error.value).splitlines()[-1] == f"  {' ' * at}^"


_COMPARISONS = st.builds(
    Comparison,
    st.sampled_from(["loss", "lr", "later"]),
    st.sampled_from(["<", ">=", "=", "!="]),
    st.floats(-9, 9),
    st.just(0),
)
_CONDITIONS = st.recursive(
    _COMPARISONS,
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(Junction, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple))
    ),
    max_leaves=8,
)


def _written(condition: where.Condition) -> str:
    if isinstance(condition, Comparison):
        return f"{condition.name}{condition.operator}{condition.value!r}"
    if isinstance(condition, Not):
        return f"not ({_written(condition.of)})"
    return f" {condition.kind} ".join(f"({_written(part)})" for part in condition.parts)


@given(_CONDITIONS, st.floats(-9, 9))
def test_a_written_condition_is_read_back_and_what_it_is_early_it_is_in_the_end(
    condition: where.Condition, later: float
) -> None:
    read = where.parse(_written(condition))
    early = where.evaluate(read, _lookup)
    final = where.evaluate(read, lambda name: later if name == "later" else _VALUES[name])
    assert final is not None and early in (None, final)
    assert final == where.evaluate(condition, lambda name: later if name == "later" else _VALUES[name])


@given(st.text("a1<>=!~()'\"` andort", max_size=30))
def test_any_text_is_a_condition_or_one_error(text: str) -> None:
    try:
        condition = where.parse(text)
    except InvalidCondition:
        return
    assert where.evaluate(condition, _lookup) in (True, False, None)
