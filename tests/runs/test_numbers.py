"""Sets of numbers in little memory, compared with sets."""

from hypothesis import given
from hypothesis import strategies as st

from m5ws.runs.numbers import Numbers, common, union

NUMBERS = st.lists(st.integers(0, 30), max_size=30)


@given(NUMBERS, st.integers(0, 31), st.booleans())
def test_numbers_equal_the_set_of_added_numbers(added: list[int], end: int, ordered: bool) -> None:
    found, wanted = Numbers(sorted(added) if ordered else added), set(added)
    for _ in range(2):
        assert list(found) == sorted(wanted) and len(found) == len(wanted)
        assert [number in found for number in range(32)] == [number in wanted for number in range(32)]
        for number in range(32):
            assert found.up_to(number) == max((one for one in wanted if one <= number), default=None)
        found.cut(end)
        wanted = {number for number in wanted if number <= end}
    found.add(end)
    assert set(found) == wanted | {end}


@given(NUMBERS, NUMBERS)
def test_unions_and_common_numbers_equal_set_operations(one: list[int], other: list[int]) -> None:
    both = Numbers(one), Numbers(other)
    assert list(union(both)) == sorted({*one, *other})
    assert common(*both) == len(set(one) & set(other))
