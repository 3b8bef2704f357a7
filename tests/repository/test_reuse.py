"""What others say that packs hold is held against the files themselves, and costs little where it is true."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import planted
from m5ws.ports import ObjectStore
from m5ws.records import Format, Pack, Packing
from m5ws.repository import Repository, reuse
from m5ws.store.cache import Cached
from m5ws.store.local import LocalStore
from passing_store import PassingStore
from small_files import Workspace, annotate, read


def _swapped(pack: Pack) -> Pack:
    names = list(pack.names)
    return msgspec.structs.replace(pack, files=b"".join([names[1], names[0], *names[2:]]))


def _shifted(pack: Pack) -> Pack:
    """Two sizes that add up to what they did: the name of the pack would be right, the place of a file not."""
    first, second, *others = pack.sizes_bytes
    return msgspec.structs.replace(pack, sizes_bytes=(first + 1, second - 1, *others))


def _renamed(pack: Pack) -> Pack:
    """All that is not at hand has another name, or what is first where all is."""
    return msgspec.structs.replace(pack, files=b"\1" * 32 + pack.files[32:])


def _shorter(pack: Pack) -> Pack:
    return msgspec.structs.replace(pack, files=pack.files[:-32], sizes_bytes=pack.sizes_bytes[:-1])


def _with_nothing(pack: Pack) -> Pack:
    return msgspec.structs.replace(pack, files=b"\2" * 32 + pack.files, sizes_bytes=(0, *pack.sizes_bytes))


LIES: dict[str, Callable[[Pack], Pack]] = {
    "two files swapped": _swapped,
    "two sizes shifted": _shifted,
    "another name": _renamed,
    "a file less": _shorter,
    "an empty file of another name": _with_nothing,
}


@pytest.mark.parametrize("changed", [(), (0,), (0, 1, 2)], ids=["all at hand", "one is not", "three are not"])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_lie_about_a_pack_is_not_taken_over(
    tmp_path: Path, lie: Callable[[Pack], Pack], changed: tuple[int, ...]
) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    first = here.write()
    packs = here.packing(first).packs
    lied = here.repo.objects.put_record(Packing(packs=tuple(map(lie, packs))))
    snapshot = here.repo.objects.put_record(planted.snapshot(first.digest))
    annotate(here.repo, snapshot, {first.digest: lied})
    _change(here, packs, changed)
    here.index.unlink()
    here.repo = Repository.open(here.repo.store)
    written = here.write()
    assert read(here.repo, written, tmp_path / "read") == here.content()
    assert written.packing is not None and lied != written.packing
    # What is right about a pack, whoever made it, is used none the less: the same files make the same packs.
    if not changed:
        assert {pack.object for pack in here.packing(written).packs} & {pack.object for pack in packs}


def test_of_a_pack_that_others_made_only_what_is_not_at_hand_is_read(tmp_path: Path) -> None:
    here = Workspace(tmp_path, Format(pack_bytes=2**23, small_bytes=2**20, chunk_bytes=2**20))
    here.fill(random.Random(1), range(400), 2**17)
    first = here.write()
    planted.publish(here.repo, planted.snapshot(first.digest))
    packs = here.packing(first).packs
    _change(here, packs, (1, 20))
    here.index.unlink()
    far = _Measured(LocalStore(tmp_path / "store"))
    here.repo = Repository.open(Cached(far, tmp_path / "cache", 2**30))
    written = here.write()
    used = set(packs) & set(here.packing(written).packs)
    gone = sum(pack.sizes_bytes[1] + pack.sizes_bytes[20] for pack in used)
    assert len(used) > 2 and far.read_bytes == gone
    assert read(here.repo, written, tmp_path / "read") == here.content()
    # Once is enough: the index knows it then.
    far.read_bytes = 0
    here.fill(random.Random(3), [7], 2**17)
    here.write()
    assert far.read_bytes == 0


def test_parts_that_are_near_are_read_at_once(tmp_path: Path) -> None:
    here = Workspace(tmp_path, Format(pack_bytes=2**20, small_bytes=2**18, chunk_bytes=2**18))
    sizes = (10, 100, 20, 2**17, 30, 2**17 + 1, 40)
    data = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    digests = [bytes.fromhex(here.repo.objects.digest(one)) for one in data]
    pack = Pack(object=here.repo.objects.put(b"".join(data)), files=b"".join(digests), sizes_bytes=sizes)
    far = _Measured(here.repo.store)
    objects = Repository.open(far).objects
    far.reads.clear()
    at_hand = {digests[position]: data[position] for position in (1, 3, 5)}
    assert reuse.holds(objects, pack, at_hand, bytes)
    assert far.reads == [(0, 10 + 100 + 20 + 2**17 + 30), (sum(sizes[:6]), 40)]


def test_small_changes_one_after_the_other_send_little_each(tmp_path: Path) -> None:
    """Packs that joining made needless count no more: or each change after the sixteenth would join them again."""
    here, draw = Workspace(tmp_path), random.Random(5)
    here.fill(draw, range(400))
    before, joined = set(here.packing(here.write()).packs), 0
    for _ in range(60):
        here.fill(draw, [draw.randrange(400)])
        packs = set(here.packing(here.write()).packs)
        joined += any(len(pack.sizes_bytes) > 1 for pack in packs - before)
        before |= packs
    assert 1 <= joined <= 4


def test_what_is_wrongly_said_of_a_pack_hides_nothing_that_is_rightly_said_later(tmp_path: Path) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    first = here.write()
    packs = here.packing(first).packs
    lied = here.repo.objects.put_record(Packing(packs=tuple(map(_swapped, packs))))
    annotate(here.repo, here.repo.objects.put_record(planted.snapshot(first.digest)), {first.digest: lied}, 1)
    assert first.packing is not None
    annotate(here.repo, "2" * 64, {first.digest: first.packing}, 2)
    here.index.unlink()
    here.repo = Repository.open(here.repo.store)
    assert here.write().new_bytes == 0


def test_a_pack_of_others_that_is_larger_than_any_of_ours_is_let_be(tmp_path: Path) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    first = here.write()
    content = list(here.content().values())
    names = b"".join(bytes.fromhex(here.repo.objects.digest(data)) for data in content)
    one = Pack(object=here.repo.objects.put(b"".join(content)), files=names, sizes_bytes=tuple(map(len, content)))
    assert one.size_bytes > here.repo.format.pack_bytes
    said = here.repo.objects.put_record(Packing(packs=(one,)))
    annotate(here.repo, here.repo.objects.put_record(planted.snapshot(first.digest)), {first.digest: said})
    here.index.unlink()
    here.repo = Repository.open(here.repo.store)
    assert one not in here.packing(here.write()).packs


@pytest.mark.parametrize("lies", [1, 12])
def test_lies_do_not_have_what_is_true_checked_again(tmp_path: Path, lies: int) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    first = here.write()
    packs = here.packing(first).packs
    # Each lie is said to hold just what a true pack holds.
    lied = [
        Pack(
            object=here.repo.objects.put(bytes([number]) * (packs[0].size_bytes)),
            files=packs[0].files,
            sizes_bytes=packs[0].sizes_bytes,
        )
        for number in range(lies)
    ]
    said = here.repo.objects.put_record(Packing(packs=(*packs, *lied)))
    annotate(here.repo, here.repo.objects.put_record(planted.snapshot(first.digest)), {first.digest: said})
    here.index.unlink()
    asked: list[str] = []
    honest = reuse.holds

    def holds(objects: Any, pack: Pack, at_hand: Any, read: Any) -> bool:
        asked.append(pack.object)
        return honest(objects, pack, at_hand, read)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reuse, "holds", holds)
        here.repo = Repository.open(here.repo.store)
        written = here.write()
    assert len(asked) == len(set(asked)) <= len(packs) + 3
    assert read(here.repo, written, tmp_path / "read") == here.content()


class _Measured(PassingStore):
    """A store that counts what is read of packs, and in which parts."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.reads: list[tuple[int, int]] = []
        self.read_bytes = 0

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().get(key, start, length)
        if length is not None:
            self.reads.append((start, length))
            self.read_bytes += len(data)
        return data


def _change(here: Workspace, packs: tuple[Pack, ...], positions: tuple[int, ...]) -> None:
    """Replace the files at some `positions` of each pack by others."""
    digests = {bytes.fromhex(here.repo.objects.digest(data)): name for name, data in here.content().items()}
    draw = random.Random(2)
    for pack in packs:
        for position in positions:
            if position < len(pack.sizes_bytes):
                path = here.files / digests[tuple(pack.names)[position]]
                path.write_bytes(draw.randbytes(max(1, len(path.read_bytes()))))
