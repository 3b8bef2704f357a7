"""Try one loader: its order for many numbers of ranks and workers, resumes, kills and damaged files.

Usage: loader_trial.py NAME FOLDER KILLS [PART…], with an interpreter that has the loader. Parts: order, resumes,
changes, kills, kills_fixed, state_bytes, damage; by default all. The last line of stdout is JSON. Ends with 3 if the
loader is not installed. Each rank has a session of its own, and is killed with its workers.
"""

import contextlib
import importlib
import importlib.metadata
import json
import os
import pickle
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from loader_adapters import EPOCHS, GLOBAL_BATCH, LOADERS, SAMPLES, Loader, Place, join, make_samples, new_folder

Topology = tuple[int, int]
Steps = list[list[int]]
NOT_INSTALLED = 3
WORLDS, WORKERS = (1, 2, 3, 4, 8), (0, 1, 2, 3, 4)
STEPS = EPOCHS * SAMPLES // GLOBAL_BATCH
EPOCH_STEPS = SAMPLES // GLOBAL_BATCH
_LIMIT_S = 150.0
_QUIET_S = 40.0
# Where resumes are tried: in the first epoch, at its end, in the second.
_STOPS = (EPOCH_STEPS // 2 + 3, EPOCH_STEPS, EPOCH_STEPS + EPOCH_STEPS // 3)
_RESUMES: tuple[Topology, ...] = ((1, 0), (2, 0), (2, 2), (4, 1))
_CHANGES: tuple[tuple[Topology, Topology], ...] = (
    ((2, 2), (4, 2)), ((2, 2), (1, 2)), ((2, 2), (3, 2)), ((2, 2), (8, 0)), ((4, 1), (2, 1)), ((8, 0), (3, 0)),
    ((2, 2), (2, 3)), ((2, 2), (2, 0)), ((1, 0), (1, 4)), ((3, 1), (3, 2)),
)  # fmt: skip
_FLIPS = 6


class Failed(Exception):
    """A rank of an attempt failed; the message is its error."""


class Attempt:
    """The ranks of one start. Each writes the ids of its batches and, if the loader has one, its state after each."""

    def __init__(self, name: str, data: Path, out: Path, topology: Topology, saved: "Saved | None") -> None:
        self.world, self.workers = topology
        self._out, self.first = new_folder(out, "ranks"), saved.step if saved else 0
        self._pids = dict[int, int]()
        for rank in range(self.world):
            pid = os.fork()
            if pid == 0:
                state = saved.states[min(rank, len(saved.states) - 1)] if saved else None
                _be_rank(name, data, self._out, Place(rank, *topology), self.first, state)
            self._pids[rank] = pid

    def running(self) -> bool:
        for rank, pid in [*self._pids.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[rank]
                _kill_group(pid)
                if status:
                    (self._out / f"error-{rank}").write_text(f"status {status}")
        return bool(self._pids)

    def kill(self) -> None:
        """Kill all ranks and their workers at once."""
        for pid in self._pids.values():
            _kill_group(pid)
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        self._pids.clear()

    def wait(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the end of the ranks, or for a condition. Return False after a time without a new batch."""
        began_s = quiet_s = time.monotonic()
        written = 0
        while self.running() and not until():
            time.sleep(0.003)
            if (size := self._written()) != written:
                written, quiet_s = size, time.monotonic()
            if time.monotonic() > min(began_s + _LIMIT_S, quiet_s + _QUIET_S):
                self.kill()
                return False
        return True

    def _written(self) -> int:
        return sum(path.stat().st_size for path in self._out.glob("ids-*"))

    def reached(self) -> int:
        """Return the number of steps of which the first rank has the batch."""
        with contextlib.suppress(FileNotFoundError):
            return self.first + (self._out / "ids-0").read_bytes().count(b"\n")
        return self.first

    def steps(self) -> Steps:
        """Return the ids of each step, in the order of the ranks. Raises Failed."""
        for error in sorted(self._out.glob("error-*")):
            raise Failed(error.read_text())
        lines = [self._lines(rank) for rank in range(self.world)]
        return [
            [number for rank in lines if step < len(rank) for number in rank[step]]
            for step in range(max(map(len, lines)))
        ]

    def _lines(self, rank: int) -> Steps:
        path = self._out / f"ids-{rank}"
        text = path.read_text() if path.exists() else ""
        return [[int(word) for word in line.split()] for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wrong(self) -> bool:
        """Return True if a batch had other content than its ids."""
        return any(self._out.glob("wrong-*"))

    def saved(self, at: int | None = None) -> "Saved | None":
        """Return the states after a step; else the newest states that are not at the end of an epoch."""
        by_step = dict[int, int]()
        for path in self._out.glob("state-*"):
            step = int(path.name.split("-")[1])
            by_step[step] = by_step.get(step, 0) + 1
        whole = [step for step, ranks in by_step.items() if ranks == self.world]
        chosen = [step for step in whole if (step % EPOCH_STEPS if at is None else step == at)]
        if not chosen:
            return None
        paths = (self._out / f"state-{max(chosen)}-{rank}" for rank in range(self.world))
        return Saved(max(chosen), [pickle.loads(path.read_bytes()) for path in paths])  # noqa: S301  # written here


class Saved:
    """The states of all ranks after a step."""

    def __init__(self, step: int, states: list[Any]) -> None:
        self.step, self.states = step, states


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _be_rank(name: str, data: Path, out: Path, place: Place, first: int, saved: Any) -> None:
    """Be a rank: read all batches up to the last step. Does not return."""
    os.setsid()
    log = os.open(out / f"log-{place.rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        loader = LOADERS[name][1]()
        join(place, out, loader)
        epoch, state = saved or (0, None)
        loader.start(data, place, state)
        with open(out / f"ids-{place.rank}", "a", buffering=1) as ids:
            for step, (number, batch) in enumerate(_batches(loader, epoch), first + 1):
                if not np.array_equal(batch, make_samples(batch[:, 0])):
                    (out / f"wrong-{place.rank}").touch()
                # Before the state: a step with a state has ids, also after a kill in between.
                ids.write(" ".join(map(str, batch[:, 0].tolist())) + "\n")
                if loader.stateful:
                    _save(out / f"state-{step}-{place.rank}", (number, loader.state()))
                time.sleep(0.003)
    except BaseException as error:  # noqa: BLE001  # the rank ends, and the error is its result
        last = "".join(traceback.format_exception(error)[-3:])
        print(last, flush=True)
        (out / f"error-{place.rank}").write_text(f"{type(error).__name__}: {error}")
    os._exit(0)


def _batches(loader: Loader, epoch: int) -> Iterator[tuple[int, Any]]:
    for number in range(epoch, EPOCHS):
        for batch in loader.batches(number):
            yield number, np.asarray(batch)


def _save(path: Path, saved: Any) -> None:
    """Write a state as a checkpoint does: the name is there when the content is."""
    draft = path.with_name(f"draft-{path.name}")
    draft.write_bytes(pickle.dumps(saved))
    draft.rename(path)


def _prepare(name: str, data: Path) -> list[Path]:
    """Write the data set in a process of its own, since not each library can be used on both sides of a fork."""
    listed = data.with_name("files")
    if (pid := os.fork()) == 0:
        try:
            listed.write_text("\n".join(map(str, LOADERS[name][1]().prepare(data))))
        except BaseException:  # noqa: BLE001  # the process ends
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        sys.exit("the data set was not written")
    return [*map(Path, listed.read_text().splitlines())]


class Trial:
    """The tests of one loader."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._out = name, folder
        self._data = new_folder(folder, "data")
        self.files = _prepare(name, self._data)
        self.stateful = LOADERS[name][1].stateful
        self.plain = self.run((1, 0)).steps()
        if len(self.plain) != STEPS or once(self.plain):
            raise Failed(f"one process has {len(self.plain)} steps; {once(self.plain)}")

    def begin(self, topology: Topology, saved: Saved | None = None) -> Attempt:
        return Attempt(self._name, self._data, self._out, topology, saved)

    def run(self, topology: Topology, saved: Saved | None = None) -> Attempt:
        """Run an attempt to its end. Raises Failed if it has an error or hangs."""
        attempt = self.begin(topology, saved)
        if not attempt.wait():
            raise Failed("hangs")
        attempt.steps()
        return attempt

    def order(self) -> dict[str, Any]:
        """Compare the order of each topology with the order of one process."""
        verdicts = dict[str, str]()
        for topology in ((world, workers) for world in WORLDS for workers in WORKERS):
            try:
                verdicts["{}x{}".format(*topology)] = self.compare(self.run(topology).steps())
            except Failed as error:
                verdicts["{}x{}".format(*topology)] = f"error: {error}"[:200]
            _report(self._name, "order", topology, verdicts["{}x{}".format(*topology)])
        return verdicts

    def compare(self, steps: Steps) -> str:
        """Return the relation of steps to the steps of one process."""
        if steps == self.plain:
            return "same sequence"
        if [*map(sorted, steps)] == [*map(sorted, self.plain)]:
            return "same sets"
        return once(steps) or "other steps"

    def resumes(self) -> dict[str, str]:
        """Resume at the same topology, and compare with a run of this topology that was not stopped."""
        verdicts = dict[str, str]()
        for topology in _RESUMES:
            whole = self.run(topology)
            for stop in _STOPS:
                verdicts["{}x{} at {}".format(*topology, stop)] = self.resume(whole, topology, stop)
                _report(self._name, "resume", topology, stop, verdicts["{}x{} at {}".format(*topology, stop)])
                whole = self.run(topology) if stop != _STOPS[-1] else whole
        return verdicts

    def resume(self, whole: Attempt, topology: Topology, stop: int) -> str:
        """Return "exact", or the difference. `whole` is an attempt of the old topology."""
        same = (whole.world, whole.workers) == topology
        before, saved = whole.steps(), whole.saved(stop)
        if saved is None:
            return "no state"
        try:
            rest = self.run(topology, saved).steps()
        except Failed as error:
            return f"error: {error}"[:200]
        steps = before[:stop] + rest
        if steps == before or (not same and [*map(sorted, steps)] == [*map(sorted, before)]):
            return "exact"
        return once(steps) or "other steps"

    def changes(self) -> dict[str, str]:
        """Resume with another number of ranks or workers."""
        verdicts = dict[str, str]()
        for old, new in _CHANGES:
            for stop in (_STOPS[0], _STOPS[2]):
                name = "{}x{} to {}x{} at {}".format(*old, *new, stop)
                verdicts[name] = self.resume(self.run(old), new, stop)
                _report(self._name, "change", name, verdicts[name])
        return verdicts

    def kills(self, number: int, seed: int, fixed: Topology | None) -> dict[str, Any]:
        """Kill attempts of trainings at random moments, `number` times; each training goes on up to its last step."""
        draw = random.Random(seed)
        killed = chains = 0
        verdicts = dict[str, int]()
        while killed < number:
            chain_kills, verdict = self._chain(draw, number - killed, fixed)
            killed, chains = killed + chain_kills, chains + 1
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
            _report(self._name, "kills", killed, verdict)
            if verdict.startswith("error") and not chain_kills:
                break
        return {"kills": killed, "chains": chains, "verdicts": verdicts}

    def _chain(self, draw: random.Random, most: int, fixed: Topology | None) -> tuple[int, str]:
        """Train from the start to the last step with kills. Return their number, and the relation of the sequence."""
        steps: Steps = []
        saved: Saved | None = None
        kills = 0
        reference = self.run(fixed).steps() if fixed else self.plain
        while True:
            topology = fixed or draw.choice([(w, k) for w in WORLDS for k in WORKERS if w * k <= 12])
            attempt = self.begin(topology, saved)
            target, early_s = attempt.first + draw.randint(1, 25), draw.choice([None] * 6 + [draw.uniform(0, 2)])
            until_s = time.monotonic() + (early_s or 1e9)
            kill = kills < most
            if not attempt.wait(
                lambda: kill and (attempt.reached() >= target or time.monotonic() > until_s)  # noqa: B023
            ):
                return kills, "hangs"
            if attempt.running():
                time.sleep(draw.uniform(0, 0.03))
                attempt.kill()
                kills += 1
            else:
                try:
                    steps = steps[: attempt.first] + attempt.steps()
                except Failed as error:
                    return kills, f"error: {error}"[:200]
                break
            with contextlib.suppress(Failed):
                steps = steps[: attempt.first] + attempt.steps()
            saved = attempt.saved() or saved
        if steps == reference:
            return kills, "same sequence"
        same = [*map(sorted, steps)] == [*map(sorted, reference)]
        return kills, "same sets" if same else once(steps) or "other steps"

    def state_bytes(self) -> int:
        """Return the size of the states of four ranks with two workers, as JSON."""
        saved = self.run((4, 2)).saved(_STOPS[0])
        return sum(len(json.dumps(state[1], default=str)) for state in saved.states) if saved else 0

    def damage(self) -> dict[str, dict[str, int]]:
        """Damage a file with samples, and read one epoch. Each verdict is counted."""
        verdicts: dict[str, dict[str, int]] = {"flipped byte": {}, "truncated": {}}
        path = self.files[len(self.files) // 2]
        content = path.read_bytes()
        # Some formats fill blocks with zeros that nobody reads.
        filled = np.flatnonzero(np.frombuffer(content, np.uint8))
        for number in range(_FLIPS):
            at = int(filled[len(filled) * (2 * number + 5) // (2 * _FLIPS + 8)])
            damaged = content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
            self._count(verdicts["flipped byte"], path, damaged)
        for part in (4, 2, 1):
            self._count(verdicts["truncated"], path, content[: int(filled[-1]) * part // 5])
        path.write_bytes(content)
        return verdicts

    def _count(self, verdicts: dict[str, int], path: Path, content: bytes) -> None:
        path.unlink()
        path.write_bytes(content)
        shutil.rmtree(self._data / "cache", ignore_errors=True)
        verdict = self._read_damaged()
        _report(self._name, "damage", path.name, verdict)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1

    def _read_damaged(self) -> str:
        attempt = self.begin((1, 0))
        if not attempt.wait():
            return "hangs"
        try:
            steps = attempt.steps()
        except Failed:
            return "error"
        if attempt.wrong():
            return "wrong samples"
        return "samples missing" if sorted(chain(*steps)) != sorted(chain(*self.plain)) else "no effect"


def once(steps: Steps) -> str:
    """Return the samples that two epochs repeat or lack; "" if each is in them twice."""
    counts = np.bincount(np.fromiter(chain(*steps), np.int64), minlength=SAMPLES)
    repeated, lost = int((counts - EPOCHS).clip(0).sum()), int((EPOCHS - counts).clip(0).sum())
    return f"{repeated} repeated, {lost} lost" if repeated or lost else ""


def _report(*words: Any) -> None:
    print(*words, file=sys.stderr, flush=True)


def main() -> None:
    name, folder, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    loader = LOADERS[name][1]
    try:
        versions = {package: importlib.metadata.version(package) for package in loader.packages[:1]}
        for module in loader.modules:
            importlib.import_module(module)
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    began_s = time.monotonic()
    trial = Trial(name, folder)
    parts: dict[str, Callable[[], Any]] = {"order": trial.order}
    if trial.stateful:
        parts |= {"resumes": trial.resumes, "changes": trial.changes, "kills": lambda: trial.kills(kills, 1, None)}
        parts |= {"kills_fixed": lambda: trial.kills(kills, 2, (2, 2)), "state_bytes": trial.state_bytes}
    parts["damage"] = trial.damage
    result: dict[str, Any] = {"version": next(iter(versions.values()))}
    result |= {part: parts[part]() for part in sys.argv[4:] or parts}
    result["seconds"] = round(time.monotonic() - began_s)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
