"""Texts of the errors that end scripts, and their origins."""

import os
import signal
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from m5ws.training.runtime import script_error


class _Broken(Dataset[torch.Tensor]):
    """Its second sample fails as `fail` does."""

    def __init__(self, fail: Callable[[], None]) -> None:
        self.fail = fail

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 1:
            self.fail()
        return torch.ones(2)


def _error(call: Callable[[], object]) -> BaseException:
    """Return the error of a call, as a rank finds it."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # as the broad handler of a rank
        return script_error.find_worker_error(error)
    raise AssertionError("no error")


def _load(fail: Callable[[], None]) -> Callable[[], object]:
    return lambda: list(DataLoader(_Broken(fail), num_workers=1))


def _fail_by_key() -> None:
    raise KeyError("sample 1 is broken")


def _fail_in_a_handler() -> None:
    try:
        _fail_by_key()
    except KeyError as error:
        raise RuntimeError("Connection reset by peer\n  while reading") from error


def _multiply() -> None:
    torch.ones(2) @ torch.ones(3)


def _fail_after_a_collective() -> None:
    try:
        _multiply()
    except RuntimeError as error:
        raise RuntimeError("step 3") from error


@pytest.mark.parametrize(
    ("fail", "text"),
    [
        (_fail_by_key, "KeyError: 'sample 1 is broken' (test_script_error.py:"),
        (_fail_in_a_handler, "RuntimeError: Connection reset by peer\n  while reading (test_script_error.py:"),
    ],
)
def test_an_error_of_a_loaders_worker_has_its_own_text_and_place(fail: Callable[[], None], text: str) -> None:
    error = _error(_load(fail))
    described = script_error.describe(error)
    assert described.startswith(text) and described.endswith(", loader worker 0)")
    assert script_error.is_raised(error)


def test_a_loaders_worker_that_was_killed_is_named() -> None:
    """Its connection may break before torch's handler has the signal."""
    assert "DataLoader worker" in script_error.describe(_error(_load(lambda: os.kill(os.getpid(), signal.SIGKILL))))


@pytest.mark.parametrize(
    ("fail", "is_raised"),
    [(_fail_by_key, True), (_fail_in_a_handler, True), (_multiply, False), (_fail_after_a_collective, False)],
)
def test_an_error_is_raised_by_a_statement_or_by_compiled_code(fail: Callable[[], None], is_raised: bool) -> None:
    assert script_error.is_raised(_error(fail)) == is_raised


def _fail_in_the_end() -> None:
    try:
        _fail_by_key()
    finally:
        _multiply()


@pytest.mark.parametrize(
    ("fail", "has_origin"), [(_fail_in_the_end, True), (_multiply, False), (_fail_after_a_collective, False)]
)
def test_the_error_that_was_handled_when_a_collective_failed_is_named_too(
    fail: Callable[[], None], has_origin: bool
) -> None:
    described = script_error.describe_origin(_error(fail))
    assert (" while handling KeyError: 'sample 1 is broken'" in described) == has_origin
    assert described.startswith("RuntimeError: ")
