"""The reader of NCCL's log gives the facts of each excerpt in tests/data/nccl, and of a cut excerpt no other facts."""

import tomllib
from collections.abc import Mapping
from typing import Any

import blake3
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from m5ws.environment.nccl import efa
from m5ws.environment.nccl.log import NcclLog
from m5ws.records.environment import Observed
from tests.support.machine.efa_machines import make_machine
from tests.support.machine.nccl_facts import read
from tests.support.paths import ROOT

_FOLDER = ROOT / "tests" / "data" / "nccl"
_INDEX: list[dict[str, Any]] = tomllib.loads((_FOLDER / "index.toml").read_text())["log"]
_TEXTS = {entry["file"]: (_FOLDER / entry["file"]).read_text() for entry in _INDEX}
_files = st.sampled_from(sorted(_TEXTS))
_logs = pytest.mark.parametrize("entry", _INDEX, ids=[entry["file"] for entry in _INDEX])


def _digest(text: str) -> str:
    return blake3.blake3(text.encode()).hexdigest()[:16]


def _is_part(part: Mapping[str, str], whole: Mapping[str, str]) -> bool:
    """Return True if each value of each fact is among the values of the same fact."""
    return all(set(value.split(", ")) <= set(whole.get(name, "").split(", ")) for name, value in part.items())


@_logs
def test_an_excerpt_has_the_facts_of_the_index(entry: dict[str, Any]) -> None:
    expected = {f"nccl.{name}": value for name, value in entry["facts"].items()}
    if "rings" in entry:
        expected["nccl.rings"] = _digest("\n".join(entry["rings"]))
    if "trees" in entry:
        expected["nccl.trees"] = _digest(entry["trees"])
    assert read(_TEXTS[entry["file"]]) == expected


@_logs
def test_an_excerpt_shows_the_cause_in_the_index(entry: dict[str, Any], tmp_path: Any) -> None:
    log = NcclLog()
    log.feed(_TEXTS[entry["file"]])
    assert (efa.SOCKET in log.sends) == (entry.get("sends") == ["Socket"])
    assert entry.get("cause", "no cause is known") in efa.cause(log, Observed(), make_machine(tmp_path))


def test_every_excerpt_is_cited_and_in_the_index() -> None:
    assert sorted(_TEXTS) == sorted(path.name for path in _FOLDER.glob("*.log"))
    assert all(entry["url"].startswith("https://github.com/") for entry in _INDEX)
    versions = {(facts.get("version"), facts.get("plugin"), facts.get("libfabric")) for facts in map(_facts, _INDEX)}
    assert len(versions - {(None, None, None)}) >= 8


def _facts(entry: dict[str, Any]) -> dict[str, str]:
    return dict(entry["facts"])


@given(_files, st.data())
def test_a_cut_log_has_a_part_of_the_facts(name: str, data: st.DataObject) -> None:
    text = _TEXTS[name]
    end = data.draw(st.integers(0, len(text)))
    assert _is_part(read(text[:end]), read(text))


@pytest.mark.parametrize("name", sorted(_TEXTS))
def test_a_log_without_a_line_has_a_part_of_the_facts(name: str) -> None:
    lines = _TEXTS[name].splitlines(keepends=True)
    for number in range(len(lines)):
        assert _is_part(read("".join(lines[:number] + lines[number + 1 :])), read(_TEXTS[name])), lines[number]


@given(_files, _files, st.data())
def test_logs_of_several_communicators_in_parts_have_the_facts_of_all(a: str, b: str, data: st.DataObject) -> None:
    text = _TEXTS[a] + _TEXTS[b]
    cut = data.draw(st.integers(0, len(text)))
    log = NcclLog()
    log.feed(text[:cut])
    log.feed(text[cut:])
    assert log.facts == read(text)
    assert _is_part(read(_TEXTS[a]), log.facts) and _is_part(read(_TEXTS[b]), log.facts)


@given(st.text() | st.text("NCL INFOVARK0123456789/[]:>-\n"))
@example("128 Bytes -> Algo \u00b2 proto 0 time 1")
@example(f"Channel {'0' * 5000}/02 : 0 1")
@example(f"128 Bytes -> Algo {'1' * 4000} proto 0")
@example("NET/OFI " * 100_000)
def test_any_text_is_read_without_an_error(text: str) -> None:
    read(text)
    read("".join(f"h:1:1 [0] NCCL INFO {line}\n" for line in text.splitlines()))


_FORMATS = {
    # aws-ofi-nccl 1.14, src/nccl_ofi_net.c
    "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)": {"nccl.provider": "efa"},
    # NCCL 2.27, src/transport/net.cc
    "Channel 00/0 : 0[0] -> 8[0] [send] via NET/Libfabric/3(1)/GDRDMA(PCI)/Shared": {
        "nccl.network": "Libfabric",
        "nccl.gdr": "on",
    },
    # NCCL 2.24 to 2.28, src/enqueue.cc
    "AllReduce: 4096 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}": {
        "nccl.algorithms": "NVLS_TREE",
        "nccl.protocols": "SIMPLE",
    },
    # NCCL 2.23, src/enqueue.cc; a number without a name stays a number.
    "AllReduce: 4096 Bytes -> Algo 6 proto 9 time 1.5": {"nccl.algorithms": "PAT", "nccl.protocols": "9"},
    # NCCL 2.28, src/graph/tuning.cc
    "NCCL_ALGO set by environment to Ring": {"nccl.limits": "NCCL_ALGO set by environment to Ring"},
    "NCCL_ALGO_X set by environment to Ring": {},
    "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels": {"nccl.channels": "24"},
    "The application was compiled with NCCL version 2.19.3": {},
}


@pytest.mark.parametrize("message", _FORMATS)
def test_a_format_of_the_sources_has_its_facts(message: str) -> None:
    assert read(f"[2026-01-01 00:00:00] h:1:1 [0] NCCL INFO {message}\r\n") == _FORMATS[message]
    assert read(f"h:1:1 [0] NCCL INFO {message}") == {}


def test_rings_of_two_communicators_are_two_digests() -> None:
    lines = [f"h:1:{thread} [0] NCCL INFO Channel 0{n}/02 : {thread} {n}" for n in (0, 1) for thread in (7, 8)]
    facts = read("\n".join([*lines, ""]))
    assert facts["nccl.rings"] == ", ".join(sorted((_digest("7 0\n7 1"), _digest("8 0\n8 1"))))
    assert "nccl.rings" not in read("\n".join([*lines[:2], ""]))


@pytest.mark.parametrize("lost", range(4))
def test_rings_without_one_of_their_lines_have_no_digest(lost: int) -> None:
    """One thread makes two communicators, in turn. Lines of the second never complete the rings of the first."""
    lines = [f"h:1:1 [0] NCCL INFO Channel 0{n}/02 : {communicator} {n}" for communicator in (7, 8) for n in (0, 1)]
    left = "8 0\n8 1" if lost < 2 else "7 0\n7 1"
    assert read("\n".join([*lines[:lost], *lines[lost + 1 :], ""]))["nccl.rings"] == _digest(left)
