"""A rank of an earlier attempt that publishes late, and the attempt that has begun meanwhile: one run for each try.

The rank wakes before it checks whether it is superseded, between that check and its write, or at the very moment when
the other attempt begins. If the new attempt has listed the checkpoint as inherited, the rank was in time and is no
zombie.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from m5ws.errors import Fenced
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.environment import Observed
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.tree import Slice
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.store.interface import ObjectStore
from tests.support.gc.gc_world import publish
from tests.support.records import contents, planted
from tests.support.stores.sleeping_store import SleepingStore

Wakes = Literal["after the attempt began", "between look and write", "as the attempt begins"]
WAKES: tuple[Wakes, ...] = ("after the attempt began", "between look and write", "as the attempt begins")


class Told(msgspec.Struct, frozen=True):
    """The result of one try, by cause.

    `late` if the rank was a zombie, `refused` if it got that error, `accepted` if it published.
    """

    wakes: Wakes
    late: bool
    refused: bool
    accepted: bool


class Tries:
    """Makes tries on a store; `opened` opens it as another client."""

    def __init__(self, opened: Callable[[], ObjectStore], seed: int) -> None:
        self._old, self._new = Repository.open(opened()), Repository.open(opened())
        self._draw = random.Random(seed)
        self._play = _Play(self._draw)
        self._observed = self._new.objects.put_record(Observed())
        self._snapshot = publish(self._new, [b"a file"])
        self._contents = {at: _content(self._new, *at) for at in ((1, 1), (2, 1), (2, 2), (3, 2))}
        self.accepted: dict[str, list[str]] = {}
        """Valid checkpoints by run."""

    def one(self, wakes: Wakes) -> Told:
        """Let a rank of attempt 1 publish step 2 when it wakes, against an attempt 2 that continues from step 1."""
        run = f"{self._draw.getrandbits(48):012x}"
        runs.publish(self._new, Run(id=run, snapshot=self._snapshot, spec=LaunchSpec(command=("x",))))
        self._begin(run, 1)
        checkpoints.publish(self._new, self._saved(run, 1, 1))
        held = self._saved(run, 2, 1)
        refused = self._play(wakes, lambda repo: _late(repo, held), lambda: self._goes_on(run), self._old)
        late = checkpoints.name(2, 1) not in checkpoints.inherited(self._new, run, 2)
        self.accepted[run] = valid = checkpoints.valid(self._new, run)
        expected = [(1, 1), *([] if late else [(2, 1)]), (2, 2), (3, 2)]
        accepted = valid != [checkpoints.name(step, attempt) for step, attempt in expected]
        return Told(wakes, late, refused, accepted)

    def _begin(self, run: str, attempt: int) -> None:
        """Begin an attempt as `m5ws run` does, with a list of its inherited checkpoints."""
        inherits = tuple(checkpoints.valid(self._new, run))
        planted.begin(self._new, run, attempt, self._observed, host="here", inherits=inherits)

    def _goes_on(self, run: str) -> None:
        """Act as attempt 2: begin, and save the zombie's step and the next step."""
        self._begin(run, 2)
        for step in (2, 3):
            checkpoints.publish(self._new, self._saved(run, step, 2))

    def _saved(self, run: str, step: int, attempt: int) -> Checkpoint:
        content = self._contents[step, attempt]
        return Checkpoint(run=run, snapshot=self._snapshot, attempt=attempt, step=step, content=content)


def _late(repo: Repository, held: Checkpoint) -> bool:
    """Publish from the old attempt; return True if it was refused."""
    try:
        checkpoints.publish(repo, held)
    except Fenced:
        return True
    return False


def _content(repo: Repository, step: int, attempt: int) -> Digest:
    """Store the content of a checkpoint, a different content for each step and attempt."""
    common, rank = _plain(repo, step), _plain(repo, step, attempt)
    content = contents.content(
        repo.objects, common=common, fingerprints=planted.whole(repo.objects, codec.encode_plain({})), ranks=(rank,)
    )
    return repo.objects.put_record(content)


def _plain(repo: Repository, *value: object) -> Slice:
    data = codec.encode_plain({"backend": {}, "fingerprints": {}, "value": list(value)})
    digest = repo.objects.put(data)
    return Slice(object=digest, offset=0, size_bytes=len(data), digest=digest)


class _Play:
    """Lets a zombie and an attempt meet. The time between their starts depends on the attempt's duration."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._usual_s = 0.0

    def __call__(
        self, wakes: Wakes, late: Callable[[Repository], bool], goes_on: Callable[[], None], repo: Repository
    ) -> bool:
        """Run both, and return True if the zombie was refused."""
        if wakes == "after the attempt began":
            began_s = time.monotonic()
            goes_on()
            self._usual_s = time.monotonic() - began_s
            return late(repo)
        if wakes == "between look and write":
            sleeping = SleepingStore(repo.store, "runs/", goes_on)
            refused = late(Repository(sleeping, repo.format))
            assert sleeping.slept
            return refused
        return self._raced(lambda: late(repo), goes_on)

    def _raced(self, late: Callable[[], bool], goes_on: Callable[[], None]) -> bool:
        gate, refusals = threading.Barrier(2), list[bool]()
        pauses_s = [self._draw.uniform(0, share * self._usual_s) for share in (0.5, 1.0)]

        def wake() -> None:
            gate.wait()
            time.sleep(pauses_s[0])
            refusals.append(late())

        zombie = threading.Thread(target=wake)
        zombie.start()
        gate.wait()
        time.sleep(pauses_s[1])
        goes_on()
        zombie.join()
        return refusals[0]
