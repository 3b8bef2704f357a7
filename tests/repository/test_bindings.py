"""Every kind of reference in docs/format.md, exchanged with others of its kind: fsck and all readers report it."""

import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from m5ws.errors import Misplaced
from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.gc import Garbage
from m5ws.records.run import Parent, Segment
from m5ws.records.verdict import Verdict
from m5ws.repository import bindings
from m5ws.repository.fsck import fsck
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.reproduce import refusals
from m5ws.runs import history
from tests.support.gc import referenced
from tests.support.gc.referenced import DIVERGED, EQUAL, GONE, OTHER, A, B, World
from tests.support.stores.counting_store import CountingStore
from tests.support.workspace import command_line

ROWS = {row.pattern: row for row in referenced.rows()}
BOUND = [pattern for pattern, row in ROWS.items() if row.bound and not pattern.startswith("objects/")]
_REPORTED = re.compile(
    r"another key|modified|about run|does not follow|no part|is missing|head of its plan|ledger head|has this name"
)
_ORIGINAL = {A: A, B: B, EQUAL: A, DIVERGED: A, OTHER: B}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, World]:
    """A store without gc plans, and a store with plans, which make writers wait."""
    plain, planned = (World(tmp_path_factory.mktemp(name) / "w") for name in ("plain", "planned"))
    referenced.plan(planned.repo)
    _attest(plain)
    return {False: plain, True: planned}


@pytest.fixture
def world(worlds: dict[bool, World], request: pytest.FixtureRequest) -> Iterator[World]:
    """The store that has references of the tested kind."""
    found = worlds[str(getattr(request, "param", "")).startswith("gc/")]
    yield found
    found.undo()


def _call(world: World, *arguments: str) -> str:
    """Return the output of a command, after its exit status."""
    done = command_line.call("-C", str(world.root), *arguments)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def _attest(world: World) -> None:
    for run in (A, B):
        assert _call(world, "attest", run, "-o", str(world.root / f"{run}.json")).startswith("0"), run


def _reported(world: World, key: str) -> bool:
    # A broken chain is reported by the first batch that does not follow.
    wanted = key.rpartition("/")[0] if "/ledger/" in key else key
    return any(wanted in one.key and one.kind in ("misplaced", "broken-chain") for one in fsck.check(world.repo).damage)


# --- readers of each kind --------------------------------------------------------------------------

Commands = list[tuple[str, ...]]


def _of_checkpoint(world: World, key: str) -> Commands:
    _, run, *_, label = key.split("/")
    step, attempt = label.split("-")
    which, beside = f"{run}@{int(step)}-{int(attempt)}", f"{EQUAL if run != EQUAL else OTHER}@1-1"
    out = str(world.root / "out")
    found: Commands = [
        ("checkpoint", "show", which),
        ("checkpoint", "ls", run),
        ("checkpoint", "export", which, out, "--format", "safetensors", "--dry-run"),
        ("checkpoint", "diff", which, beside),
        ("fork", which, "--dry-run"),
        ("push", run, "--to", out, "--dry-run"),
        ("gc", "--dry-run"),
    ]
    if label == checkpoints.valid(world.repo, run)[-1] and run in (A, B):
        found.append(("resume", run, "--dry-run"))
        found.append(("prefetch", run, "--dry-run"))
    return found + ([("attest", run), ("verify", str(world.root / f"{run}.json"))] if run in (A, B) else [])


def _of_run(world: World, key: str) -> Commands:
    run = key.split("/")[1]
    verbs: Commands = [("show", run), ("diff", run, A if run != A else B), ("gc", "--dry-run")]
    if run in GONE:  # Neither resumed nor copied, whatever its record contains.
        return verbs
    verbs += [("resume", run, "--dry-run"), ("push", run, "--to", str(world.root / "out"), "--dry-run")]
    return [*verbs, ("attest", run)]


def _of_batch(world: World, key: str) -> Commands:
    return [("push", key.split("/")[1], "--to", str(world.root / "out"), "--dry-run")]


def _of_summary(world: World, key: str) -> Commands:
    run = key.split("/")[1]
    return [("show", run), ("diff", run, A if run != A else B)]


def _of_copy(world: World, key: str) -> Commands:
    _, run, _, name = key.split("/")
    verbs: Commands = [("push", run, "--to", str(world.root / "out"), "--dry-run"), ("gc", "--dry-run")]
    return verbs + ([("outputs", run, str(world.root / "out"))] if name.endswith("1") else [])


def _of_verdict(world: World, key: str) -> Commands:
    replay = key.split("/")[1]
    original = _ORIGINAL[replay]
    verbs: Commands = [(verb, run) for verb in ("show", "attest") for run in (replay, original)]
    verbs += [("push", replay, "--to", str(world.root / "out"), "--dry-run")]
    # The statement on A rests on its newest verdict alone.
    return verbs + ([("verify", str(world.root / f"{original}.json"))] if replay == OTHER else [])


def _of_joint(world: World, key: str) -> Commands:
    run = key.split("/")[1]
    verbs: Commands = [("push", run, "--to", str(world.root / "out"), "--dry-run")]
    newest = key.endswith(max(world.repo.store.names(f"runs/{run}/joint/")))
    return verbs + ([("show", run)] if newest else [])


def _of_note(world: World, key: str) -> Commands:
    run = key.split("/")[1]
    return [("show", run), ("push", run, "--to", str(world.root / "out"), "--dry-run")]


def _of_removal(world: World, key: str) -> Commands:
    run = key.split("/")[1]
    return [("show", run), ("push", run, "--to", str(world.root / "out"), "--dry-run"), ("gc", "--dry-run")]


def _of_pin(world: World, key: str) -> Commands:
    return [("gc", "--dry-run"), ("push", key.split("/")[1], "--to", str(world.root / "out"), "--dry-run")]


def _of_annotation(world: World, key: str) -> Commands:
    snapshot = key.split("/")[1]
    push = ("push", snapshot, "--to", str(world.root / "out"), "--dry-run")
    return [("show", snapshot), push, ("gc", "--dry-run")]


def _of_plan(world: World, key: str) -> Commands:
    return [("gc", "--execute", re.split("[/.]", key)[1], "--take-over", "--grace", "0s")]


ALL_PAIRS = [pytest.param(2, id="2 pairs"), pytest.param(None, id="all pairs", marks=pytest.mark.soak)]
"""Number of exchanged pairs of a kind. `make soak` exchanges all."""

READERS: dict[str, Callable[[World, str], Commands]] = {
    "snapshots/<id>/<time>-<nonce>": _of_annotation,
    "runs/<run>/run": _of_run,
    "runs/<run>/ledger/<attempt>/<node>/<seq>": _of_batch,
    "runs/<run>/checkpoints/<step>-<attempt>": _of_checkpoint,
    "runs/<run>/outputs/<attempt>-<node>-<moment>": _of_copy,
    "runs/<run>/summaries/<attempt>-<batches>": _of_summary,
    "runs/<run>/verdict": _of_verdict,
    "runs/<run>/joint/<time>-<nonce>": _of_joint,
    "notes/<run>/<time>-<nonce>": _of_note,
    # `show` reads jobs in a workspace with clusters alone.
    "jobs/<run>/<name>": lambda world, key: _of_note(world, key)[1:],
    # Agents alone read a request to cancel their run.
    "cancels/<run>/<time>-<nonce>": lambda *_: [],
    "canaries/<snapshot>/<kind>/<time>-<nonce>": lambda *_: [("canary", "history")],
    # `preflight` alone reads them, with processes that compute for a second.
    "known/<kind>/<time>-<tag>": lambda *_: [],
    # Loaders alone read them, in the ranks of a run.
    "samples/<dataset>/<reading>-<part>": lambda *_: [],
    "logs/<run>/<attempt>-<node>-<number>": lambda _, key: [("logs", key.split("/")[1], "--attempt", "1")],
    "incidents/<run>/<attempt>": lambda world, key: _of_note(world, key)[1:],
    "pins/<run>/<step>-<attempt>": _of_pin,
    "removed/<run>": _of_removal,
    "gc/<plan>.plan": _of_plan,
    "gc/<plan>/garbage/<n>": _of_plan,
    "gc/<plan>/retired/<n>": _of_plan,
    "gc/<plan>/keep/<nonce>": _of_plan,
    "gc/<plan>.executing": _of_plan,
    # The record of a finished plan is for people only: no command reads it.
    "gc/<plan>.done": lambda *_: [],
}


# --- the table -------------------------------------------------------------------------------------


def test_the_table_has_every_kind_of_reference_and_the_code_has_every_row(worlds: dict[bool, World]) -> None:
    assert set(ROWS) == {part for pattern in referenced.patterns() for part in pattern.replace("`", "").split(", ")}
    written = {pattern: kind.__name__ for pattern, kind, _ in bindings.KEYS}
    assert written == {pattern: row.record for pattern, row in ROWS.items() if pattern in written}
    assert set(BOUND) <= set(written) and set(READERS) == set(BOUND)
    for world in worlds.values():
        kinds = {key: [row for row in ROWS.values() if row.fits(key)] for key in world.keys if key[:8] != "objects/"}
        assert [key for key, found in kinds.items() if len(found) != 1] == []
        assert fsck.check(world.repo).clean


def _pairs(world: World, pattern: str, most: int | None) -> list[tuple[str, str]]:
    """Return pairs of references of a kind: all, or some that differ as much as possible."""
    keys = world.of(ROWS[pattern])
    assert len(keys) > 1, f"no two references of the kind {pattern}"
    pairs = list(itertools.combinations(keys, 2))
    return pairs if most is None else pairs[:: max(1, len(pairs) // most)][:most]


@pytest.mark.parametrize(("world", "pattern"), [(one, one) for one in BOUND], ids=BOUND, indirect=["world"])
@pytest.mark.parametrize("most", ALL_PAIRS)
def test_fsck_reports_both_exchanged_references(world: World, pattern: str, most: int | None) -> None:
    for one, other in _pairs(world, pattern, most):
        world.swap(one, other)
        found = [key for key in (one, other) if not _reported(world, key)]
        assert found == [], (one, other)
        world.undo()


@pytest.mark.parametrize(("world", "pattern"), [(one, one) for one in BOUND], ids=BOUND, indirect=["world"])
@pytest.mark.parametrize("most", ALL_PAIRS)
def test_each_command_that_reads_a_reference_reports_an_exchanged_reference(
    world: World, pattern: str, most: int | None, tmp_path: Path
) -> None:
    for one, other in (pair for some in _pairs(world, pattern, most) for pair in (some, some[::-1])):
        for number, arguments in enumerate(READERS[pattern](world, one)):
            world.put(one, world.get(other))
            told = _asked(world, arguments, tmp_path / f"{number}")
            world.undo()
            assert _REPORTED.search(told), (one, other, arguments, told)
            assert told[0] != "0" or arguments[0] == "ls" or arguments[:2] == ("checkpoint", "ls"), (arguments, told)


def _asked(world: World, arguments: tuple[str, ...], scratch: Path) -> str:
    """Call a command. A command that deletes runs in a copy of the workspace."""
    if "--execute" not in arguments:
        return _call(world, *arguments)
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(world.root, scratch)
    return command_line.call("-C", str(scratch), *arguments).stderr


@pytest.mark.parametrize(("world", "pattern"), [(one, one) for one in BOUND], ids=BOUND, indirect=["world"])
def test_no_command_reports_a_correct_reference(world: World, pattern: str, tmp_path: Path) -> None:
    commands = {arguments for key in world.of(ROWS[pattern]) for arguments in READERS[pattern](world, key)}
    for number, arguments in enumerate(sorted(commands)):
        told = _asked(world, arguments, tmp_path / f"{number}")
        assert not _REPORTED.search(told), (arguments, told)
        shutil.rmtree(world.root / "out", ignore_errors=True)


# --- forged records --------------------------------------------------------------------------------


def _forge(world: World, key: str, **fields: object) -> None:
    """Make a reference name a new record: the old record with some fields changed."""
    record = world.repo.objects.get_record(bindings.line(world.repo.store, key), Checkpoint)
    digest = world.repo.objects.put_record(msgspec.structs.replace(record, **fields))
    world.put(key, f"{digest}\n".encode())


@pytest.mark.parametrize("run", [A, B])
def test_each_command_that_uses_a_checkpoint_reports_exchanged_content(world: World, run: str) -> None:
    label = checkpoints.valid(world.repo, run)[-1]
    key = checkpoints.key(run, label)
    content = checkpoints.find(world.repo, EQUAL, checkpoints.name(1, 1))[1].content
    # These read no ledger of ranks, or copy it beside the checkpoint.
    commands = [arguments for arguments in _of_checkpoint(world, key) if arguments[0] not in ("push", "gc")]
    _forge(world, key, content=content)
    for arguments in commands:
        told = _call(world, *arguments)
        assert _REPORTED.search(told), (arguments, told)
    assert _reported(world, key)


@pytest.mark.parametrize("segment", [None, Segment(first=1, last=2)])
def test_a_replay_of_steps_with_foreign_checkpoints_is_refused(world: World, segment: Segment | None) -> None:
    replay = msgspec.structs.replace(runs.load(world.repo, EQUAL), segment=segment)
    labels = checkpoints.names(world.repo, A)
    for label, other in itertools.permutations(labels, 2):
        world.put(checkpoints.key(A, label), world.get(checkpoints.key(A, other)))
        why = refusals.foreign_checkpoint(world.repo, replay, history.load(world.repo, A))
        within = segment is None or segment.first <= checkpoints.step_of(label) <= segment.last
        assert (why is not None and label in why) == within, (label, other, why)
        world.undo()
    assert refusals.foreign_checkpoint(world.repo, replay, history.load(world.repo, A)) is None


def test_a_verdict_stored_under_another_replay_is_never_used(world: World) -> None:
    world.put(f"runs/{DIVERGED}/verdict", world.get(f"runs/{EQUAL}/verdict"))
    (row,) = [line for line in _call(world, "ls", "--runs").splitlines() if line.lstrip().startswith(DIVERGED)]
    assert "reproduced" not in row
    for run in (DIVERGED, A):
        told = _call(world, "show", run)
        assert told.startswith("3") and "reproduced" not in told.lower()
    assert _call(world, "show", OTHER).startswith("0")


def test_a_verdict_on_a_run_that_its_replay_does_not_reproduce_is_misplaced(world: World) -> None:
    verdict = Verdict(run=B, replay=DIVERGED, outcome="reproduced")
    world.put(f"runs/{DIVERGED}/verdict", codec.encode(verdict))
    with pytest.raises(Misplaced, match=f"run {B}"):
        runs.verdict(world.repo, runs.load(world.repo, DIVERGED))
    assert _reported(world, f"runs/{DIVERGED}/verdict")


def test_a_fork_with_the_digest_of_another_checkpoint_is_misplaced(world: World) -> None:
    digest = checkpoints.digest(world.repo, A, checkpoints.name(2, 1))
    for label, held in ((checkpoints.name(2, 1), True), (checkpoints.name(1, 1), False)):
        parent = Parent(run=A, checkpoint=label, step=checkpoints.step_of(label), digest=digest)
        world.put(f"runs/{B}/run", codec.encode(msgspec.structs.replace(runs.load(world.repo, B), parent=parent)))
        assert _reported(world, f"runs/{B}/run") != held
        for arguments in (("gc", "--dry-run"), ("push", B, "--to", str(world.root / "out"), "--dry-run")):
            assert (_REPORTED.search(_call(world, *arguments)) is None) == held
        world.undo()


@pytest.mark.parametrize("world", ["gc/"], indirect=True)
def test_fsck_names_false_parts_of_a_plan(world: World) -> None:
    (one, *_) = world.of(ROWS["gc/<plan>/garbage/<n>"])
    sound = bindings.record(world.repo.store, one, Garbage)
    strange = one.rpartition("/")[0] + "/x"
    world.repo.store.create(strange, codec.encode(msgspec.structs.replace(sound, key=strange)))
    world.put(one, codec.encode(msgspec.structs.replace(sound, digests=sound.digests[:-1])))
    assert {damage.key for damage in fsck.check(world.repo).damage} == {one, strange}
    world.repo.store.delete(strange)


# --- cost ------------------------------------------------------------------------------------------


def _counted(world: World, work: Callable[[Repository], object]) -> list[str]:
    store = CountingStore(world.repo.store)
    work(Repository.open(store))
    return store.gets[1:]


def test_the_check_of_a_read_record_sends_no_additional_request(world: World) -> None:
    run, label = runs.load(world.repo, A), checkpoints.name(3, 2)
    recorded = history.load(world.repo, A).published
    replay = runs.load(world.repo, EQUAL)
    assert len(_counted(world, lambda repo: runs.verdict(repo, replay))) == 1
    assert len(_counted(world, lambda repo: runs.load(repo, run.id))) == 1
    assert len(_counted(world, lambda repo: checkpoints.find(repo, A, label, recorded))) == 2
    assert set(recorded) == set(checkpoints.names(world.repo, A))


def test_fsck_reads_each_reference_once(world: World) -> None:
    """References are read once; records and packs that are also objects, twice."""
    gets = _counted(world, fsck.check)
    often = {key for key in gets if gets.count(key) > 1 and not key.startswith("objects/")}
    assert often == set()
    assert len(gets) < 4 * len(world.keys)


def test_only_the_bindings_module_decodes_references() -> None:
    """Except for the ledger, whose batches `bindings.check` checks, and for objects, which their names check."""
    package = Path(bindings.__file__).parents[1]
    direct = re.compile(r"decode\w*\([^\n]*store\.get")
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if direct.search(path.read_text())}
    assert found == {"repository/bindings.py", "repository/ledger/ledger.py", "attest/verify.py"}
