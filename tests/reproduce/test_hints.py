"""Hints at the cause of a first difference: one pattern for each kind of fault."""

import re
from collections.abc import Set as AbstractSet
from itertools import combinations

import msgspec
import pytest

from m5ws.environment.drift import rate
from m5ws.records.base import Digest
from m5ws.records.ledger import RESUME_LIMIT, AnyEvent, AttemptStarted, Notice, RankStarted, Setting, State, Step
from m5ws.records.verdict import Change, Divergence
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.verdict import hints
from m5ws.reproduce.verdict.reason import reason
from m5ws.runs.history import History

_TENSORS = ("model.a", "model.b", "optimizer.a.exp_avg", "optimizer.a.exp_avg_sq", "optimizer.a.step")


def _digest(text: str) -> Digest:
    return text.encode().hex().ljust(64, "0")


def _events(
    changed: dict[str, str], at: int = 3, resumed: bool = False, fed: bool = True
) -> list[tuple[str, AnyEvent]]:
    """Return four steps, in which `changed` has the values of step `at`. With `fed`, batches are recorded."""
    events: list[tuple[str, AnyEvent]] = [("launcher", AttemptStarted(attempt=1, host="h", observed="0" * 64))]
    events.append(("0", RankStarted(rank=0, world=1, pid=1, facts={"threads": "1"})))
    for step in range(1, 5):
        if resumed and step == at:
            name = f"{step - 1:010d}-0001"
            events.append(("launcher", AttemptStarted(attempt=2, host="h", observed="0" * 64, resume=name)))
            events.append(("0", RankStarted(rank=0, world=1, pid=2, facts={"threads": "1"})))
        new = changed if step == at else {}
        if "threads" in new:
            events.append(("0", Setting(rank=0, step=step, name="threads", value=new["threads"])))
        quantities = {name: new.get(name, f"{name}{step}") for name in ("loss", "grad_norm", "lr", "epoch")}
        batch = _digest(new.get("batch", f"b{step}")) if fed else None
        events.append(("0", Step(step=step, quantities=quantities, batch=batch)))
        tensors = {name: new.get(name, f"{name}{step}") for name in _TENSORS}
        events.append(("0", State(step=step, tensors=tensors, generators={"torch": new.get("torch", f"g{step}")})))
    return events


def test_a_script_that_was_resumed_from_its_own_files_is_no_mystery() -> None:
    given = Notice(kind="outputs-restored", message="2 output files")
    hint = hints.resume_hint(Comparison(History(attempts=2, notices=[given])))
    assert hint is not None and hint.strong and "attempt 2 continued" in hint.words and "limits" not in hint.words
    limit = Notice(kind="resume-limit", message="no optimizer")
    limited = hints.resume_hint(Comparison(History(attempts=2, notices=[given, limit])))
    assert limited is not None and limited.words.endswith("limits of its resumes: no optimizer")
    by_session = History(attempts=2, notices=[given], steps={0: {1: Step(step=1, quantities={})}})
    assert hints.resume_hint(Comparison(History(attempts=1))) is hints.resume_hint(Comparison(by_session)) is None


@pytest.mark.parametrize("quantity", ["file out/a.ckpt:w", "file out/a.csv", "metric loss"])
def test_a_file_or_metric_that_differs_after_equal_steps_has_no_hint_but_a_resume(quantity: str) -> None:
    def found(*notices: Notice, resumed: bool) -> hints.Hint | None:
        original = History(steps={}, states={}, contents={}, facts={}, notices=list(notices), begun=[], threads={})
        for rank, event in _events({}, at=2, resumed=resumed):
            original.add(rank, event)
        comparison = Comparison(original)
        for rank, event in _events({}):
            comparison.feed(rank, event)
        assert comparison.first() is None
        first = Divergence(step=4, rank=0, quantity=quantity, original="1", replayed="2")
        return hints.find_hint(comparison, first, begin=0)

    assert found(resumed=False) is None and found(resumed=True) is None
    hint = found(Notice(kind="inexact-resume", message="the resume was not exact", step=3), resumed=True)
    assert hint is not None and "after step 1 the resume was not exact" in hint.words


def _hint(changed: dict[str, str], *more: Notice, resumed: bool = False) -> hints.Hint:
    """Return the hint for an original in which step 3 is `changed`, with the notices `more`."""
    return _pointed([*_events(changed, resumed=resumed), *(("launcher", event) for event in more)])


def _compared(events: list[tuple[str, AnyEvent]], fed: bool = True) -> tuple[Comparison, Divergence]:
    original = History(steps={}, states={}, contents={}, facts={}, notices=[], begun=[], threads={})
    for rank, event in events:
        original.add(rank, event)
    comparison = Comparison(original)
    for rank, event in _events({}, fed=fed):
        comparison.feed(rank, event)
    first = comparison.first()
    assert first is not None and first.step == 3
    return comparison, first


def _pointed(events: list[tuple[str, AnyEvent]]) -> hints.Hint:
    hint = hints.find_hint(*_compared(events), begin=2)
    assert hint is not None
    return hint


_ALL = dict.fromkeys(_TENSORS[:4], "x")


@pytest.mark.parametrize(
    ("changed", "words", "strong"),
    [
        ({"model.b": "x"}, "model.b alone differs", True),
        ({"optimizer.a.exp_avg": "x"}, "optimizer.a.exp_avg alone differs", True),
        ({"loss": "x"}, "only the record differs: loss of step 3", True),
        ({"batch": "x"}, "only the record differs: batch of step 3", True),
        (
            _ALL | {"loss": "x", "grad_norm": "x", "batch": "x"},
            "samples with different content, or in a different order",
            False,
        ),
        (_ALL | {"loss": "x", "grad_norm": "x", "torch": "x"}, "dropout that was on in one", False),
        (_ALL | {"loss": "x", "threads": "2"}, "rank 0 used 2 threads in step 3, and 1 in the replay", True),
        (_ALL | {"loss": "x"}, "the arithmetic of the forward pass", False),
        (_ALL | {"grad_norm": "x"}, "the arithmetic of the backward pass", False),
        (_ALL, "the arithmetic of the backward pass", False),
        ({"model.a": "x", "model.b": "x"}, "learning rate, weight decay or eps", False),
        ({"model.a": "x", "optimizer.a.exp_avg": "x"}, "the optimizer's betas: ", False),
    ],
)
def test_a_fault_is_known_by_its_pattern(changed: dict[str, str], words: str, strong: bool) -> None:
    hint = _hint(changed)
    assert words in hint.words and hint.strong == strong
    assert str(hint).startswith(hints.MARK) == strong


def test_a_batch_that_came_in_another_step_points_to_the_order_of_the_data() -> None:
    swapped = [
        (
            rank,
            msgspec.structs.replace(event, batch=_digest("b3"))
            if getattr(event, "batch", "") == _digest("b4")
            else event,
        )
        for rank, event in _events({})
    ]
    first = _events(_ALL | {"loss": "x", "batch": "b4"})
    hint = _pointed(
        [changed if getattr(changed[1], "step", 0) == 3 else kept for changed, kept in zip(first, swapped, strict=True)]
    )
    assert hint.strong and "batch of step 3 was the original's batch of step 4" in hint.words


def test_the_first_step_after_a_resume_points_to_the_resume() -> None:
    assert "an attempt resumed after step 2" in _hint(_ALL | {"loss": "x", "torch": "x"}, resumed=True).words
    notice = Notice(kind="inexact-resume", message="the resume was not exact: step 3", step=3)
    assert "after step 2 the resume was not exact: step 3" in _hint(_ALL | {"loss": "x"}, notice, resumed=True).words


def test_a_limit_that_the_run_recorded_is_the_likely_cause_of_an_inexact_resume() -> None:
    limit = Notice(kind=RESUME_LIMIT, message="the data loader has no state_dict")
    other = Notice(kind="limit", message="an output file is too large")
    inexact = Notice(kind="inexact-resume", message="the resume was not exact: step 3", step=3)
    changed = _ALL | {"batch": "x", "loss": "x"}
    for notices in ((limit, other, limit), (limit, inexact)):
        words = _hint(changed, *notices, resumed=True).words
        assert words.count("no state_dict") == 1 and "the likely cause" in words and "too large" not in words
    # The batch is equal, so the position in the data is not the cause.
    words = _hint(_ALL | {"loss": "x"}, limit, resumed=True).words
    assert "no state_dict" in words and "the likely cause" not in words
    assert "no state_dict" not in _hint(changed, limit).words


def test_a_notice_of_another_resume_is_no_reason() -> None:
    notice = Notice(kind="inexact-resume", message="the resume was not exact: step 9", step=9)
    assert "resume" not in _hint({"model.b": "x"}, notice).words


# --- no sentence of a verdict contradicts another -----------------------------------------------------------------

# Differences at the first step that differs: each cause of a hint, and each kind of first quantity.
_TRACES: dict[str, dict[str, str]] = {
    "lr": {"lr": "x"},
    "lr and state": _ALL | {"lr": "x"},
    "lr, generator and state": _ALL | {"lr": "x", "torch": "x"},
    "lr and threads": _ALL | {"lr": "x", "threads": "2"},
    "a quantity of the script": _ALL | {"epoch": "x"},
    "batch": _ALL | {"loss": "x", "grad_norm": "x", "batch": "x"},
    "batch of another step": _ALL | {"loss": "x", "batch": "b4"},
    "record": {"loss": "x"},
    "loss": _ALL | {"loss": "x"},
    "loss and threads": _ALL | {"loss": "x", "threads": "2"},
    "loss and generator": _ALL | {"loss": "x", "torch": "x"},
    "gradient": _ALL | {"grad_norm": "x"},
    "generator": _ALL | {"torch": "x"},
    "one tensor": {"model.b": "x"},
    "weights": {"model.a": "x", "model.b": "x"},
    "moments": {"model.a": "x", "optimizer.a.exp_avg": "x"},
    "state": _ALL,
}
# Recorded changes, and the patterns that each explains in any case; None: all of them.
_CHANGES: tuple[tuple[Change, AbstractSet[str] | None], ...] = (
    (rate("config", "learning_rate", "0.1", "0.2"), _TRACES.keys() - {"batch", "batch of another step"}),
    (rate("config", "model.dropout", "0.0", "0.1"), _TRACES.keys() - {"batch", "batch of another step"}),
    (rate("config", "batch_size", "4", "8"), None),
    (rate("code", "train.py", "a", "b"), None),
    (rate("launch", "command", "train.py", "train.py -v"), None),
    (rate("launch", "seed", "1", "2"), {"batch", "batch of another step", "generator", "loss and generator"}),
    (rate("data", "corpus", "a", "b"), {"batch", "batch of another step"}),
    (rate("tokenizer", "tokenizer.json", "a", "b"), {"batch", "batch of another step"}),
    (rate("determinism", "threads", "2", "1"), {"loss", "loss and threads", "gradient"}),
    (rate("environment", "threads", "2", "1"), {"loss", "loss and threads", "gradient"}),
    (rate("environment", "distribution.torch", "2.12", "2.13"), {"loss", "gradient", "generator", "moments"}),
    (rate("environment", "distribution.gauge", "1", "2"), set()),
)
_HINT = re.compile(
    r"[Ll]ikely cause: |likely the |in the original, |threads|kernel|vector width|a library|dropout that"
    r"|the optimizer's|alone differs"
)
_COMPUTES = re.compile(r"threads|kernel|vector width|a library|arithmetic of")


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("traces", _TRACES)
def test_a_cause_that_is_named_is_not_contradicted(traces: str, fed: bool, resumed: bool) -> None:
    changed = {name: value for name, value in _TRACES[traces].items() if fed or name != "batch"}
    comparison, first = _compared(_events(changed, resumed=resumed, fed=fed), fed=fed)
    hint, kind = hints.find_hint(comparison, first, begin=2), hints.kind(comparison, first)
    for size in range(3):
        for chosen in combinations(_CHANGES, size):
            text = reason(first, [change for change, _ in chosen], hint, kind) or ""
            explaining = [change for change, of in chosen if of is None or (traces in of and not resumed and fed)]
            named = " ".join(f"{change.part} {change.name}" for change, _ in chosen)
            rest = text
            for change, _ in chosen:
                rest = rest.replace(f"{change.part} {change.name}", "")
            if explaining:
                cause = text.partition(". The first difference is ")[0]
                assert all(change.name in cause for change in explaining), (named, text)
                assert not _HINT.search(rest), (named, text)
            if first.quantity == "lr" and not resumed:
                assert not _COMPUTES.search(rest), (named, text)


def test_data_explains_a_loss_whose_batches_were_not_recorded() -> None:
    data = rate("data", "corpus", "a", "b")
    for fed in (True, False):
        comparison, first = _compared(_events(_ALL | {"loss": "x"}, fed=fed), fed=fed)
        text = reason(first, [data], hints.find_hint(comparison, first, begin=2), hints.kind(comparison, first)) or ""
        assert text.startswith("data corpus") == (not fed)
        assert ("the arithmetic of the forward pass" in text) == fed
