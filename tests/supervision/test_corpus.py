import random

import pytest

from benchmarks import causes_accuracy
from m5ws.supervision import causes

_SEED = 46
_SAMPLE = 100
_HEALTHY = 400
# Somewhat below the rates that docs/soak.md shows.
_FIRST, _NODE, _ALARMS, _STEADY_ALARMS = 0.85, 0.92, 0.06, 0.002


def test_sample_of_corpus_has_right_causes_and_nodes() -> None:
    cases = random.Random(_SEED).sample(causes_accuracy.load("cases.jsonl.xz"), _SAMPLE)
    classifier = causes_accuracy.Once(causes.builtin())

    answers = [causes_accuracy.answer(case, classifier, _SEED) for case in cases]

    placed = [each for each in answers if each.case["root"] is not None]
    assert sum(each.is_first for each in answers) >= _FIRST * len(answers)
    assert sum(each.is_right_node for each in placed) >= _NODE * len(placed)


@pytest.mark.parametrize(("name", "most"), [("healthy", _ALARMS), ("healthy-steady", _STEADY_ALARMS)])
def test_few_healthy_logs_with_frightening_words_have_a_cause(name: str, most: float) -> None:
    texts = [record["text"] for record in causes_accuracy.load(f"{name}.jsonl.xz")][:_HEALTHY]

    alarms = causes_accuracy.false_alarms(texts, causes.Classifier(causes.builtin()))

    assert len(alarms) <= most * len(texts)


def test_corpus_has_enough_classes_and_cases() -> None:
    cases = causes_accuracy.load("cases.jsonl.xz")

    by_class: dict[str, int] = {}
    for case in cases:
        by_class[case["class"]] = by_class.get(case["class"], 0) + 1
    assert len({case["id"] for case in cases}) == len(cases)
    assert sum(count >= 25 for count in by_class.values()) >= 40
