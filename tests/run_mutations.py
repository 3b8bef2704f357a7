"""Plant faults in the core, one at a time, and check that the tests of that part find each.

Called as: run_mutations.py [--only N]. The project's files are copied to a temporary folder, and faults are planted
only in the copy. First the tests must pass there without a fault, or a failing test would prove nothing.

A fault is found when a test fails. A collection error does not count. The table of results is Markdown. The exit
status is 1 if a fault was not found. The tests are some of the tests that `make test` runs, by the folder and module of
the fault.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """A fault that a developer could make: `old`, which is there once, becomes `new`. `tests` are below tests/."""

    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "an object is read without checking its digest",
        "m5ws/repository/objects.py",
        "            if self.digest(data) == digest:\n",
        "            if data:\n",
        ("repository/test_fsck.py", "repository/test_materialise.py"),
    ),
    Mutation(
        "a record is read without checking its seal",
        "m5ws/records/codec.py",
        "    if blake3.blake3(record).digest() != seal:\n",
        "    if len(seal) != _SEAL_BYTES:\n",
        ("records/test_codec.py", "repository/test_fsck_bits.py"),
    ),
    Mutation(
        "a checkpoint's reference is published before its record",
        "m5ws/repository/references/checkpoints.py",
        "    record = repo.objects.put_record(checkpoint)\n"
        "    where = key(checkpoint.run, name(checkpoint.step, checkpoint.attempt))\n",
        "    record = repo.objects.digest(ledger.codec.encode(checkpoint))\n"
        "    where = key(checkpoint.run, name(checkpoint.step, checkpoint.attempt))\n"
        '    repo.store.create(where, f"{record}\\n".encode())\n'
        "    repo.objects.put_record(checkpoint)\n",
        ("training/test_crash.py",),
    ),
    Mutation(
        "of two writers of a key the later writer wins",
        "m5ws/store/local.py",
        "        except FileExistsError as error:\n            raise ObjectExists(key) from error\n",
        "        except FileExistsError:\n"
        "            os.replace(temporary, target)\n"
        "            os.link(target, temporary)\n",
        ("contract/test_store.py",),
    ),
    Mutation(
        "a batch need not follow the batch before it",
        "m5ws/repository/ledger/ledger.py",
        "    if batch.previous != head:\n"
        '        raise CorruptObject(f"batch {key} does not follow the batch before it")\n',
        "    head = batch.previous\n",
        ("repository/test_ledger.py", "repository/test_hostile_stores.py"),
    ),
    Mutation(
        "events that the ledger has are delivered again after a kill",
        "m5ws/agent/delivery.py",
        "new[published.get(origin, 0) :]",
        "new",
        ("agent/test_delivery.py", "repository/test_ledger.py"),
    ),
    Mutation(
        "a late rank's checkpoint counts although a newer attempt did not inherit it",
        "m5ws/repository/references/checkpoints.py",
        "        accepted = earlier | {",
        "        accepted |= earlier | {",
        ("repository/test_ledger.py",),
    ),
    Mutation(
        "a rank that the replay does not have is not missed",
        "m5ws/reproduce/gaps.py",
        "        for rank, steps in comparison.original.steps.items()\n",
        "        for rank, steps in comparison.original.steps.items()\n        if rank in comparison.replay.steps\n",
        ("reproduce/test_compare.py",),
    ),
    Mutation(
        "a step of an unplaced attempt is judged",
        "m5ws/runs/history.py",
        "recorded_steps.counts(event) and self.attempt not in self.unplaced",
        "recorded_steps.counts(event)",
        ("reproduce/test_compare.py",),
    ),
    Mutation(
        "a replay of fewer steps does not differ",
        "m5ws/reproduce/compare.py",
        "                if again < done and rank <",
        "                if again > done and rank <",
        ("reproduce/test_compare.py",),
    ),
    Mutation(
        "a script that starts from the beginning is certified",
        "m5ws/reproduce/interruptions.py",
        "    if resumed == 0:\n",
        '    if resumed == 0 and outcome == "not comparable":\n',
        ("flows/test_interruptions.py",),
    ),
    Mutation(
        "a count that the script reset proves the place of an attempt",
        "m5ws/training/observation/place.py",
        "    if 0 in steps.values():\n",
        "    if steps.get(count) == 0:\n",
        ("training/test_observed_resume.py",),
    ),
    Mutation(
        "a quantity that one side lacks is not compared",
        "m5ws/reproduce/compare.py",
        "        return any(side.observed and",
        "        return True or any(side.observed and",
        ("reproduce/test_compare.py",),
    ),
    Mutation(
        "weights that differ at the end are not compared",
        "m5ws/reproduce/compare.py",
        "                if known[name] == new[name]:\n",
        "                if known[name] is not None:\n",
        ("flows/test_unequal_runs.py",),
    ),
    Mutation(
        "a module of a later attempt has the label of any that is not used yet",
        "m5ws/training/observation/names.py",
        "        exact = [label for label in alike if known[label] == description]\n",
        "        exact = [label for label in known if label not in self._descriptions][:1]\n",
        ("training/test_observed_names.py",),
    ),
    Mutation(
        "the last step of a segment is not compared",
        "m5ws/runs/history.py",
        "{rank: SeriesRange(steps, first, last) for",
        "{rank: SeriesRange(steps, first, last - 1) for",
        ("reproduce/test_compare.py",),
    ),
    Mutation(
        "generators are restored before the loader draws from them",
        "m5ws/training/session/recorder.py",
        "        if self._feed is not None:\n"
        "            self._feed.start()\n"
        "        self._probe_loader()\n"
        "        # Last of all: creating an iterator of the loader draws a seed from the global generator.\n"
        "        generators = self._restore_generators(restored) if restored.rank is not None else {}\n",
        "        generators = self._restore_generators(restored) if restored.rank is not None else {}\n"
        "        if self._feed is not None:\n"
        "            self._feed.start()\n"
        "        self._probe_loader()\n",
        ("training/test_session.py",),
    ),
    Mutation(
        "the fingerprints of restored tensors are not compared with the saved fingerprints",
        "m5ws/training/session/restore.py",
        '    checkpointing.verify_fingerprints("tensors", *_on_their_ranks(tensors, saved), restored.step)\n',
        "",
        ("training/test_session.py",),
    ),
    Mutation(
        "the fingerprint of a part does not depend on where in the tensor it is",
        "m5ws/training/fingerprint/batches.py",
        "(address, width, rows, length * per, first * per, stride * per, 0)",
        "(address, width, rows, length * per, 0, stride * per, 0)",
        ("training/test_fingerprint.py",),
    ),
    Mutation(
        "a file that was allowed to hold a secret is clean for ever",
        "m5ws/snapshot/inspection.py",
        "        elif not suspicious:\n",
        "        elif permitted or not suspicious:\n",
        ("snapshot/test_snapshot_refusals.py",),
    ),
    Mutation(
        "gc deletes objects that a writer keeps",
        "m5ws/repository/gc/execute.py",
        "lambda digest: digest in kept or digest in needed.reach.digests",
        "lambda digest: digest in needed.reach.digests",
        ("repository/test_gc.py", "repository/test_gc_schedules.py"),
    ),
    Mutation(
        "a replay of which nothing was compared is called reproduced",
        "m5ws/reproduce/verdict/judgement.py",
        "    if not comparison.equal:\n",
        "    if comparison.equal is None:\n",
        ("reproduce/test_compare.py",),
    ),
    Mutation(
        "a reference of a removed run counts as published",
        "m5ws/repository/publishing.py",
        "    if run is not None:\n",
        "    if run is None:\n",
        ("attempts/test_removal.py", "attempts/test_removal_schedules.py"),
    ),
    Mutation(
        "a copy publishes a removal after its run",
        "m5ws/repository/transfer/transfer.py",
        "    new = [*(removals.key(name) for name in runs if name in carried), *new]\n",
        "    new = [*new, *(removals.key(name) for name in runs if name in carried)]\n",
        ("repository/test_transfer.py",),
    ),
)


@dataclass(frozen=True)
class Found:
    """The result of one fault: the first test that failed, or None."""

    by: str | None
    seconds: float


def main(arguments: list[str]) -> int:
    """Plant the faults, print the tests that found them, and return 1 if one was not found."""
    parser = argparse.ArgumentParser(description="Plant faults in the core, and check that tests find them.")
    parser.add_argument("--only", type=int, metavar="N", choices=range(1, len(MUTATIONS) + 1), help="only fault N")
    only = parser.parse_args(arguments).only
    chosen = {number: one for number, one in enumerate(MUTATIONS, 1) if only in (None, number)}
    with tempfile.TemporaryDirectory(prefix="m5ws-mutations-") as scratch:
        copy = Path(scratch) / "copy"
        _copy(copy)
        _check_is_imported(copy)
        _check_passes(copy, sorted({test for one in chosen.values() for test in one.tests}))
        found = {}
        for number, one in chosen.items():
            found[number] = _plant(copy, one)
            print(f"{number}. {one.fault}: {found[number].by or 'NOT FOUND'}", file=sys.stderr, flush=True)
    print("| | fault | in | tests | found by | seconds |\n|---|---|---|---|---|---|")
    for number, one in chosen.items():
        by = found[number].by
        cells = (
            one.fault,
            f"`{one.file}`",
            ", ".join(f"`{test}`" for test in one.tests),
            f"`{by}`" if by else "nothing",
        )
        print(f"| {number} | {' | '.join(cells)} | {found[number].seconds:.0f} |")
    count = sum(one.by is not None for one in found.values())
    print(f"\n{count} of {len(found)} faults were found.")
    return int(count < len(found))


def _copy(copy: Path) -> None:
    """Copy the files that git knows or does not ignore, and the compiled kernel. Links stay links."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    compiled = [str(path.relative_to(ROOT)) for path in (ROOT / "m5ws").rglob("*.so")]
    for name in filter(None, [*names, *compiled]):
        source, target = ROOT / name, copy / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def _environment(copy: Path) -> dict[str, str]:
    """Return an environment in which the copy comes before the project that is installed."""
    return os.environ | {"PYTHONPATH": str(copy)}


def _check_is_imported(copy: Path) -> None:
    """Exit with an error unless the copy is imported."""
    command = [sys.executable, "-c", "import m5ws; print(m5ws.__file__)"]
    run = subprocess.run(command, cwd=copy, env=_environment(copy), check=True, capture_output=True, text=True)
    if not Path(run.stdout.strip()).resolve().is_relative_to(copy.resolve()):
        sys.exit(f"{run.stdout.strip()} is imported, and not the copy in {copy}")


def _check_passes(copy: Path, tests: list[str]) -> None:
    """End with an error unless the tests pass without a fault."""
    run = _pytest(copy, tests)
    if run.returncode:
        sys.exit(f"without a fault, the tests do not pass:\n{run.stdout}{run.stderr}")


def _plant(copy: Path, one: Mutation) -> Found:
    """Run the tests with one fault in the copy, which is whole again after that."""
    path = copy / one.file
    text = path.read_text()
    if (count := text.count(one.old)) != 1:
        sys.exit(f"{one.file} contains the text to replace {count} times, not once:\n{one.old}")
    began_s = time.monotonic()
    try:
        _write(path, text.replace(one.old, one.new))
        run = _pytest(copy, one.tests)
    finally:
        _write(path, text)
    seconds = time.monotonic() - began_s
    failed = _FAILED.search(run.stdout)
    # 1: tests ran, and some failed. A collection error has another status.
    return Found(failed[1].removeprefix("tests/") if failed and run.returncode == 1 else None, seconds)


def _write(path: Path, text: str) -> None:
    """Write a module, and remove its compiled file, which Python compares only by whole seconds and size."""
    path.write_text(text)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _pytest(copy: Path, tests: tuple[str, ...] | list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", "--dist", "no"]
    command += ["--basetemp", str(copy.parent / "t"), "--timeout", "300", *(f"tests/{test}" for test in tests)]
    return subprocess.run(command, cwd=copy, env=_environment(copy), capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
