"""Texts of the errors that end scripts."""

from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from m5ws.training.runtime import script_error
from m5ws.wording.failures import describe_failure


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
        return error
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


@pytest.mark.parametrize(
    ("fail", "text"),
    [
        (_fail_by_key, "KeyError: 'sample 1 is broken' (test_script_error.py:"),
        (_fail_in_a_handler, "RuntimeError: Connection reset by peer\n  while reading (test_script_error.py:"),
    ],
)
def test_an_error_in_a_loader_worker_keeps_its_text_and_place(fail: Callable[[], None], text: str) -> None:
    error = _error(_load(fail))
    described = describe_failure(script_error.find_failure(error))
    assert described.startswith(text) and described.endswith(", loader worker 0)")
