"""Size, time and memory of a checkpoint's metadata in simulated worlds of up to 8,192 ranks and 100,000 tensors.

    python benchmarks/ranks.py [--worlds 128 1024 8192] [--tensors 3000 100000] [--json FILE]

No tensor exists. The table, the shares, their parts, the reports of all ranks in the tree and the rules of fingerprints
are made and joined by the code of a training, with random digests. Each case is a process of its own. The CPU seconds
of the coordinator (rank 0) are for the table, its joins, and the records that it publishes. A rank's read at a
resume is the size of all records that it reads, and of the plain state of an AdamW training. `even` and `uneven` are
cut over all ranks, in dimensions that are multiples of the ranks or not; `moe` has experts on groups of 64 ranks.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec

from m5ws.checkpoints import diff, listing, resolve
from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint, Content, Share
from m5ws.records.store import Format
from m5ws.records.tree import Slice
from m5ws.repository import contents, cuts
from m5ws.repository.contents import Stored, TableTensor
from m5ws.repository.fsck.records import Records
from m5ws.repository.objects import Objects
from m5ws.repository.reachability.reach import ReachableObjects
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.training.backends import placement
from m5ws.training.backends.base import Cut
from m5ws.training.backends.placement import Placed
from m5ws.training.checkpoint.checkpointing import Report
from m5ws.training.fingerprint import merging
from m5ws.training.runtime import classes, collectives
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore

KINDS = ("even", "uneven", "moe")
GROUP = 64
RUN = "a" * 12
_LEAVES = ("model.{}", "optimizer.{}.exp_avg", "optimizer.{}.exp_avg_sq", "optimizer.{}.step")
_PREFIX_PUTS = 3_500
"""Writes a second that S3 takes for a prefix: docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance."""


class Sink(MemoryStore):
    """A store that counts writes and forgets large objects, so that memory is the coordinator's."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = self.size_bytes = 0

    def create(self, key: str, data: Any) -> None:
        self.writes += 1
        self.size_bytes += memoryview(data).nbytes


# --- worlds ---------------------------------------------------------------------------------------------------------


def describe(kind: str, world: int, tensors: int, expert: int) -> placement.Description:
    """Return the layouts of a rank's tensors, four for each parameter; `expert` is its group of experts."""
    described: placement.Description = {}
    known: dict[Placed, Placed] = {}
    dense = Cut(0, ((0, world, 1),))
    groups = max(1, world // GROUP)
    for number in range(tensors // 4):
        is_expert = kind == "moe" and number % 4 > 0
        if is_expert and number % groups != expert:
            continue
        shape = (world * 2, 5120) if kind == "even" else (world + world // 3 + number % 7, 5119)
        # The ranks of a group of experts are as far apart as there are groups.
        cut = Cut(expert, ((0, min(GROUP, world), groups),)) if is_expert else dense
        name = f"layers.{number // 9}.{('experts.' + str(number)) if is_expert else 'block'}.w{number % 9}.weight"
        for leaf in _LEAVES:
            whole = leaf.endswith("step")
            placed = Placed("float32", () if whole else shape, 4, None if whole else ("S(0)",), None if whole else cut)
            described[leaf.format(name)] = known.setdefault(placed, placed)
    return described


def all_classes(kind: str, world: int, tensors: int) -> list[classes.Class[placement.Description]]:
    groups = max(1, world // GROUP) if kind == "moe" else 1
    return [(tuple(range(group, world, groups)), describe(kind, world, tensors, group)) for group in range(groups)]


def share_of(table: list[TableTensor], rank: int, form: Format, state: Slice | None = None) -> Share:
    """Return the share that `shard_writer.write` would make, with random digests, and chunks and packs by size."""
    stored: list[Stored] = []
    pack, used, kept = os.urandom(32).hex(), 0, 0
    regions: dict[tuple[object, ...], Any] = {}
    for place, tensor in enumerate(table):
        key = tensor.shape, tensor.axes, tensor.first
        if key not in regions:
            regions[key] = cuts.region(tensor.shape, tensor.axes or (), tensor.first, rank)
        box = regions[key]
        if box is None or not all(box.sizes):
            continue
        size = 4
        for length in box.sizes:
            size *= length
        parts: list[Slice] = []
        if size >= form.small_bytes:
            for start in range(0, size, form.chunk_bytes):
                digest = os.urandom(32).hex()
                length = min(form.chunk_bytes, size - start)
                parts.append(Slice(object=digest, offset=0, size_bytes=length, digest=digest))
        else:
            if used + size > form.pack_bytes:
                pack, used = os.urandom(32).hex(), 0
            parts.append(Slice(object=pack, offset=used, size_bytes=size, digest=os.urandom(32).hex()))
            used += size
        kept += 1
        stored.append(Stored(place, None, tuple(parts)))
    digest = os.urandom(32).hex()
    own = state or Slice(object=digest, offset=0, size_bytes=10_000, digest=digest)
    return msgspec.structs.replace(contents.make_share(stored), state=own)


def encoded_shares(
    table: list[TableTensor], world: int, form: Format, distinct: int, state: Slice | None = None
) -> Iterator[bytes]:
    """Yield the encoded share of each rank. After `distinct` ranks, shares are repeated with other digests."""
    made: list[tuple[bytes, bytes]] = []
    for rank in range(world + 1):
        if rank < distinct or rank == world:
            share = share_of(table, rank, form, state)
            data = codec.encode(share)
            made.append((data, share.locations.objects))
            yield data
        else:
            data, held = made[rank % distinct]
            yield data.replace(held, os.urandom(len(held)), 1) if held else data


# --- cases ----------------------------------------------------------------------------------------------------------


def case(kind: str, world: int, tensors: int, distinct: int) -> dict[str, Any]:
    form, store = Format(), Sink()
    objects = Objects(store, form)
    held = all_classes(kind, world, tensors)
    began = time.process_time()
    if len(held) > 1:
        by_digest = {bytes([number]) * 4: each for number, each in enumerate(held)}
        joined: dict[bytes, classes.Class[placement.Description]] = {}
        for digest, each in by_digest.items():
            joined = classes.join(joined, {digest: each})
    table = placement.arrange(held)
    coordinator = {"table": time.process_time() - began}
    # Rank 0 has the layouts of classes for the table and for the fingerprints at different times.
    del held

    clock, spent = {"own": 0.0}, None
    share = encoded_shares(table, world, form, distinct)
    heads = iter(lambda: os.urandom(32).hex(), None)

    def tree(rank: int, size: int) -> Report:
        """Return the report of `size` ranks from `rank` on, joined as `collectives.reduce` joins them."""
        if size == 1:
            data = next(share)
            return Report((), contents.PartList((), rank, (data,)), (next(heads),), frozenset())
        step = max(distance for distance in _distances(world) if distance < size)
        report = tree(rank, step)
        for other in range(rank + step, rank + size, step):
            after = tree(other, min(step, rank + size - other))
            start = time.process_time()
            report = report.joined(after, objects)
            if rank == 0:
                clock["own"] += time.process_time() - start
        return report

    report = tree(0, world)
    began = time.process_time()
    report = report.joined(Report((), contents.PartList((), world, (next(share),)), (), frozenset()), objects)
    record = contents.make_table(table)
    root = Content(
        format="dcp/1",
        world=world,
        tensors=objects.put_record(record),
        parts=report.shares.all(objects.put),
        common=_slice(),
        fingerprints=_slice(),
    )
    checkpoint = Checkpoint(
        run="r",
        snapshot="0" * 64,
        attempt=1,
        step=1,
        content=objects.put_record(root),
        ledger={str(rank): head for rank, head in enumerate(report.heads)},
    )
    checkpoint_bytes = len(codec.encode(checkpoint))
    coordinator |= {"tree": clock["own"], "records": time.process_time() - began}
    fingerprints = fingerprint_rules(kind, world, tensors)
    root_bytes, table_bytes = len(codec.encode(root)), len(codec.encode(record))
    sizes = part_sizes(report, table, world, form, distinct)
    own = resume_read(kind, table, world, tensors, sizes)
    common = plain_bytes(table)
    spent = sum(coordinator.values()) + fingerprints
    return {
        "kind": kind,
        "world": world,
        "tensors": len(table),
        "root_bytes": root_bytes,
        "checkpoint_bytes": checkpoint_bytes,
        "table_bytes": table_bytes,
        "parts": len(root.parts),
        "parts_bytes": store.size_bytes - root_bytes - table_bytes,
        "largest_part_bytes": max(sizes.values()),
        "resume_bytes": root_bytes + checkpoint_bytes + table_bytes + own + common + 10_000,
        "common_bytes": common,
        "coordinator_s": spent,
        "fingerprints_s": fingerprints,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "writes": len(root.parts) + 6 + world * (1 + data_objects(table, form)),
    }


def _distances(world: int) -> list[int]:
    """Return the distances between the ranks of each level of the tree, as `collectives.levels` has them."""
    return [others.step for others, _ in collectives.levels(0, world)]


def _slice() -> Slice:
    return Slice(object="1" * 64, offset=0, size_bytes=1, digest="1" * 64)


def part_sizes(report: Report, table: list[TableTensor], world: int, form: Format, distinct: int) -> dict[int, int]:
    """Return the size of each part by its first rank, from the sizes of distinct shares."""
    lengths = [len(codec.encode(share_of(table, rank, form))) for rank in range(min(distinct, world))]
    firsts = [each.first for each in report.shares.stored]
    if report.shares.waiting:
        firsts.append(report.shares.first)
    ends = [*firsts[1:], world + 1]
    lengths.append(len(codec.encode(share_of(table, world, form))))
    return {
        first: sum(lengths[-1 if rank == world else rank % (len(lengths) - 1)] for rank in range(first, end))
        for first, end in zip(firsts, ends, strict=True)
    }


def resume_read(kind: str, table: list[TableTensor], world: int, tensors: int, sizes: dict[int, int]) -> int:
    """Return the bytes of the parts that the last rank reads on the same number of ranks."""
    rank = world - 1
    held = describe(kind, world, tensors, rank % max(1, world // GROUP))
    sources = {rank}
    for tensor in table:
        # Whole tensors are in another share.
        if not tensor.axes and tensor.name in held:
            sources.add(tensor.first)
    firsts = sorted(sizes)
    wanted = {max(first for first in firsts if first <= source) for source in sources}
    return sum(sizes[first] for first in wanted)


def plain_bytes(table: list[TableTensor]) -> int:
    """Return the size of the plain state of all ranks of an AdamW training with a step for each parameter."""
    names = [tensor.name for tensor in table if tensor.name.startswith("model.")]
    backend = {
        "groups": [{"params": [name.removeprefix("model.") for name in names], "lr": 0.1}],
        "devices": {f"optimizer.{name.removeprefix('model.')}.step": "cpu" for name in names},
        "optimizer": {name.removeprefix("model."): {} for name in names},
    }
    return len(codec.encode_plain({"backend": backend}))


def data_objects(table: list[TableTensor], form: Format) -> int:
    """Return the number of objects of bytes that a rank stores."""
    return len(share_of(table, 1, form).locations.starts)


def fingerprint_rules(kind: str, world: int, tensors: int) -> float:
    """Return the seconds of rank 0 for the fingerprints of all ranks, without the sums of elements."""
    held = [
        (ranks, {name: merging.WHOLE if each.sharding is None else each.cut for name, each in described.items()})
        for ranks, described in all_classes(kind, world, tensors)
    ]
    own = {name: {"all": number} for number, name in enumerate(held[0][1])}
    began = time.process_time()
    rules = merging.arrange(held)
    sums, differences = merging.contribute(own, held[0][1], rules, 0)
    merging.texts(rules, [value % 2**64 for value in sums], merging.unequal(rules, [0] * len(differences)))
    return time.process_time() - began


# --- readers --------------------------------------------------------------------------------------------------------


def fill(folder: Path, world: int, tensors: int, distinct: int) -> None:
    """Create a store with a run and one checkpoint, without the objects of tensors."""
    repo = Repository.create(LocalStore(folder))
    objects = repo.objects
    planted.run(repo, RUN)
    planted.begin(repo, RUN)
    table = placement.arrange(all_classes("even", world, tensors))
    parts = contents.PartList((), 0, ())
    state = planted.whole(objects, codec.encode_plain({"backend": {}, "generators": {"torch": bytes(5000)}}))
    for rank, data in enumerate(encoded_shares(table, world, repo.format, distinct, state)):
        parts = parts.joined(contents.PartList((), rank, (data,)), objects.put)
    content = Content(
        format="dcp/1",
        world=world,
        tensors=objects.put_record(contents.make_table(table)),
        parts=parts.all(objects.put),
        common=planted.whole(objects, codec.encode_plain({"backend": {}})),
        fingerprints=planted.whole(objects, codec.encode_plain({tensor.name: "0" * 16 for tensor in table})),
    )
    heads = {str(rank): os.urandom(32).hex() for rank in range(world)}
    planted.checkpoint(repo, RUN, 1, content, ledger=heads)


def read(folder: Path, reader: str) -> dict[str, Any]:
    """Return CPU seconds and peak memory of one reader of the store."""
    repo = Repository.open(LocalStore(folder))
    which = resolve.resolve(repo, RUN)
    began = time.process_time()
    if reader == "show":
        listing.view(repo, which)
    elif reader == "ls":
        listing.list_checkpoints(repo, RUN)
    elif reader == "diff":
        diff.compare(repo, which, which)
    elif reader == "gc":
        ReachableObjects(repo.objects).record(which.digest, Checkpoint)
    else:
        records = Records(repo.objects)
        records.walk(f"run {RUN}", which.digest, Checkpoint)
        for _ in records.slices():
            pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"reader": reader, "seconds": time.process_time() - began, "peak_bytes": peak}


def readers(worlds: list[int], tensors: int, distinct: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for world in worlds:
            store = Path(folder) / str(world)
            fill(store, world, tensors, distinct)
            for reader in ("show", "ls", "diff", "gc", "fsck"):
                command = [sys.executable, __file__, "--read", str(store), reader]
                row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                print(
                    f"| {world:,} | {tensors:,} | {reader} | {row['seconds']:.1f} | {row['peak_bytes'] / 2**20:,.0f} |",
                    flush=True,
                )


# --- command --------------------------------------------------------------------------------------------------------


def ledger_writes(nodes: int) -> tuple[float, float]:
    """Return the writes of all nodes' ledgers in the first hour, and in an hour of a long run."""
    from m5ws.agent import delivery

    now, first = 0.0, 0
    while now < 3600:
        now += min(max(delivery._INTERVAL_S, now / delivery._SHARE), delivery._LONGEST_S)  # noqa: SLF001
        first += 1
    return nodes * first, nodes * 3600 / delivery._LONGEST_S  # noqa: SLF001


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--worlds", type=int, nargs="*", default=[128, 1024, 8192])
    parser.add_argument("--tensors", type=int, nargs="*", default=[3000, 100_000])
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--distinct", type=int, default=2, help="Ranks with shares of their own; others repeat them.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readers", action="store_true", help="Measure show, ls, diff, gc and fsck instead.")
    parser.add_argument("--case", nargs=3)
    parser.add_argument("--read", nargs=2)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(read(Path(arguments.read[0]), arguments.read[1])))
        return
    if arguments.readers:
        readers(arguments.worlds, arguments.tensors[0], arguments.distinct)
        return
    if arguments.case:
        kind, world, tensors = arguments.case
        print(json.dumps(case(kind, int(world), int(tensors), arguments.distinct)))
        return
    rows = []
    for kind in arguments.kinds:
        for tensors in arguments.tensors:
            for world in arguments.worlds:
                command = [sys.executable, __file__, "--distinct", str(arguments.distinct)]
                command += ["--case", kind, str(world), str(tensors)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                rows.append(json.loads(done.stdout))
                print(line(rows[-1]), flush=True)
    laws(rows)
    for nodes in (16, 128, 1024):
        first, later = ledger_writes(nodes)
        print(f"ledger of {nodes} nodes: {first:,.0f} writes in the first hour, then {later:,.0f} an hour")
    print(f"ledger at one write a second of each node: {_PREFIX_PUTS:,} nodes reach S3's limit of a prefix")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def line(row: dict[str, Any]) -> str:
    return (
        f"| {row['kind']} | {row['world']:,} | {row['tensors']:,} | {row['root_bytes'] / 2**20:.2f} "
        f"| {row['parts']:,} | {row['largest_part_bytes'] / 2**20:.2f} | {row['resume_bytes'] / 2**20:.2f} "
        f"| {row['coordinator_s']:.1f} | {row['peak_bytes'] / 2**20:,.0f} | {row['writes']:,} |"
    )


def laws(rows: list[dict[str, Any]]) -> None:
    """Print the growth of the root and of a read, and the points at which they pass their bars."""
    largest = max(rows, key=lambda row: (row["world"], row["tensors"]))
    per_part = largest["root_bytes"] / max(1, largest["parts"])
    print(f"root: {per_part:.0f} bytes a part, at most a part for each rank: 1 MiB at {2**20 / per_part:,.0f} ranks")
    per_rank = largest["checkpoint_bytes"] / largest["world"]
    print(f"checkpoint record: {per_rank:.0f} bytes a rank: 1 MiB at {2**20 / per_rank:,.0f} ranks")
    dense = [row for row in rows if row["kind"] == "even" and row["world"] == largest["world"]]
    if len({row["tensors"] for row in dense}) > 1:
        few, many = dense[0], dense[-1]
        slope = (many["resume_bytes"] - few["resume_bytes"]) / (many["tensors"] - few["tensors"])
        base = few["resume_bytes"] - slope * few["tensors"]
        print(f"read: {slope:.0f} bytes a tensor: 10 MiB at {(10 * 2**20 - base) / slope:,.0f} tensors")


if __name__ == "__main__":
    main()
