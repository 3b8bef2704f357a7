"""Spools and ledgers: a kill loses nothing, nothing is delivered twice, and tampering is detected."""

import itertools
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from m5ws.agent.delivery import DELIVERED, Delivery
from m5ws.errors import CorruptObject, Fenced
from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.ledger import AnyEvent, Step
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolReader, SpoolWriter, chain, genesis
from m5ws.repository.ledger.tail import LedgerTail
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from tests.support.records import planted
from tests.support.stores.passing_store import PassingStore


def _steps(first: int, last: int) -> list[bytes]:
    return [codec.encode(Step(step=number, quantities={"loss": "0x1p+0"})) for number in range(first, last + 1)]


def _numbers(repo: Repository) -> list[int]:
    return [event.step for event in ledger.events(repo, "r", 1, "0") if isinstance(event, Step)]


def _spool(path: Path, first: int, last: int) -> SpoolWriter:
    writer = SpoolWriter(path, genesis("r", 1, "0"))
    for number in range(first, last + 1):
        writer.append(Step(step=number, quantities={"loss": "0x1p+0"}))
    return writer


def test_a_new_writer_continues_the_chain(repo: Repository) -> None:
    ledger.ChainWriter(repo, "r", 1).append({"0": _steps(1, 3)})
    ledger.ChainWriter(repo, "r", 1).append({"0": _steps(4, 5)})
    assert _numbers(repo) == [1, 2, 3, 4, 5]


def test_a_second_writer_of_a_chain_is_fenced(repo: Repository) -> None:
    first, second = ledger.ChainWriter(repo, "r", 1), ledger.ChainWriter(repo, "r", 1)
    first.append({"0": _steps(1, 1)})
    with pytest.raises(Fenced):
        second.append({"0": _steps(1, 1)})


@pytest.mark.parametrize("harm", ["drop", "restart"])
def test_a_missing_or_replaced_batch_breaks_the_chain(repo: Repository, harm: str) -> None:
    for first in (1, 3, 5):
        ledger.ChainWriter(repo, "r", 1).append({"0": _steps(first, first + 1)})
    prefix = Path(repo.store.url) / "runs/r/ledger/0001/0"
    if harm == "drop":
        (prefix / "00000001").unlink()
    else:
        # Consistent in itself, but as if it were the first batch.
        batch = list(ledger.read(repo, "r", 1))[2]
        previous = ledger.start_of("r", 1, 0)
        head = chain(previous, bytes(batch.events))
        (prefix / "00000002").unlink()
        (prefix / "00000002").write_bytes(codec.encode(msgspec.structs.replace(batch, previous=previous, head=head)))
    with pytest.raises(CorruptObject):
        ledger.events(repo, "r", 1, "0")


def test_a_frame_cut_short_by_a_kill_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "0.spool"
    _spool(path, 1, 4).close()
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        found = SpoolReader(path).read()
        assert found == _steps(1, 4)[: len(found)]
        assert len(found) == cut // (len(whole) // 4)


def test_a_long_spool_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "0.spool"
    _spool(path, 1, 7).close()
    reader, pieces = SpoolReader(path), list[list[bytes]]()
    while piece := reader.read(path.stat().st_size // 3):
        pieces.append(piece)
    assert [event for piece in pieces for event in piece] == _steps(1, 7)
    assert [len(piece) for piece in pieces] == [2, 2, 2, 1]


def test_a_full_disk_delays_events_and_loses_none(tmp_path: Path) -> None:
    """A file-size limit simulates a full disk: the kernel truncates the write within a frame."""
    path = tmp_path / "0.spool"
    writer = _spool(path, 1, 2)
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        writer.append(Step(step=3, quantities={"loss": "0x1p+0"}))
        assert SpoolReader(path).read() == _steps(1, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    writer.append(Step(step=4, quantities={"loss": "0x1p+0"}))
    assert SpoolReader(path).read() == _steps(1, 4)


def test_spools_are_delivered_in_order_and_once(repo: Repository, tmp_path: Path) -> None:
    spools = tmp_path / "a" / "spool"
    writer = _spool(spools / "0.spool", 1, 3)
    delivery = Delivery(repo, "r", 1, spools)
    assert len(delivery.deliver(final=True)) == 3
    writer.append(Step(step=4, quantities={"loss": "0x1p+0"}))
    # The supervisor is killed here. Another supervisor starts at the spool's first byte.
    again = Delivery(repo, "r", 1, spools)
    again.finish()
    assert _numbers(repo) == [1, 2, 3, 4]
    assert (tmp_path / "a" / DELIVERED).exists()


@pytest.mark.parametrize("but", [None, 0])
def test_a_tail_yields_each_event_once_if_any_operation_of_the_store_fails(repo: Repository, but: int | None) -> None:
    for node in (0, 1):
        writer = ledger.ChainWriter(repo, "r", 1, node, is_new=True)
        for first in (1, 3, 5):
            writer.append({str(node): _steps(first, first + 1)})
    expected = [(str(node), step) for node in (0, 1) if node != but for step in range(1, 7)]

    def read(failing: int) -> list[tuple[str, int]]:
        operations, found = itertools.count(), list[tuple[str, int]]()

        def before(*_: str) -> None:
            if next(operations) == failing:
                raise OSError("the store is away")

        tail = LedgerTail(Repository(PassingStore(repo.store, before), repo.format), "r", but=but)
        for _ in range(3):
            found += [(rank, event.step) for _, rank, event in _listed(tail) if isinstance(event, Step)]
        return found

    assert [sorted(read(failing)) for failing in range(15)] == [expected] * 15


def _listed(tail: LedgerTail) -> Iterator[tuple[int, str, AnyEvent]]:
    """Yield new events up to an error of the store, as the leader of an attempt takes them."""
    with suppress(OSError):
        yield from tail.poll()


def _attempt(repo: Repository, attempt: int, inherits: tuple[str, ...]) -> None:
    planted.begin(repo, "r", attempt, inherits=inherits)


def _checkpoint(repo: Repository, attempt: int, step: int) -> Checkpoint:
    content = repo.objects.put_record(Content(format="dcp/1", world=1))
    return Checkpoint(run="r", snapshot="0" * 64, attempt=attempt, step=step, content=content)


def test_a_rank_of_an_old_attempt_cannot_publish(repo: Repository) -> None:
    planted.run(repo, "r")
    _attempt(repo, 1, ())
    checkpoints.publish(repo, _checkpoint(repo, 1, 10))
    _attempt(repo, 2, tuple(checkpoints.valid(repo, "r")))
    with pytest.raises(Fenced):
        checkpoints.publish(repo, _checkpoint(repo, 1, 20))
    assert checkpoints.valid(repo, "r") == [checkpoints.name(10, 1)]


def test_a_zombie_that_slips_past_the_check_is_not_accepted(repo: Repository) -> None:
    """It looked before attempt 2 started, and creates its key later."""
    _attempt(repo, 1, ())
    late = repo.objects.put_record(_checkpoint(repo, 1, 20))
    _attempt(repo, 2, ())
    repo.store.create(f"runs/r/checkpoints/{checkpoints.name(20, 1)}", f"{late}\n".encode())
    checkpoints.publish(repo, _checkpoint(repo, 2, 5))
    assert checkpoints.valid(repo, "r") == [checkpoints.name(5, 2)]
    _attempt(repo, 3, tuple(checkpoints.valid(repo, "r")))
    assert checkpoints.valid(repo, "r") == [checkpoints.name(5, 2)]


def test_publishing_the_same_checkpoint_again_is_success(repo: Repository) -> None:
    _attempt(repo, 1, ())
    assert checkpoints.publish(repo, _checkpoint(repo, 1, 5)) == checkpoints.publish(repo, _checkpoint(repo, 1, 5))
