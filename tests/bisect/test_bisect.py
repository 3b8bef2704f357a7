"""Bisections of runs whose ranks follow a rule of the test: the set of BAD's code files decides each step's loss."""

from pathlib import Path

import pytest

from m5ws.bisect import bisect
from m5ws.errors import UsageError
from m5ws.repository.repository import Repository
from m5ws.reproduce import reproduce
from m5ws.wording.comparisons import label
from tests.support.records.bisect_lab import Crash, Lab, Rule


@pytest.fixture
def lab(repo: Repository, tmp_path: Path) -> Lab:
    return Lab(repo, tmp_path)


def _differs_if(*causes: str, at: int = 3) -> Rule:
    """Return a rule: from step `at` on, the loss differs with all letters of one of the causes."""
    return lambda bad, step: float(step >= at and any(set(cause) <= bad for cause in causes))


@pytest.mark.parametrize(
    ("letters", "causes"),
    [
        ("a", ["a"]),
        ("abcd", ["c"]),
        ("abcd", ["bd"]),
        ("abcde", ["a", "d"]),
        ("abcd", ["ab", "cd"]),
        ("abc", ["abc"]),
        ("abcdefghijklm", ["l"]),
        ("abcdefghijklm", ["bl", "f"]),
    ],
)
def test_bisect_finds_exactly_the_causes_of_the_difference(lab: Lab, letters: str, causes: list[str]) -> None:
    lab.train(letters, _differs_if(*causes))
    report = lab.bisect()
    assert (report.outcome, report.enough, report.plan.first.step) == ("explained", True, 3)
    by_letter = ["".join(name.removeprefix("code ").removesuffix(".py") for name in cause) for cause in report.causes]
    assert sorted(by_letter) == sorted(causes)
    assert report.runs == len(report.trials)
    assert len(by_letter) > 1 or report.runs <= report.plan.most_runs + 1


def test_a_hybrid_goes_no_further_than_the_first_difference(lab: Lab) -> None:
    lab.train("ab", _differs_if("b", at=4))
    seen: list[int] = []
    rule = lab.ranks.rule

    def watched(bad: frozenset[str], step: int) -> float | None:
        seen.append(step)
        return rule(bad, step)

    lab.ranks.rule = watched
    lab.bisect()
    assert max(seen) == 4


def test_a_crashed_hybrid_is_unresolved_and_the_report_mentions_possible_causes(lab: Lab) -> None:
    def rule(bad: frozenset[str], step: int) -> float:
        if step == 2 and "b" in bad and "a" not in bad:
            raise Crash
        return float(step >= 3 and "a" in bad)

    lab.train("abc", rule)
    report = lab.bisect()
    assert report.causes == (("code a.py",),) and report.enough is None
    assert report.trials[-1].answer == "unresolved" and "Other causes are possible" in report.reason


def test_changes_that_cancel_each_other_are_separate_causes(lab: Lab) -> None:
    """Each of two changes alone differs at step 2, both together only at step 5."""
    lab.train("abc", lambda bad, step: float(step >= (2 if len(bad & {"a", "b"}) == 1 else 5)) * len(bad & {"a", "b"}))
    report = lab.bisect()
    assert report.outcome == "explained" and set(report.causes) == {("code a.py",), ("code b.py",)}
    first = report.trials[1].first
    assert first is not None and first.step == 2


def test_a_run_that_ends_early_differs_at_its_first_missing_step(lab: Lab) -> None:
    lab.train("ab", lambda bad, step: None if step > 4 and "b" in bad else 0.0)
    report = lab.bisect()
    assert (report.plan.first.step, report.plan.first.quantity, report.causes) == (5, "step", (("code b.py",),))


def test_a_good_run_that_does_not_repeat_ends_bisect_at_once(lab: Lab) -> None:
    lab.train("abc", _differs_if("a"))
    lab.ranks.rule = lambda bad, step: 0.5
    report = lab.bisect()
    assert (report.outcome, report.runs, report.causes) == ("not comparable", 1, ())
    lab.ranks.begun, lab.ranks.facts["torch"] = 0, "2.14"
    assert [change.name for change in lab.bisect().here] == ["torch"]


def test_a_difference_that_does_not_recur_has_no_pinned_cause(lab: Lab) -> None:
    lab.train("abc", _differs_if("a"))
    lab.ranks.rule = lambda bad, step: 0.0
    report = lab.bisect()
    assert (report.outcome, report.causes) == ("not explained", ())
    assert len(report.trials) == 1 + 3 + 1 and "nondeterministic" in report.reason


def test_bisect_is_not_comparable_if_the_good_or_the_bad_run_crashes(lab: Lab) -> None:
    lab.train("ab", _differs_if("a"))

    def fails(bad: frozenset[str], step: int) -> float:
        if bad:
            raise Crash
        return 0.0

    lab.ranks.rule = fails
    assert lab.bisect().outcome == "not comparable"
    lab.ranks.facts["torch"] = "2.14"
    lab.ranks.rule = lambda bad, step: fails(frozenset("a"), step)
    report = lab.bisect()
    assert (report.outcome, report.runs) == ("not comparable", 1) and "Crash" in report.reason


def test_earlier_trials_are_reused_unless_the_environment_can_change_bits(lab: Lab) -> None:
    lab.train("abcd", _differs_if("bd"))
    stopped = lab.bisect(max_runs=3)
    assert (stopped.outcome, stopped.runs, stopped.exit_code) == ("unfinished", 3, 2)
    whole = lab.bisect()
    assert sum(trial.known for trial in whole.trials) == 3 and whole.causes == (("code b.py", "code d.py"),)
    again = lab.bisect()
    assert (again.runs, again.causes, again.reason) == (0, whole.causes, whole.reason)
    lab.ranks.facts["torch"] = "2.14"
    assert lab.bisect().runs == len(whole.trials)


def test_a_cause_found_within_the_run_limit_is_reported(lab: Lab) -> None:
    lab.train("abcd", _differs_if("a"))
    report = lab.bisect(max_runs=2)
    assert (report.outcome, report.causes, report.enough) == ("explained", (("code a.py",),), None)


def test_an_interrupted_trial_is_repeated_by_the_next_bisect(lab: Lab) -> None:
    lab.train("abcd", _differs_if("b"))
    lab.ranks.begun, lab.ranks.stop_at = 0, 3
    with pytest.raises(reproduce.ReplayInterrupted):
        lab.bisect()
    report = lab.bisect()
    assert report.causes == (("code b.py",),) and sum(trial.known for trial in report.trials) == 2


def test_a_replay_of_the_whole_run_is_the_control(lab: Lab) -> None:
    lab.train("ab", _differs_if("a"))
    request = reproduce.ReplayRequest(original=lab.good)
    home = lab._folder / "home"
    reproduce.execute(lab.ports, request, reproduce.plan(lab.ports, request, home, lab._folder), lambda found: None)
    assert lab.bisect().trials[0].known


def test_scripts_without_recorded_steps_are_compared_by_their_output_files(lab: Lab) -> None:
    lab.ranks.session = False
    lab.train("abc", _differs_if("b", at=1))
    report = lab.bisect()
    assert (label(report.plan.first), report.causes, report.enough) == (
        "file out/loss.txt: line 1",
        (("code b.py",),),
        True,
    )
    assert lab.bisect().runs == 0


def test_runs_without_a_difference_are_refused(lab: Lab) -> None:
    lab.train("ab", lambda bad, step: 0.0)
    with pytest.raises(UsageError, match="equal results"):
        lab.bisect()
    with pytest.raises(UsageError, match="equal results"):
        bisect.plan(lab.ports, lab.good, lab.good)


def test_runs_with_equal_inputs_need_no_trials(lab: Lab) -> None:
    lab.train("a", lambda bad, step: 0.0)
    lab.ranks.rule = lambda bad, step: float(step)
    lab.bad = lab.again(lab.good)
    report = lab.bisect()
    assert (report.outcome, report.runs, report.plan.most_runs) == ("not explained", 0, 0)


def _in_other_environments(lab: Lab, rule: Rule, bad: str = "2.0") -> None:
    lab.ranks.rule = rule
    lab.install(ruler="1.0", gauge="1.0", old="1.0", m5ws="0.1")
    lab.good = lab.run("ab", "good")
    lab.install(ruler=bad, gauge="2.0", new="2.0", m5ws="0.2")
    lab.bad = lab.run("ab", "bad")


@pytest.mark.parametrize(
    ("needs", "causes"),
    [
        (["ruler"], {("environment distribution.ruler",)}),
        (["a", "new"], {("code a.py",), ("environment distribution.new",)}),
        (["b"], {("code b.py",)}),
    ],
)
def test_bisect_separates_distributions_if_environments_are_rebuilt(
    lab: Lab, needs: list[str], causes: set[tuple[str, ...]]
) -> None:
    _in_other_environments(lab, lambda bad, step: float(step >= 3 and bool(bad & set(needs))))
    report = lab.bisect(rebuild=True)
    assert (report.outcome, report.enough, set(report.causes)) == ("explained", True, causes)
    assert [change.name for change in report.plan.environment] == ["distribution.m5ws"], "never rebuilt"
    installed = [{requirement.name: requirement.version for requirement in recipe.requirements} for recipe in lab.built]
    assert installed[0] == {"ruler": "1.0", "gauge": "1.0", "old": "1.0"}
    assert len(set(lab.built)) == len(lab.built), "each environment is made once"
    assert lab.bisect(rebuild=True).runs == 0


def test_a_file_and_a_distribution_that_matter_only_together_are_found(lab: Lab) -> None:
    _in_other_environments(lab, lambda bad, step: float(step >= 3 and {"a", "ruler"} <= bad))
    report = lab.bisect(rebuild=True)
    assert set(report.causes[0]) == {"code a.py", "environment distribution.ruler"} and len(report.causes) == 1


def test_a_trial_without_a_buildable_environment_is_unresolved(lab: Lab) -> None:
    _in_other_environments(lab, lambda bad, step: float(step >= 3 and "gauge" in bad), bad="9.9")
    report = lab.bisect(rebuild=True)
    assert report.causes == (("environment distribution.gauge",),) and report.enough is None
    unresolved = [trial for trial in report.trials if trial.answer == "unresolved"]
    assert unresolved and all("no such version" in (trial.reason or "") for trial in unresolved)


def test_different_distributions_are_not_comparable_without_a_rebuild(lab: Lab) -> None:
    _in_other_environments(lab, lambda bad, step: float(step >= 3 and "ruler" in bad))
    report = lab.bisect()
    assert report.outcome == "not comparable", "the distributions installed here are BAD's"
    assert {change.name for change in report.plan.environment} >= {"distribution.ruler", "distribution.gauge"}
