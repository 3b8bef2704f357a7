"""Reasons: all changes that fit are named, the most likely first, and nothing is claimed beyond them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.environment.drift import rate
from m5ws.records.verdict import Change, Divergence
from m5ws.reproduce.verdict.difference_kinds import kind, rank_changes
from m5ws.reproduce.verdict.reason import reason

LR = rate("config", "optimizer.lr", "0.001", "0.002")
SEED = rate("launch", "seed", "1", "2")
DATA = rate("data", "corpus", "files 1", "files 2")
TOKENIZER = rate("tokenizer", "tokenizer.json", "a", "b")
CODE = rate("code", "train.py", "a", "b")
THREADS = rate("environment", "threads", "1", "2")
TORCH = rate("environment", "distribution.torch", "2.12.0", "2.13.0")
KERNEL = rate("environment", "kernel", "6.1", "6.2")
DROPOUT = rate("config", "model.dropout", "0.0", "0.1")
EVERYTHING = (KERNEL, TORCH, THREADS, CODE, TOKENIZER, DATA, SEED, LR, DROPOUT)


def at(quantity: str, step: int = 3, tensor: str | None = None, tensor_step: int | None = None) -> Divergence:
    return Divergence(
        step=step, rank=0, quantity=quantity, original="a", replayed="b", tensor=tensor, tensor_step=tensor_step
    )


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (at("lr"), "learning rate"),
        (at("learning_rate"), "learning rate"),
        (at("batch"), "batch"),
        (at("generator torch"), "generator"),
        (at("loss"), "arithmetic"),
        (at("grad_norm"), "arithmetic"),
        (at("clr_loss"), "arithmetic"),
        (at("batch_size"), "arithmetic"),
        (at("tensor model.batch_norm.lr"), "arithmetic"),
        (at("checkpoint"), "arithmetic"),
        (at("tensor model.w", step=0), "initial state"),
        (at("generator torch", step=0), "initial state"),
        (at("metric loss", step=0), "result"),
        (at("file out/model.bin"), "result"),
    ],
)
def test_kind_of_the_first_difference(first: Divergence, expected: str) -> None:
    assert kind(first) == expected


@pytest.mark.parametrize(
    ("first", "best"),
    [
        (at("lr"), LR),
        (at("batch"), TOKENIZER),
        (at("tensor model.w", step=0), SEED),
        (at("loss"), THREADS),
        (at("generator torch"), SEED),
    ],
)
def test_the_most_consistent_change_comes_first(first: Divergence, best: Change) -> None:
    fitting, _ = rank_changes(first, EVERYTHING)
    assert fitting[0] == best


@pytest.mark.parametrize(
    "first", [at("lr"), at("batch"), at("loss"), at("tensor w", 0), at("generator x"), at("file a")]
)
def test_every_change_that_can_alter_bits_is_listed_once(first: Divergence) -> None:
    fitting, others = rank_changes(first, EVERYTHING)
    assert sorted(map(repr, fitting + others)) == sorted(repr(change) for change in EVERYTHING if change != KERNEL)


def test_data_does_not_explain_a_loss_whose_batches_were_equal() -> None:
    fitting, others = rank_changes(at("loss"), (DATA, THREADS))
    assert (fitting, others) == ([THREADS], [DATA])


def test_no_divergence_has_no_reason() -> None:
    assert reason(None, EVERYTHING) is None


def test_one_change_that_fits() -> None:
    text = reason(at("lr", 1), (LR, KERNEL))
    assert text == (
        "config optimizer.lr: 0.001 → 0.002 is the only recorded change that can alter bits. "
        "The first difference is lr at step 1 on rank 0"
    )


@pytest.mark.parametrize("first", [at("lr", 1), at("file out/model.bin")])
def test_an_argument_is_named_as_a_config_key_is(first: Divergence) -> None:
    argument = rate("argument", "lr", "0.001", "0.002")
    text = reason(first, (argument, KERNEL)) or ""
    assert text.startswith("argument lr: 0.001 → 0.002 is the only recorded change that can alter bits. ")


def test_one_that_fits_among_others_is_not_called_certain() -> None:
    text = reason(at("loss"), (DATA, THREADS)) or ""
    assert text.startswith("most likely environment threads: 1 → 2. The first difference is loss at step 3")
    assert "Less likely causes: (1) data corpus" in text


def test_several_that_fit_are_all_named_without_a_choice() -> None:
    text = reason(at("batch"), (CODE, TOKENIZER, DATA)) or ""
    assert "3 recorded changes fit, the most likely first: (1) tokenizer tokenizer.json was changed; (2) data" in text
    assert not text.startswith("most likely")


def test_none_that_fits() -> None:
    text = reason(at("lr"), (DATA,)) or ""
    assert text.startswith("no recorded change explains the first difference, lr at step 3 on rank 0")
    assert "(1) data corpus" in text


@pytest.mark.parametrize("changes", [(), (KERNEL,)])
def test_where_nothing_differs_the_cause_is_unknown(changes: tuple[Change, ...]) -> None:
    text = reason(at("loss"), changes) or ""
    assert text.startswith("unknown: no recorded input differs")
    assert ("1 that cannot" in text) == bool(changes)


def test_what_no_rank_imported_is_named_since_their_children_may_have() -> None:
    unseen = msgspec.structs.replace(TORCH, rating="cannot", detail="no rank imported it")
    text = reason(at("file out/a"), (KERNEL, unseen)) or ""
    assert "(2 that cannot, unless a process that a rank started imported it: (1) environment distribution" in text


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (at("loss", tensor="model.wte", tensor_step=4), "loss at step 3 on rank 0"),
        (at("tensor model.wte", tensor="model.wte", tensor_step=3), "tensor model.wte after step 3"),
        (at("generator torch", step=0), "generator torch before the first step"),
        (at("grad_norm"), "grad_norm at step 3 on rank 0"),
    ],
)
def test_where_it_differed_first(first: Divergence, words: str) -> None:
    assert f". The first difference is {words}" in (reason(first, (THREADS, LR, CODE)) or "")


def test_a_file_that_came_or_went() -> None:
    added = msgspec.structs.replace(CODE, old=None)
    removed = msgspec.structs.replace(CODE, new=None)
    assert "code train.py was added is" in (reason(at("loss"), (added,)) or "")
    assert "code train.py was removed is" in (reason(at("loss"), (removed,)) or "")


def test_a_long_list_is_cut_and_counted() -> None:
    many = tuple(rate("code", f"f{number}.py", "a", "b") for number in range(12))
    assert "(8) code f7.py was changed; and 4 more. The first" in (reason(at("loss"), many) or "")


changes = st.builds(
    rate,
    st.sampled_from(["code", "config", "tokenizer", "data", "declared", "determinism", "launch", "environment"]),
    st.text(max_size=8),
    st.none() | st.text(max_size=3),
    st.none() | st.text(max_size=3),
)
firsts = st.builds(
    at, st.text(max_size=8), st.integers(0, 9), st.none() | st.text(max_size=3), st.none() | st.integers(0, 9)
)


@given(firsts, st.lists(changes, max_size=6))
def test_whatever_differs_there_is_an_answer_and_none_is_lost(first: Divergence, listed: list[Change]) -> None:
    fitting, others = rank_changes(first, listed)
    able = [change for change in listed if change.rating != "cannot"]
    assert len(fitting) + len(others) == len(able)
    assert (reason(first, listed) or "").startswith("unknown") == (not able)
