"""Kill -9 in the middle, resume, and the run equals a run that was never killed, bit for bit."""

import signal
from typing import Any

from m5ws.records.launch import Saving
from m5ws.records.ledger import RankEnded, State

RANKS = 3


def test_a_run_killed_twice_equals_an_uninterrupted_run(runner: Any, tiny: str) -> None:
    # Saved before the next step begins, so that the last checkpoint before a kill is known.
    runner.saving = Saving(asynchronous=False)
    whole = runner(tiny, "fsdp", "7", ranks=RANKS)
    assert whole.status == 0, whole.log()
    assert sorted(whole.contents) == [2, 4, 6, 7]

    runner.run = "000000000002"
    first = runner(tiny, "fsdp", "7", ranks=RANKS, kill=f"1:3:{signal.SIGKILL:d}")
    assert first.status != 0 and first.newest is not None
    second = runner(tiny, "fsdp", "7", ranks=RANKS, resume=first.newest, kill=f"2:6:{signal.SIGKILL:d}")
    assert second.status != 0 and second.newest not in (None, first.newest)
    third = runner(tiny, "fsdp", "7", ranks=RANKS, resume=second.newest)
    assert third.status == 0, third.log()

    assert [min(part.steps(0)) for part in (first, second, third)] == [1, 3, 5]
    for rank in range(RANKS):
        for part in (first, second, third):
            assert part.steps(rank) == {step: whole.steps(rank)[step] for step in part.steps(rank)}
            own, others = part.states(rank), whole.states(rank)
            # Each attempt also fingerprints its third step, to measure it.
            common = own.keys() & others.keys()
            assert common >= own.keys() & set(whole.contents)
            assert {step: own[step] for step in common} == {step: others[step] for step in common}
        assert set(first.steps(rank)) | set(second.steps(rank)) | set(third.steps(rank)) == set(range(1, 8))
    assert third.contents[7] == whole.contents[7]
    assert first.contents | second.contents | third.contents == whole.contents
    assert [event.step for event in third.of(State) if event.restored] == [4]
    assert [event.failure for event in third.of(RankEnded)] == [None]

    # One process resumes the checkpoint of three; a notice lists the ranks' own state, which is not restored.
    alone = runner(tiny, "single", "8", resume=third.newest)
    assert alone.status == 0, alone.log()
    assert any("made by 3 ranks" in message for message in alone.notices("resume-limit"))
    restored, saved = alone.states(0)[7][0], whole.states(0)[7][0]
    assert {name for name in saved if "@" not in name} <= {
        name for name in restored if restored[name] == saved.get(name)
    }
