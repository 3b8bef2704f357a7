"""Arguments of a command as parameters: every form that people write, and no form that fails."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config.commands import arguments

_FILES = {
    "a.json": b'{"lr": 0.001, "name": "x", "betas": [0.9, 0.99]}',
    "conf/b.yaml": b"opt: {lr: 1}\nnone:\n",
    "bad.json": b"{",
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {}),
        ("--lr 1e-3 --epochs=3", {"lr": "1e-3", "epochs": "3"}),
        ("--learning-rate -1e-3 --eps -.5", {"learning_rate": "-1e-3", "eps": "-.5"}),
        ("--fast --no-ema -v", {"fast": "true", "ema": "false", "v": "true"}),
        ("--no-decay a b", {"no_decay": "a b"}),
        ("--layers 1 2 3 --tag a --tag b", {"layers": "1 2 3", "tag": "a b"}),
        ("--empty= --x ''", {"empty": "", "x": ""}),
        ("data.txt --lr 1", {"1": "data.txt", "lr": "1"}),
        ("one two -- --three", {"1": "one", "2": "two", "3": "--three"}),
        ("a.b=c +x=1 ++y.z=2 ~w", {"a.b": "c", "x": "1", "y.z": "2", "w": "deleted"}),
        ("optim@model=adam --model_args a=b,c=d", {"optim@model": "adam", "model_args": "a=b,c=d"}),
        ("--config-name base lr=0.1", {"config_name": "base", "lr": "0.1"}),
        ("--set lr=0.1 --set k=v", {"set": "lr=0.1 k=v"}),
        ("a.json", {"1": "a.json", "lr": "0.001", "name": "x", "betas.0": "0.9", "betas.1": "0.99"}),
        ("a.json --lr 2", {"1": "a.json", "lr": "2", "name": "x", "betas.0": "0.9", "betas.1": "0.99"}),
        ("--config conf/b.yaml", {"config": "conf/b.yaml", "config.opt.lr": "1", "config.none": "null"}),
        ("conf/b.yaml bad.json", {"1": "conf/b.yaml", "2": "bad.json", "1.opt.lr": "1", "1.none": "null"}),
    ],
)  # fmt: skip
def test_arguments_are_parsed_into_named_values(words: str, expected: dict[str, str]) -> None:
    parsed = arguments.parse(("train.py", *shlex.split(words)), _FILES.get)
    assert (parsed.script, parsed.parameters()) == (("train.py",), expected)


def test_a_module_is_parsed_as_the_script() -> None:
    parsed = arguments.parse(("-m", "pkg.train", "-m", "x"), _FILES.get)
    assert (parsed.script, parsed.values) == (("-m", "pkg.train"), {"m": "x"})


@given(st.lists(st.text(max_size=6) | st.sampled_from(["--", "--a", "--a=b", "a=b", "~a", "-1", "a.json"]), max_size=8))
def test_any_words_after_the_script_are_parsed_into_values(words: list[str]) -> None:
    parsed = arguments.parse(("train.py", *words), _FILES.get)
    assert bool(parsed.values) == (words not in ([], ["--"]))


_COMMAND = (
    "-m",
    "pkg.train",
    "--lr",
    "1e-3",
    "--width=64",
    "--betas",
    "0.9",
    "0.95",
    "+a.b=c",
    "--ema",
    "--",
    "--lr",
    "2",
)


@pytest.mark.parametrize(
    ("name", "value", "position", "word"),
    [
        ("lr", "3e-4", 3, "3e-4"),
        ("width", "32", 4, "--width=32"),
        ("a.b", "d", 8, "+a.b=d"),
        ("betas", "1", None, ""),
        ("ema", "1", None, ""),
        ("1", "x", None, ""),
        ("absent", "1", None, ""),
    ],
)
def test_an_argument_with_one_value_is_replaced(name: str, value: str, position: int | None, word: str) -> None:
    expected = None if position is None else (*_COMMAND[:position], word, *_COMMAND[position + 1 :])
    assert arguments.replace(_COMMAND, name, value) == expected


def test_an_argument_that_is_given_twice_is_not_replaced() -> None:
    assert arguments.replace(("train.py", "--lr", "1", "--lr", "2"), "lr", "3") is None
    assert arguments.replace(("train.py", "--batch-size", "1"), "batch_size", "3") == ("train.py", "--batch-size", "3")
