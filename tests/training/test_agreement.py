"""All ranks of a session decide after the same step, though each rank has reasons of its own."""

import functools
import multiprocessing
import random
import time
from pathlib import Path

import torch.distributed as dist

from m5ws.training.session.agreement import Agreement

_RANKS = 4
_STOPS = 200
_MOST_S = 20.0


def _stops(rank: int, folder: Path) -> None:
    """Run many loops as one of four ranks, and write the last step of each loop.

    In each loop, at least one rank gets a request to stop. Each rank gets it at another step, or never.
    """
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=_RANKS)
    group, seen = dist.new_group(backend="gloo"), []
    for number in range(_STOPS):
        draw = random.Random(number)
        asked = {each: draw.randrange(1, 60) for each in draw.sample(range(_RANKS), draw.randint(1, _RANKS))}
        pause_s = draw.choice((0.0, 0.0, 0.001, 0.02))
        agreement, step, saves, is_over = Agreement(group), 0, list[int](), False
        while not is_over:
            step += 1
            if step == draw.randrange(1, 60):
                time.sleep(pause_s)
            is_over, is_save = agreement.on(step, step >= asked.get(rank, 10**9), rank == 0 and step % 7 == 0)
            saves += [step] if is_save else []
        seen.append(f"{step} {saves} {min(asked.values()) <= step}")
    (folder / f"{rank}").write_text("\n".join(seen))


def test_ranks_that_are_stopped_at_any_steps_end_after_the_same_step(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")
    ranks = [forks.Process(target=functools.partial(_stops, rank, tmp_path)) for rank in range(_RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(_MOST_S * _RANKS)
        assert rank.exitcode == 0
    first, *others = [(tmp_path / f"{rank}").read_text() for rank in range(_RANKS)]
    assert first.count("True") == _STOPS and "False" not in first
    assert others == [first] * (_RANKS - 1)


def test_a_single_process_decides_after_each_step() -> None:
    agreement = Agreement(None)
    assert [agreement.on(step, step == 2, step == 3) for step in (1, 2, 3)] == [
        [False, False],
        [True, False],
        [False, True],
    ]
