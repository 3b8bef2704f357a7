"""When the ledger is published: important events at once, steps in larger batches the longer a run takes."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.agent.delivery import Delivery
from m5ws.records.ledger import NODE, AttemptEnded, CheckpointPublished, Notice, Step
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.repository import Repository
from m5ws.store.interface import ObjectStore
from m5ws.store.local import LocalStore
from tests.support.stores.memory_store import MemoryStore
from tests.support.stores.passing_store import PassingStore

_RUN = "a" * 12


class _Training:
    """Two ranks that write spools, and a supervisor that delivers them on a clock that is set by hand."""

    def __init__(self, folder: Path) -> None:
        self.repo = Repository.create(LocalStore(folder / "store", durable=False))
        self.ranks = [SpoolWriter(folder / f"spool/{rank}.spool", genesis(_RUN, 1, str(rank))) for rank in (0, 1)]
        self.now_s = 0.0
        self._spools = folder / "spool"
        self.delivery = self.through(self.repo.store)
        self.steps = 0

    def through(self, store: ObjectStore) -> Delivery:
        """Return a delivery of the spools through another store."""
        return Delivery(Repository(store, self.repo.format), _RUN, 1, self._spools, clock=lambda: self.now_s)

    def step(self, seconds: float) -> int:
        """Take a step on both ranks, look each second meanwhile, and return how many events were seen."""
        self.now_s += seconds
        self.steps += 1
        for rank in self.ranks:
            rank.append(Step(step=self.steps, quantities={}))
        return len(self.delivery.deliver())

    def told(self, rank: int = 0) -> list[int]:
        """Return the steps that the ledger has of a rank."""
        found = ledger.events(self.repo, _RUN, 1, str(rank))
        return [event.step for event in found if isinstance(event, Step)]

    def batches(self) -> int:
        return len(self.repo.store.names(f"runs/{_RUN}/ledger/0001/0/"))


@pytest.fixture
def training(tmp_path: Path) -> Iterator[_Training]:
    made = _Training(tmp_path)
    yield made
    for rank in made.ranks:
        rank.close()


def test_events_of_a_short_run_are_delivered_each_second(training: _Training) -> None:
    for _ in range(60):
        training.step(1.0)
        assert training.told() == list(range(1, training.steps + 1))


def test_a_day_of_steps_makes_fewer_than_2500_batches(training: _Training) -> None:
    for _ in range(86_400 // 5):
        assert training.step(5.0) == 2
    training.delivery.finish()
    assert training.told() == training.told(1) == list(range(1, 17_281))
    # One each 5 s for 1,000 s, then in steps that grow to a minute at 12,000 s.
    assert 1_500 < training.batches() < 2_500


def test_steps_wait_a_minute_at_most(training: _Training) -> None:
    training.now_s = 1e6
    training.step(1.0)
    late = 0
    for _ in range(200):
        training.step(1.0)
        late = max(late, training.steps - training.told()[-1])
    assert 50 < late <= 60


@pytest.mark.parametrize("rank", [0, 1])
def test_notices_and_checkpoints_are_delivered_at_once_with_earlier_steps(training: _Training, rank: int) -> None:
    training.now_s = 1e6
    for _ in range(3):
        training.step(1.0)
    training.ranks[rank].append(Notice(kind="limit", message="y"))
    training.step(1.0)
    assert training.told(0) == training.told(1) == [1, 2, 3, 4]
    training.step(1.0)
    assert training.told(0) == [1, 2, 3, 4]
    published = CheckpointPublished(step=5, name="0000000005-0001", checkpoint="1" * 64, content="2" * 64)
    training.ranks[rank].append(published)
    training.step(1.0)
    assert training.told(1) == [1, 2, 3, 4, 5, 6]


def test_many_bytes_of_events_are_delivered_at_once(training: _Training) -> None:
    training.now_s = 1e6
    training.step(1.0)
    for rank in training.ranks:
        rank.append(Step(step=100, quantities={"x": "0" * 2**20}))
    training.step(1.0)
    assert training.told() == [1, 100, 2]


def test_an_outage_causes_a_warning_at_its_beginning_and_at_its_end(
    training: _Training, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = True

    def refuse(operation: str, key: str) -> None:
        if is_away and operation == "create":
            raise OSError("away")

    training.delivery = training.through(PassingStore(training.repo.store, refuse))
    for _ in range(20):
        training.step(1.0)
    assert [record.message.partition(";")[0] for record in caplog.records] == ["the store does not accept the ledger"]
    is_away = False
    for _ in range(20):
        training.step(1.0)
    assert [record.message.partition(",")[0] for record in caplog.records[1:]] == ["the store accepts the ledger again"]
    assert training.told(1) == list(range(1, 41))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_at_any_operation_of_the_store_loses_nothing_and_repeats_nothing(tmp_path: Path, moment: str) -> None:
    for number in range(100):
        training = _Training(tmp_path / str(number))
        left = number

        def interrupted(operation: str, key: str) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise KeyboardInterrupt

        before = interrupted if moment == "before" else None
        after = None if before else lambda key: interrupted("create", key)
        training.delivery = training.through(PassingStore(training.repo.store, before, after))
        with contextlib.suppress(KeyboardInterrupt):
            for _ in range(5):
                training.step(1.0)
        interrupted_then, left = left < 0, 1000
        for rank in training.ranks:
            rank.append(Step(step=100, quantities={}))
        training.delivery.finish()
        assert training.told(0) == training.told(1) == [*range(1, training.steps + 1), 100], number
        if not interrupted_then:
            break
    assert number > 3, "the store was hardly asked"
    assert not interrupted_then, "the store is asked more often than this test interrupts it"


class _Killed(BaseException):
    """The supervisor is killed."""


_ORIGINS = (NODE, "0", "1", "10")
_DELIVERIES: dict[str, tuple[str, type[BaseException]] | None] = {
    "delivered": None,
    "refused": ("before", OSError),
    "answer lost": ("after", OSError),
    "killed before a publication": ("before", _Killed),
    "killed after a publication": ("after", _Killed),
}


@given(st.lists(st.sampled_from([*_ORIGINS, *_DELIVERIES]), max_size=40))
def test_each_origin_is_delivered_once_and_in_order_whatever_is_killed_when(actions: list[str]) -> None:
    """Actions are an event of an origin, or a delivery, which may fail or be killed around its publication."""
    harm: tuple[str, type[BaseException]] | None = None

    def act(moment: str, operation: str = "create") -> None:
        if harm is not None and harm[0] == moment and operation == "create":
            raise harm[1]

    repo = Repository.create(MemoryStore())
    store = PassingStore(repo.store, lambda kind, _: act("before", kind), lambda _: act("after"))
    through, written = Repository(store, repo.format), {origin: list[int]() for origin in _ORIGINS}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as spools:
        path = Path(folder) / "spool"
        writers = {name: SpoolWriter(path / f"{name}.spool", genesis(_RUN, 1, name)) for name in _ORIGINS}
        for writer in writers.values():
            spools.callback(writer.close)
        delivery = Delivery(through, _RUN, 1, path)
        for number, action in enumerate(actions):
            if action in written:
                written[action].append(number)
                writers[action].append(Notice(kind="limit", message="", step=number))
                continue
            harm = _DELIVERIES[action]
            try:
                delivery.deliver(final=True)
            except _Killed:
                delivery = Delivery(through, _RUN, 1, path)
        harm = None
        delivery.finish()
        heads = delivery.heads()
    stored = [(origin, event.step) for origin, event in ledger.read_events(repo, _RUN, 1) if isinstance(event, Notice)]
    assert {origin: [step for name, step in stored if name == origin] for origin in _ORIGINS} == written
    assert Chain(_RUN, 1).follow(repo).heads.by_rank == heads


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_summary_is_written_after_a_whole_end_alone(tmp_path: Path, is_whole: bool) -> None:
    """Without a whole end, another node may deliver events later, which a summary would lack."""
    training = _Training(tmp_path)
    training.step(1.0)
    node = SpoolWriter(tmp_path / f"spool/{NODE}.spool", genesis(_RUN, 1, NODE))
    node.append(AttemptEnded(outcome="finished", exit_code=0, is_whole=is_whole))
    training.delivery.finish()
    assert bool(training.repo.store.names(f"runs/{_RUN}/summaries/")) == is_whole
