"""Recorded traces of real replays, judged without running them: the place of the difference, and the cause."""

import msgspec
import pytest

from tests.support.records import recorded_traces
from tests.support.records.recorded_traces import EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_traces_give_the_expected_place_and_causes(name: str) -> None:
    place, causes = recorded_traces.load(name).judged()
    assert place is not None
    assert (place.phase, place.module, place.quantity, place.step) == EXPECTED[name].place
    assert [(cause.kind, cause.certain) for cause in causes] == [(cause, True) for cause in EXPECTED[name].causes]
    if name == "gradient":
        assert (place.op, place.alone) == ("ScaledBackward", True)


@pytest.mark.parametrize("name", EXPECTED)
def test_equal_traces_have_no_place_and_no_causes(name: str) -> None:
    recorded = recorded_traces.load(name)
    same = msgspec.structs.replace(recorded.evidence, two=recorded.evidence.one)
    assert msgspec.structs.replace(recorded, evidence=same).judged() == (None, ())
