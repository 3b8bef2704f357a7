"""The outcome of an attempt has one order of its signs, whatever other signs there are."""

import itertools
from typing import Any

import pytest

from m5ws.agent.link import StartAgain
from m5ws.attempts.judgement import Signs, judge
from m5ws.records.failure import EndReason

_SIGNS: list[tuple[dict[str, Any], tuple[str, int, str | None]]] = [
    ({"fence": (9, EndReason(kind="superseded", attempt=2, host="h"))}, ("interrupted", 9, "superseded")),
    ({"request": "SIGINT"}, ("interrupted", 7, "stopped")),
    ({"cancel": EndReason(kind="cancelled", host="h")}, ("interrupted", 130, "cancelled")),
    ({"ending": EndReason(kind="stuck")}, ("failed", 1, "stuck")),
    ({"lost": EndReason(kind="node lost")}, ("failed", StartAgain.exit_code, "node lost")),
    ({"problem": "no port"}, ("failed", 7, "not launched")),
    ({"network": "sockets"}, ("failed", 1, "wrong network")),
    ({"enough": True}, ("interrupted", 7, "enough steps")),
    ({"worst": 3}, ("failed", 7, None)),
    ({"unrestored": True}, ("failed", 7, None)),
]
"""Signs in their order, with the outcome by each beside the exit status 7 of this node."""


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(range(len(_SIGNS)), 2)))
def test_of_two_signs_the_first_in_the_order_counts(first: int, second: int) -> None:
    (sign, expected), (later, _) = _SIGNS[first], _SIGNS[second]
    outcome, status, reason = judge(Signs(status=7, **sign, **later))
    assert (outcome, status, reason and reason.kind) == expected


def test_an_attempt_finishes_if_all_nodes_end_well_and_a_fork_restored_its_checkpoint() -> None:
    assert judge(Signs(status=0)) == ("finished", 0, None)
    assert judge(Signs(status=0, network="sockets")) == ("finished", 0, None)
    assert judge(Signs(status=0, worst=3)) == ("failed", 3, None)
    assert judge(Signs(status=0, unrestored=True)) == ("failed", 1, EndReason(kind="fork not restored"))
