"""Rules for variables of libfabric and NCCL: each has a source, matches an environment, and needs known versions."""

from fnmatch import fnmatchcase

import pytest

from m5ws.environment.nccl.rules import HAZARDS, Rule, is_in, matching, rules
from m5ws.records.environment import Observed

_VERSIONS = [
    *("1.0.0", "1.1.0", "1.5.0", "1.12.1", "1.18.0", "1.22.0amzn4.0"),
    *("1.28.0", "2.4.8", "2.10.3", "2.19.3", "2.27.7"),
]
_INSTANCES = ["p4d.24xlarge", "p5.48xlarge"]
_VALUES = ["0", "1", "efa", "tcp", "socket", "none", "LL128", "LL", "simple", "8"]
_ids = [f"{rule.variable}-{number}" for number, rule in enumerate(rules())]


def _example(rule: Rule) -> dict[str, str | None]:
    """Return the facts of an environment that a rule matches."""
    facts: dict[str, str | None] = {
        name: next(version for version in (*_VERSIONS, *_INSTANCES) if _meets(version, condition))
        for name, condition in rule.where.items()
    }
    values = (value for value in _VALUES if rule.matches(facts | {f"variable.{rule.variable}": value}))
    return facts if rule.unset else facts | {f"variable.{rule.variable}": next(values)}


def _meets(value: str, condition: str) -> bool:
    return is_in(value, condition) if condition[0] in "<>" else fnmatchcase(value, condition)


@pytest.mark.parametrize("rule", rules(), ids=_ids)
def test_a_rule_has_a_source_and_matches_one_line(rule: Rule) -> None:
    assert rule.source.startswith("https://") and rule.where
    assert rule.variable.startswith(("FI_", "NCCL_", "RDMAV_"))
    facts = _example(rule)
    line = rule.describe(facts)
    assert rule.matches(facts) and "\n" not in line
    assert line.startswith("warning: ") == (rule.effect in HAZARDS)
    assert rule.variable in line and rule.remedy in line and rule.source in line


@pytest.mark.parametrize("rule", rules(), ids=_ids)
def test_a_rule_does_not_match_an_unknown_version(rule: Rule) -> None:
    facts = _example(rule)
    for name in rule.where:
        assert not rule.matches(facts | {name: None})
        if rule.where[name][0] in "<>":
            assert not rule.matches(facts | {name: "git-1a2b3c"})


@pytest.mark.parametrize("rule", rules(), ids=_ids)
def test_no_rule_is_hidden_by_an_earlier_rule(rule: Rule) -> None:
    facts = _example(rule)
    assert rule in matching(Observed(facts=facts)), matching(Observed(facts=facts))


def test_a_variable_has_one_line_at_most() -> None:
    facts: dict[str, str | None] = {"nccl": "2.19.3", "aws-ofi-nccl": "1.7.4-aws", "aws.instance_type": "p4d.24xlarge"}
    found = matching(Observed(facts=facts | {"variable.NCCL_PROTO": "LL128,LL"}))
    assert [(rule.variable, rule.effect, "LL128" in rule.why) for rule in found] == [("NCCL_PROTO", "corrupts", True)]
    assert matching(Observed(facts=facts | {"variable.NCCL_PROTO": "^LL128"})) == ()


def test_settings_of_the_determinism_levels_match_no_rule() -> None:
    facts: dict[str, str | None] = {
        "nccl": "2.27.7", "aws-ofi-nccl": "1.14.2", "libfabric": "2.1.0", "efa.driver": "2.15", "efa.installer": "1.43",
        "aws.instance_type": "p5.48xlarge", "variable.NCCL_ALGO": "Ring", "variable.NCCL_NVLS_ENABLE": "0",
    }  # fmt: skip
    assert matching(Observed(facts=facts)) == ()


@pytest.mark.parametrize("suffix", ["", "-aws", "amzn4.0", "+cuda12.4"])
def test_the_leading_numbers_of_a_version_are_compared(suffix: str) -> None:
    assert is_in(f"1.7.4{suffix}", ">=1.7,<1.8") and not is_in(f"1.7.4{suffix}", "<1.7.4")
    assert is_in(f"2.0{suffix}", ">=2.0.0") and not is_in(f"2.0{suffix}", "<2")


def test_a_text_without_leading_numbers_is_in_no_bounds() -> None:
    assert not is_in(None, ">=0") and not is_in("libfabric.so.1.2", ">=0")
