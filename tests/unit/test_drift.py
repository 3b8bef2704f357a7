"""Drift and its table: every difference is found, and only evidence makes one harmless."""

import string
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.adapters.effective_facts import NAMES
from m5ws.comparisons import Change
from m5ws.operations.drift import describe, drift, rule, rules, unmet, worst
from m5ws.records import Declared, Observed

names = st.text(string.ascii_lowercase + ".-", min_size=1, max_size=12)
environments = st.builds(
    Observed,
    facts=st.dictionaries(names, st.none() | st.text(max_size=5), max_size=6),
    distributions=st.dictionaries(names, st.text(max_size=5), max_size=6),
)


def one(old: dict[str, str | None], new: dict[str, str | None]) -> Change:
    (change,) = drift(Observed(facts=old), Observed(facts=new))
    return change


def rating(part: str, name: str) -> str:
    return rule(part, name).rating


# --- the table -----------------------------------------------------------------------------------------------------


def test_every_rule_has_a_reason_and_a_source() -> None:
    for found in rules():
        assert found.why, found
        assert not found.why.endswith("."), found
        assert found.source.startswith(("https://", "measured: ", "docs/", "tests/")), found


def test_the_table_is_part_of_the_package() -> None:
    assert (resources.files("m5ws.operations") / "drift_rules.toml").is_file()


def test_no_rule_is_hidden_by_an_earlier_one() -> None:
    for place, found in enumerate(rules()):
        sample = found.pattern.replace("*", "zz")
        part = found.part.replace("*", "zz")
        assert rules().index(rule(part, sample)) == place, found


def test_the_last_rule_knows_everything() -> None:
    assert (rules()[-1].part, rules()[-1].pattern, rules()[-1].rating) == ("*", "*", "can")


@pytest.mark.parametrize(
    "name",
    [
        "torch",
        "distribution.torch",
        "distribution.numpy",
        "distribution.deepspeed",
        "distribution.triton",
        "distribution.nvidia-nccl-cu12",
        "distribution.unheard-of",
        "nccl",
        "nccl.installed",
        "loaded.nccl",
        "cpu.flags",
        "gpu.driver",
        "python",
        "unheard.of",
    ],
)
def test_what_training_can_load_can_change_bits(name: str) -> None:
    assert rating("environment", name) == "can"


@pytest.mark.parametrize("name", ["threads", "cpu.capability", "world", "variable.ONEDNN_MAX_CPU_ISA"])
def test_what_was_measured_does_change_bits(name: str) -> None:
    assert rating("environment", name) == "does"


@pytest.mark.parametrize("name", ["kernel", "distribution.ruff", "distribution.types-requests", "variable.NCCL_DEBUG"])
def test_what_does_no_arithmetic_cannot(name: str) -> None:
    assert rating("environment", name) == "cannot"


@pytest.mark.parametrize("name", NAMES)
def test_facts_of_torch_are_never_harmless(name: str) -> None:
    assert rating("environment", name) != "cannot"


# --- differences ---------------------------------------------------------------------------------------------------


@given(environments)
def test_an_environment_does_not_drift_from_itself(environment: Observed) -> None:
    assert drift(environment, environment) == ()


@given(environments, environments)
def test_drift_is_found_both_ways(a: Observed, b: Observed) -> None:
    forth = {(change.name, change.old, change.new, change.rating) for change in drift(a, b)}
    back = {(change.name, change.new, change.old, change.rating) for change in drift(b, a)}
    assert forth == back


@given(environments, environments)
def test_every_difference_of_two_environments_is_named_once(a: Observed, b: Observed) -> None:
    facts = {name for name in a.facts | b.facts if a.facts.get(name) != b.facts.get(name)}
    installed = {name for name in a.distributions | b.distributions
                 if a.distributions.get(name) != b.distributions.get(name)}  # fmt: skip
    expected = sorted([*facts, *(f"distribution.{name}" for name in installed)])
    assert sorted(change.name for change in drift(a, b)) == expected


def test_the_gravest_comes_first() -> None:
    old: dict[str, str | None] = {"kernel": "5", "threads": "1", "nccl": "2.26"}
    new: dict[str, str | None] = {"kernel": "6", "threads": "2", "nccl": "2.27"}
    changes = drift(Observed(facts=old), Observed(facts=new))
    assert [(change.name, change.rating) for change in changes] == [
        ("threads", "does"),
        ("nccl", "can"),
        ("kernel", "cannot"),
    ]
    assert worst(changes) == "does"
    assert worst(changes[2:]) == "cannot"
    assert worst(()) is None


def test_a_fact_that_one_side_never_recorded_is_not_held_against_it() -> None:
    change = one({}, {"threads": "2"})
    assert (change.rating, change.detail) == ("can", "only one side recorded it")
    assert one({"threads": None}, {"threads": "2"}).rating == "does"


def test_a_variable_that_is_not_there_was_not_set() -> None:
    assert one({}, {"variable.MKL_CBWR": "COMPATIBLE"}).rating == "does"


def test_a_change_reads_as_one_line() -> None:
    line = describe(one({"threads": "1"}, {"threads": "2"}))
    assert line == (
        "environment threads: 1 → 2 (changes bits: reductions are split by thread, so sums are taken in another order)"
    )
    assert "absent → 2.27 (can change bits" in describe(one({"nccl": None}, {"nccl": "2.27"}))
    assert "\n" not in describe(Change(part="code", name="a.py", old="1", new="2", detail="--- a\n+++ b\n"))


# --- declared and not there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "met"), [("2.27.5", True), ("2.27", True), ("2", True), ("2.2", False), ("2.28", False)]
)
def test_a_wanted_version_is_met_by_a_more_exact_one(wanted: str, met: bool) -> None:
    assert (unmet(Declared(wanted={"nccl": wanted}), Observed(facts={"nccl": "2.27.5"})) == ()) is met


def test_wanted_names() -> None:
    facts: dict[str, str | None] = {
        "torch.cuda": "13.0",
        "efa.driver": None,
        "nccl": None,
        "nccl.installed": "2.27.5 (x)",
    }
    wanted = {"cuda": "13.0", "efa": "2.13", "nccl": "2.27", "numpy": "2.4"}
    (change,) = unmet(Declared(wanted=wanted), Observed(facts=facts, distributions={"numpy": "2.4.6"}))
    assert (change.part, change.name, change.old, change.new) == ("declared", "efa", "2.13", None)


def test_the_declared_image_must_be_the_one_it_runs_in() -> None:
    declared = Declared(image="train@sha256:00")
    assert unmet(declared, Observed(facts={"container.image": "train@sha256:00"})) == ()
    (change,) = unmet(declared, Observed(facts={"container.image": None}))
    assert (change.name, change.new) == ("image", None)
