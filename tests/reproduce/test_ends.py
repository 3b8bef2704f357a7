"""Weights at the ends of two scripts: equal modules have equal labels in a resumed run, and no difference is lost."""

from hypothesis import given
from hypothesis import strategies as st

from m5ws.reproduce.ends import align

_MODULE = st.dictionaries(st.sampled_from(["a", "b.c"]), st.sampled_from(["0", "1", "2"]), min_size=1)
_MODULES = st.lists(_MODULE, max_size=4)


def _named(modules: list[dict[str, str]], labels: list[str]) -> dict[str, str]:
    return {
        f"{label}.{name}": value
        for label, module in zip(labels, modules, strict=True)
        for name, value in module.items()
    }


def _labels(count: int) -> list[str]:
    return [f"model{number or ''}" for number in range(count)]


@given(_MODULES, st.data())
def test_equal_modules_are_equal_under_other_labels(modules: list[dict[str, str]], data: st.DataObject) -> None:
    """Unless the labels are the same ones: two modules of one shape may have been exchanged."""
    original = _named(modules, _labels(len(modules)))
    labels = data.draw(st.permutations(_labels(len(modules) + 2)))[: len(modules)]
    replay = _named(modules, labels)
    assert align(original, replay) == (replay if set(labels) == set(_labels(len(modules))) else original)


@given(_MODULES, _MODULES, st.integers(0, 1))
def test_different_modules_stay_different(ours: list[dict[str, str]], theirs: list[dict[str, str]], shift: int) -> None:
    original, replay = (_named(ours, _labels(len(ours))), _named(theirs, _labels(len(theirs) + shift)[shift:]))
    aligned = align(original, replay)
    contents = [sorted(sorted(module.items()) for module in each) for each in (ours, theirs)]
    if aligned == original:
        assert contents[0] == contents[1]
    if contents[0] == contents[1] and shift and ours:
        assert aligned == original
    assert sorted(aligned.values()) == sorted(replay.values())


def test_a_changed_module_keeps_its_label_and_an_absent_one_is_not_compared() -> None:
    original = {"model.w": "2", "model2.w": "3"}
    # Folds 1 to 3, of which the last attempt of the original did the last two.
    assert align(original, {"model.w": "1", "model2.w": "2", "model3.w": "3"}) == {"model'.w": "1", **original}
    for same in ({"model.w": "2", "model2.w": "4"}, {"model.w": "3", "model2.w": "2"}):
        assert align(original, same) == same
