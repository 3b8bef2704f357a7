import random

from benchmarks import causes_accuracy
from m5ws.supervision import causes

_SEED = 46
_SAMPLE = 100
_HEALTHY = 400
# Somewhat below the rates that docs/soak.md shows.
_FIRST, _NODE, _ALARMS = 0.82, 0.9, 0.08


def test_sample_of_corpus_has_right_causes_and_nodes() -> None:
    cases = random.Random(_SEED).sample(causes_accuracy.load("cases.jsonl.xz"), _SAMPLE)
    classifier = causes_accuracy.Once(causes.builtin())

    answers = [causes_accuracy.answer(case, classifier, _SEED) for case in cases]

    placed = [each for each in answers if each.case["root"] is not None]
    assert sum(each.is_first for each in answers) >= _FIRST * len(answers)
    assert sum(each.is_right_node for each in placed) >= _NODE * len(placed)


def test_few_healthy_logs_with_frightening_words_have_a_cause() -> None:
    texts = [record["text"] for record in causes_accuracy.load("healthy.jsonl.xz")][:_HEALTHY]

    alarms = causes_accuracy.false_alarms(texts, causes.Classifier(causes.builtin()))

    assert len(alarms) <= _ALARMS * len(texts)


def test_corpus_has_enough_classes_and_cases() -> None:
    cases = causes_accuracy.load("cases.jsonl.xz")

    by_class: dict[str, int] = {}
    for case in cases:
        by_class[case["class"]] = by_class.get(case["class"], 0) + 1
    assert len({case["id"] for case in cases}) == len(cases)
    assert sum(count >= 25 for count in by_class.values()) >= 40
