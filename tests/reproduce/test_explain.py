"""Explanations from traced replays, and the choice of the traced steps."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.launch.interface import LaunchFailed, Process
from m5ws.records.explanation import Explanation, TracedReplay
from m5ws.records.launch import LaunchRequest, Observing
from m5ws.records.ledger import State, Step
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.trace import TraceEntry
from m5ws.records.verdict import Divergence, Verdict
from m5ws.repository.repository import Repository
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.explain.explain import ExplainContext, ReplayResult, combine_sides, explain_divergence, window
from m5ws.reproduce.explain.locate import TraceView
from m5ws.runs.history import History
from tests.support.ranks.orders import orders
from tests.support.records import planted

STEP = 40


def history(states: list[int], loss: str = "l") -> History:
    made = History()
    for step in range(1, STEP + 1):
        made.add("0", Step(step=step, quantities={"loss": loss if step == STEP else "l"}))
    for step in states:
        made.add("0", State(step=step, tensors={"model.w": "t"}, generators={"torch": "r"}))
    return made


def case(states: list[int], step: int = STEP) -> ExplainContext:
    """Return a replay whose loss differs in a step, with the states after `states` recorded."""
    spec = LaunchSpec(command=("x.py",))
    replay = Run(id="b", snapshot="0" * 64, spec=spec, purpose="reproduce", reproduces="a")
    directory = Path("/nowhere")
    planned = AttemptPlan(
        run=replay,
        attempt=1,
        directory=directory,
        context=orders(directory),
        request=LaunchRequest(argv=(), cwd="", environment={}, log=""),
    )
    comparison = Comparison(history(states))
    comparison.replay = history([state for state in states if state < step], "other")
    first = Divergence(step=step, rank=0, quantity="loss", original="l", replayed="other")
    verdict = Verdict(run="a", replay="b", outcome="diverged", first=first)
    return ExplainContext(ports=cast(Any, None), replay=planned, comparison=comparison, verdict=verdict, first=first)


@pytest.mark.parametrize(
    ("states", "step", "expected"),
    [
        (list(range(STEP + 1)), STEP, (STEP, STEP)),
        ([0, 36, 40], STEP, (37, STEP)),
        # A stretch that is too long: its last steps.
        ([0, 40], STEP, (25, STEP)),
        ([0], 3, (1, 3)),
        ([], 3, (1, 3)),
        # A difference before the first step shows in the first step.
        ([0], 0, (1, 1)),
    ],
)
def test_the_traced_steps_follow_the_last_equal_state(states: list[int], step: int, expected: tuple[int, int]) -> None:
    assert window(case(states, step)) == expected


def looked(side: Any, output: str, loss: str = "other") -> ReplayResult:
    seen = [
        TraceEntry(step=STEP, kind="enter", name="mix", what="model.Mix()", given={"input 0": "i"}),
        TraceEntry(
            step=STEP, kind="leave", name="mix", what="model.Mix()", made={"output 0": output}, op="IndexAddBackward0"
        ),
    ]
    made = TracedReplay(side=side, replay=side, agrees=True)
    return ReplayResult(side=made, look=TraceView(history=history([STEP - 1], loss), seen={0: seen}))


def none(side: Any, problem: str = "why not") -> ReplayResult:
    return ReplayResult(side=TracedReplay(side=side, problem=problem))


def causes(explanation: Explanation) -> list[tuple[str, bool]]:
    return [(cause.kind, cause.certain) for cause in explanation.causes]


def test_a_difference_between_two_replays_is_explained_first() -> None:
    context = case(list(range(STEP)))
    explanation = combine_sides(
        context, (STEP, STEP), looked("replay", "o"), looked("again", "other"), none("original")
    )
    assert (explanation.between, explanation.repeats) == ("two replays", False)
    assert explanation.place is not None and (explanation.place.module, explanation.place.alone) == ("mix", True)
    assert causes(explanation) == [("nondeterministic kernel", False)]
    assert "IndexAdd of mix" in explanation.causes[0].evidence[0]


def test_the_ledger_of_an_original_without_a_trace_is_compared_with_the_replay() -> None:
    context = case(list(range(STEP)))
    explanation = combine_sides(context, (STEP, STEP), looked("replay", "o"), looked("again", "o"), none("original"))
    assert (explanation.between, explanation.repeats) == ("record and replay", True)
    assert explanation.place is not None and (explanation.place.phase, explanation.place.module) == ("loss", None)
    assert causes(explanation) == [("unknown", False)]


def test_a_replay_that_is_equal_now_shows_nothing_and_has_no_cause() -> None:
    context = case(list(range(STEP)))
    explanation = combine_sides(
        context, (STEP, STEP), looked("replay", "o", "l"), looked("again", "o", "l"), none("original")
    )
    assert (explanation.place, explanation.between, explanation.repeats) == (None, None, True)
    assert causes(explanation) == [("unknown", False)]


def test_an_explanation_without_any_replay_has_no_place() -> None:
    context = case(list(range(STEP)))
    explanation = combine_sides(context, (STEP, STEP), none("replay"), none("again"), none("original"))
    assert (explanation.place, explanation.repeats) == (None, None) and explanation.replays == ()
    assert [side.problem for side in explanation.sides] == ["why not"] * 3


class Asked:
    """A launcher that records its requests and starts nothing."""

    def __init__(self) -> None:
        self.requests: list[LaunchRequest] = []

    def can_mount(self, folder: str, path: str) -> bool:
        return False

    def launch(self, request: LaunchRequest) -> Process:
        self.requests.append(request)
        raise LaunchFailed("no more is asked for")


def test_traced_steps_run_with_the_interpreter_of_the_replay(repo: Repository, tmp_path: Path) -> None:
    """With `--env rebuild` that interpreter is not the interpreter that runs m5ws."""
    pinned = planted.publish(repo, planted.snapshot(planted.tree(repo, tmp_path / "w", {"x.py": ""})))
    planted.run(repo, "a" * 12, pinned)
    launcher, context = Asked(), case([0])
    directory = tmp_path / ".m5ws" / "runs" / ("b" * 12) / "0001"
    replay = msgspec.structs.replace(context.replay.run, id="b" * 12, snapshot=pinned, reproduces="a" * 12)
    ports = Ports(
        repo=repo,
        launcher=launcher,
        observing=Observing(),
        tracker=None,
        environment={},
        work_root=tmp_path / "work",
        python="/rebuilt/bin/python",
    )
    explanation, _ = explain_divergence(
        msgspec.structs.replace(
            context,
            ports=ports,
            replay=msgspec.structs.replace(context.replay, run=replay, directory=directory),
            verdict=msgspec.structs.replace(context.verdict, run="a" * 12, replay="b" * 12),
        )
    )
    assert [request.argv[0] for request in launcher.requests] == ["/rebuilt/bin/python"], explanation


def test_an_unavailable_store_prevents_the_explanation_and_keeps_the_verdict(repo: Repository, tmp_path: Path) -> None:
    """The store has nothing of the original."""
    ports = Ports(repo=repo, launcher=Asked(), observing=Observing(), tracker=None, environment={}, work_root=tmp_path)
    explanation, stopped = explain_divergence(msgspec.structs.replace(case([0]), ports=ports))
    assert (explanation.place, causes(explanation)) == (None, [("unknown", False)])
    assert "not finished" in explanation.limits[0] and not stopped
