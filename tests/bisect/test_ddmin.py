"""Delta debugging, compared with brute force on small sets: its result, and its number of tests."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.bisect import ddmin
from m5ws.bisect.ddmin import Answer


class Asked:
    """A test that caches its answers and counts its calls."""

    def __init__(self, answers: dict[frozenset[int], Answer]) -> None:
        self.answers = answers
        self.sets: set[frozenset[int]] = set()

    def __call__(self, chosen: frozenset[int]) -> Answer:
        assert chosen, "the empty set is known"
        self.sets.add(chosen)
        return self.answers[chosen]


def _subsets(elements: list[int]) -> list[frozenset[int]]:
    return [frozenset(some) for size in range(1, len(elements) + 1) for some in combinations(elements, size)]


def _proper(chosen: frozenset[int]) -> list[frozenset[int]]:
    return [subset for subset in _subsets(sorted(chosen)) if subset != chosen]


@st.composite
def _any_answers(draw: st.DrawFn) -> tuple[list[int], Asked]:
    """Answers without any rule, like the answers of crashes and of changes that undo each other."""
    elements = list(range(draw(st.integers(1, 5))))
    sets = _subsets(elements)
    answers = st.sampled_from(list[Answer](["same", "differs", "unresolved"]))
    return elements, Asked({chosen: draw(answers) for chosen in sets})


@st.composite
def _monotone(draw: st.DrawFn, most: int) -> tuple[list[int], Asked, list[frozenset[int]]]:
    """Answers from causes: a set differs if it contains a cause."""
    elements = list(range(draw(st.integers(1, most))))
    made = draw(st.lists(st.frozensets(st.sampled_from(elements), min_size=1, max_size=3), max_size=3))
    answers: dict[frozenset[int], Answer] = {
        chosen: "differs" if any(cause <= chosen for cause in made) else "same" for chosen in _subsets(elements)
    }
    return elements, Asked(answers), made


@given(case=_any_answers(), few=st.sampled_from([0, 8]))
def test_a_minimal_subset_stops_differing_without_any_of_its_elements(case: tuple[list[int], Asked], few: int) -> None:
    elements, test = case
    subset = _minimised(elements, test, few)
    everything = frozenset(elements)
    if subset is None:
        assert test.answers[everything] != "differs"
        return
    assert test.answers[subset] == "differs"
    for element in subset:
        assert len(subset) == 1 or test.answers[subset - {element}] != "differs"


@given(case=_monotone(6), few=st.sampled_from([0, 8]))
def test_no_proper_part_of_a_minimal_subset_differs_in_a_monotone_test(
    case: tuple[list[int], Asked, list[frozenset[int]]], few: int
) -> None:
    elements, test, made = case
    subset = _minimised(elements, test, few)
    assert (subset is None) == (not made)
    if subset is not None:
        assert subset in made
        assert all(test.answers[part] == "same" for part in _proper(subset))


@given(case=_any_answers())
def test_a_tried_single_element_that_differs_is_the_minimal_subset(case: tuple[list[int], Asked]) -> None:
    elements, test = case
    subset = ddmin.minimise(elements, test)
    if any(len(chosen) == 1 and answer == "differs" for chosen, answer in test.answers.items()):
        assert subset is not None and len(subset) == 1


@given(case=_any_answers(), few=st.sampled_from([0, 8]))
def test_ddmin_tests_at_most_as_many_sets_as_its_bound(case: tuple[list[int], Asked], few: int) -> None:
    elements, test = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ddmin, "FEW", few)
        ddmin.minimise(elements, test)
        assert len(test.sets) <= ddmin.most(len(elements))


@given(case=_monotone(6))
def test_causes_are_disjoint_and_elements_without_causes_do_not_differ(
    case: tuple[list[int], Asked, list[frozenset[int]]],
) -> None:
    elements, test, _ = case
    causes = list(ddmin.causes(elements, test))
    named = frozenset[int]().union(*causes)
    assert len(named) == sum(map(len, causes))
    left = frozenset(elements) - named
    assert not left or test.answers[left] == "same"


def test_two_elements_that_matter_only_together_are_found_in_few_tests() -> None:
    elements = list(range(41))
    tested: set[frozenset[int]] = set()

    def test(chosen: frozenset[int]) -> Answer:
        tested.add(chosen)
        return "differs" if {3, 33} <= chosen else "same"

    assert ddmin.minimise(elements, test) == frozenset((3, 33))
    assert len(tested) <= 100


def test_a_cause_that_is_the_likeliest_element_needs_two_tests() -> None:
    tested: list[frozenset[int]] = []

    def test(chosen: frozenset[int]) -> Answer:
        tested.append(chosen)
        return "differs" if 3 in chosen else "same"

    assert list(ddmin.causes([3, 0, 1, 2], test)) == [{3}]
    assert tested == [{3}, {0, 1, 2}]


def _minimised(elements: list[int], test: Asked, few: int) -> frozenset[int] | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ddmin, "FEW", few)
        return ddmin.minimise(elements, test)
