"""Expected bits of a replay, by determinism level and hardware."""

import pytest

from m5ws.environment.drift import drift
from m5ws.environment.expectation import expected
from m5ws.records.environment import Determinism, Observed
from m5ws.records.verdict import Change
from m5ws.wording.sentences import describe

Facts = dict[str, str | None]
HERE: Facts = {"cpu.model": "a", "cpu.count": "2", "gpu.model": None}


def drifted(old: Facts, new: Facts) -> tuple[Change, ...]:
    return drift(Observed(facts=old), Observed(facts=new))


@pytest.mark.parametrize(
    ("host", "new", "hardware"),
    [
        ("h", HERE, "the same machine"),
        ("h", HERE | {"torch": "3"}, "the same machine"),
        ("other", HERE, "the same kind of hardware"),
        (None, HERE, "the same kind of hardware"),
        ("h", HERE | {"cpu.count": "4"}, "the same kind of hardware"),
        ("h", HERE | {"cpu.model": "b"}, "other hardware"),
        ("h", HERE | {"gpu.model": "g"}, "other hardware"),
    ],
)
def test_hardware_is_compared_by_host_and_facts(host: str | None, new: Facts, hardware: str) -> None:
    expectation = expected(Determinism(), host, "h", drifted(HERE, new))
    assert (expectation.hardware, expectation.equal) == (hardware, hardware != "other hardware")
    assert hardware in describe(expectation) and "level strict" in describe(expectation)


@pytest.mark.parametrize(("level", "equal"), [("portable", True), ("strict", True), ("warn", True), ("off", False)])
def test_on_the_same_machine_every_level_but_off_promises_bits(level: str, equal: bool) -> None:
    expectation = expected(Determinism(level=level), "h", "h", ())  # type: ignore[arg-type]
    assert (expectation.level, expectation.equal) == (level, equal)


def test_another_processor_keeps_the_bits_of_level_portable_alone() -> None:
    kept: Facts = HERE | {"cpu.portable": "x86-64-v3"}
    portable = expected(Determinism(level="portable"), "h", "i", drifted(kept, kept | {"cpu.model": "b"}))
    assert (portable.hardware, portable.equal) == ("other hardware", True)
    assert portable.different == ("cpu.model",)
    assert not expected(Determinism(), "h", "i", drifted(HERE, HERE | {"cpu.model": "b"})).equal


@pytest.mark.parametrize("name", ["gpu.model", "platform"])
def test_another_gpu_or_architecture_keeps_no_level_s_bits(name: str) -> None:
    kept: Facts = HERE | {"cpu.portable": "x86-64-v3", name: "a"}
    assert not expected(Determinism(level="portable"), "h", "h", drifted(kept, kept | {name: "b"})).equal
