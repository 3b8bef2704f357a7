"""Recorded traces of real replays, judged without running them: the place of the difference, and the cause."""

import msgspec
import pytest

from tests.support.records import recorded_traces
from tests.support.records.recorded_traces import EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_the_place_and_the_causes_are_found_in_what_was_seen(name: str) -> None:
    place, causes = recorded_traces.load(name).judged()
    assert place is not None
    assert (place.phase, place.module, place.quantity, place.step) == EXPECTED[name].place
    assert [(cause.kind, cause.certain) for cause in causes] == [(cause, True) for cause in EXPECTED[name].causes]
    if name == "gradient":
        assert (place.op, place.alone) == ("ScaledBackward", True)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_equal_parts_nowhere(name: str) -> None:
    recorded = recorded_traces.load(name)
    same = msgspec.structs.replace(recorded.evidence, two=recorded.evidence.one)
    assert msgspec.structs.replace(recorded, evidence=same).judged() == (None, ())
