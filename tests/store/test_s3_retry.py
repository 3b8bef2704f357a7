"""The end of retries."""

import random

import pytest

from m5ws.store.s3.errors import NoCredentials, StoreFailing, StoreUnreachable, TransientError
from m5ws.store.s3.retry import Retrier, RetryPolicy


def _persistence(patience: RetryPolicy, renewed: list[None] | None = None) -> Retrier:
    kept: list[None] = [] if renewed is None else renewed

    def renew() -> bool:
        kept.append(None)
        return len(kept) == 1

    return Retrier("s3://bucket/store", patience, renew)


def test_each_attempt_gets_its_number_and_expired_credentials_are_renewed() -> None:
    renewed: list[None] = []
    numbers: list[int] = []

    def attempt(number: int) -> str:
        numbers.append(number)
        if number < 3:
            raise TransientError("old", expired=number == 1)
        return "done"

    patience = RetryPolicy(first_s=0.0, longest_s=0.0)
    assert _persistence(patience, renewed).call("a", attempt) == "done"
    assert numbers == [0, 1, 2, 3] and len(renewed) == 1
    with pytest.raises(NoCredentials, match="attempt 2"):
        _persistence(patience, renewed).call("a", attempt)


@pytest.mark.parametrize(("unreachable", "error"), [(False, StoreFailing), (True, StoreUnreachable)])
def test_the_error_of_an_exhausted_budget_names_the_cause(unreachable: bool, error: type[Exception]) -> None:
    def attempt(_number: int) -> None:
        raise TransientError("the cause", unreachable=unreachable)

    with pytest.raises(error, match=r"s3://bucket/store.*\b1 .*the cause"):
        _persistence(RetryPolicy(budget_s=0.0, contact_s=0.0)).call("reading a", attempt)


def test_an_error_that_is_not_transient_is_not_retried() -> None:
    calls: list[int] = []

    def attempt(number: int) -> None:
        calls.append(number)
        raise KeyError(number)

    with pytest.raises(KeyError):
        _persistence(RetryPolicy()).call("a", attempt)
    assert calls == [0]


def test_pauses_draw_nothing_from_the_generator_that_a_training_uses() -> None:
    before = random.getstate()

    def attempt(number: int) -> str:
        if number < 3:
            raise TransientError("slow down")
        return "done"

    assert _persistence(RetryPolicy(first_s=0.001, longest_s=0.001)).call("a", attempt) == "done"
    assert random.getstate() == before
