"""Cases of the corpus, made by `m5ws cause --wrong` from real failures: the rules find the class that each expects."""

from pathlib import Path

import msgspec
import pytest

from m5ws.supervision import cases, causes

CASES = sorted((Path(__file__).parents[1] / "data" / "causes").glob("*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_has_its_expected_class(path: Path) -> None:
    case = msgspec.json.decode(path.read_bytes(), type=cases.Case)
    cause = causes.Classifier(causes.builtin()).find(case.logs, case.ended_s)
    assert (cases.UNKNOWN if cause is None else cause.kind) == case.expected
