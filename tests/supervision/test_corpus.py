import random
from pathlib import Path

import msgspec
import pytest

from benchmarks import causes_accuracy
from m5ws.attempts import failed_end
from m5ws.logs.parts import LogParts
from m5ws.records.cause import Cause
from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.records.store import Format
from m5ws.repository.repository import Repository
from m5ws.supervision import causes, diagnosis
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore

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


def _without_line(cause: Cause | None) -> Cause | None:
    # The store has no lines of control characters alone, so lines may have other numbers there.
    return None if cause is None else msgspec.structs.replace(cause, line=0)


def _assert_one_diagnosis(case: causes_accuracy.Case, run: str, folder: Path) -> None:
    """Assert that the incident of a failed attempt has the cause that its logs in the store have later."""
    repo = Repository.create(MemoryStore(), Format())
    record = planted.run(repo, run)
    planted.begin(repo, run)
    planted.append(repo, run, 1, NODE, AttemptEnded(outcome="failed", exit_code=1))
    folder.mkdir()
    for log in case["logs"]:
        name = causes_accuracy.name_log(log)
        (folder / (f"rank-{name}.log" if name.isdigit() else f"{name}.log")).write_text(log["text"] + "\n")
    incident = failed_end.record(repo, {}, record, 1, folder)
    LogParts(repo, run, 1, 0, folder).store(last=True)
    later = diagnosis.diagnose(repo, run, 1, folder / "missing", causes.builtin())
    assert incident is not None
    assert _without_line(incident.cause) == _without_line(later.cause), case["id"]
    assert incident.host == later.host


def test_the_incident_of_a_failure_and_a_later_diagnosis_from_the_store_agree(tmp_path: Path) -> None:
    for number, case in enumerate(random.Random(_SEED).sample(causes_accuracy.load("cases.jsonl.xz"), 60)):
        _assert_one_diagnosis(case, f"run-{number}", tmp_path / f"{number}")


@pytest.mark.soak
def test_the_incidents_of_all_cases_and_later_diagnoses_agree(tmp_path: Path) -> None:
    for number, case in enumerate(causes_accuracy.load("cases.jsonl.xz")):
        _assert_one_diagnosis(case, f"run-{number}", tmp_path / f"{number}")
