"""Differences between snapshots and between runs, in a real store."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from m5ws.diff.diff import between_runs, between_snapshots
from m5ws.errors import NotFound
from m5ws.records.base import Digest
from m5ws.records.environment import Declared, Determinism, Observed
from m5ws.records.ledger import RankStarted
from m5ws.records.run import LaunchSpec
from m5ws.records.snapshot import Code, Dataset, Tokenizer
from m5ws.records.verdict import Change
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from tests.support.records import planted

CODE = {"train.py": b"lr = 1\nprint(lr)\n", "model.py": b"pass\n"}
CONFIG = {"config.yaml": b"optimizer:\n  lr: 0.001\nsteps: 10\n"}
DATA = {"data/a.txt": b"a", "data/b.txt": b"b", "data/c.txt": b"c"}


class Maker:
    """Publishes snapshots and runs that differ from a base in the named fields."""

    def __init__(self, repo: Repository, directory: Path) -> None:
        self.repo = repo
        self._directory = directory
        self._count = 0

    def tree(self, files: Mapping[str, bytes]) -> Digest:
        self._count += 1
        return planted.tree(self.repo, self._directory / str(self._count), files)

    def snapshot(self, **changes: object) -> Digest:
        base = planted.snapshot(
            self.tree(CODE),
            commit="1" * 40,
            config=self.tree(CONFIG),
            tokenizer=Tokenizer(tree=self.tree({"tok.json": b"{}"}), probe_text="hi you", probe_ids=(1, 2)),
            datasets=(self.dataset(DATA),),
            declared=Declared(locks={"uv.lock": "0" * 64}, wanted={"nccl": "2.27"}),
        )
        return planted.publish(self.repo, msgspec.structs.replace(base, **changes))

    def dataset(self, files: dict[str, bytes], **changes: object) -> Dataset:
        size = sum(map(len, files.values()))
        base = Dataset(name="data", kind="files", tree=self.tree(files), size_bytes=size)
        return msgspec.structs.replace(base, **changes)

    def run(self, snapshot: Digest, spec: LaunchSpec, ranks: Sequence[dict[str, str | None]] | None = None,
            observed: Observed | None = None) -> str:  # fmt: skip
        """Publish a run. With `ranks`, its first attempt has the facts of each rank."""
        run = planted.run(self.repo, runs.new_id(), snapshot, spec=spec)
        if ranks is not None:
            digest = self.repo.objects.put_record(observed or Observed())
            planted.begin(self.repo, run.id, observed=digest)
            for rank, facts in enumerate(ranks):
                started = RankStarted(rank=rank, world=len(ranks), pid=1, facts=facts)
                planted.append(self.repo, run.id, 1, str(rank), started)
        return run.id


@pytest.fixture
def make(repo: Repository, tmp_path: Path) -> Maker:
    return Maker(repo, tmp_path / "sources")


def rows(changes: Sequence[Change]) -> list[tuple[str, str, str | None, str | None]]:
    return [(change.part, change.name, change.old, change.new) for change in changes]


# --- snapshots -----------------------------------------------------------------------------------------------------


def test_equal_snapshots_do_not_differ(make: Maker) -> None:
    assert make.snapshot() == make.snapshot()
    assert between_snapshots(make.repo, make.snapshot(), make.snapshot()) == ()


def test_changed_code_is_shown_as_a_unified_diff(make: Maker) -> None:
    changed = {"train.py": b"lr = 2\nprint(lr)\n", "new.py": b"x\n"}
    code = Code(commit="2" * 40, dirty=True, tree=make.tree(changed))
    changes = between_snapshots(make.repo, make.snapshot(), make.snapshot(code=code))
    commit, removed, added, edited = changes
    assert (commit.old, commit.new, commit.rating) == ("1" * 40, "2" * 40 + " with changes", "cannot")
    assert (removed.name, removed.new) == ("model.py", None)
    assert (added.name, added.old) == ("new.py", None)
    assert edited.rating == "can"
    assert edited.detail == (
        "diff --git a/train.py b/train.py\n--- a/train.py\n+++ b/train.py\n"
        "@@ -1,2 +1,2 @@\n-lr = 1\n+lr = 2\n print(lr)\n"
    )


def test_config_is_compared_by_key(make: Maker) -> None:
    config = make.tree({"config.yaml": b"# faster\noptimizer:\n  lr: 0.002\n  betas: [0.9]\n"})
    changes = between_snapshots(make.repo, make.snapshot(), make.snapshot(config=config))
    assert rows(changes) == [
        ("config", "optimizer.betas.0", None, "0.9"),
        ("config", "optimizer.lr", "0.001", "0.002"),
        ("config", "steps", "10", None),
    ]


def test_keys_of_several_config_files_are_named_with_their_file(make: Maker) -> None:
    old = make.tree(CONFIG | {"more.json": b'{"a": 1}'})
    new = make.tree(CONFIG | {"more.json": b'{"a": 2}', "third.toml": b"x = 1\n"})
    changes = between_snapshots(make.repo, make.snapshot(config=old), make.snapshot(config=new))
    assert rows(changes)[0] == ("config", "more.json:a", "1", "2")
    assert (changes[1].name, changes[1].old) == ("third.toml", None)


def test_a_config_file_with_equal_keys_and_other_text_is_marked(make: Maker) -> None:
    config = make.tree({"config.yaml": b"optimizer:\n  lr: 1e-3\nsteps: 10\n"})
    (change,) = between_snapshots(make.repo, make.snapshot(), make.snapshot(config=config))
    assert change.name.startswith("config.yaml (keys and values are equal")
    assert "-  lr: 0.001\n+  lr: 1e-3\n" in (change.detail or "")


def test_a_config_file_that_is_not_valid_is_shown_as_text(make: Maker) -> None:
    (change,) = between_snapshots(
        make.repo, make.snapshot(), make.snapshot(config=make.tree({"config.yaml": b"optimizer: ["}))
    )
    assert change.name == "config.yaml"
    assert "+optimizer: [" in (change.detail or "")


def test_tokenizers_are_compared_by_files_and_by_token_ids(make: Maker) -> None:
    tokenizer = Tokenizer(tree=make.tree({"tok.json": b"{1}"}), probe_text="hi you", probe_ids=(1, 3))
    changes = between_snapshots(make.repo, make.snapshot(), make.snapshot(tokenizer=tokenizer))
    assert [change.name for change in changes] == ["tok.json", "probe ids"]
    assert (changes[1].old, changes[1].new) == ("2 ids: 1 2", "2 ids: 1 3")
    assert changes[1].detail == "the token ids of the same text differ from position 1 on"


def test_token_ids_of_different_probe_texts_are_not_compared(make: Maker) -> None:
    tokenizer = Tokenizer(tree=make.tree({"tok.json": b"{}"}), probe_text="other", probe_ids=(7,))
    (change,) = between_snapshots(make.repo, make.snapshot(), make.snapshot(tokenizer=tokenizer))
    assert (change.name, change.rating) == ("probe text", "cannot")


def test_data_files_are_named_and_counted(make: Maker) -> None:
    new = {"data/a.txt": b"A!", "data/b.txt": b"b"} | {f"data/n{number:02}": b"n" for number in range(25)}
    (change,) = between_snapshots(make.repo, make.snapshot(), make.snapshot(datasets=(make.dataset(new),)))
    assert (change.part, change.name) == ("data", "data")
    added, removed, changed = (change.detail or "").splitlines()
    assert added.startswith("added 25: data/n00, data/n01,")
    assert added.endswith("data/n19, and 5 more")
    assert (removed, changed) == ("removed 1: data/c.txt", "changed 1: data/a.txt")


def test_dvc_datasets_are_shown_with_the_dvc_hash(make: Maker) -> None:
    before = make.dataset(DATA, kind="dvc", hash="aa.dir")
    after = make.dataset(DATA | {"data/d.txt": b"d"}, kind="dvc", hash="bb.dir")
    a, b = make.snapshot(datasets=(before,)), make.snapshot(datasets=(after,))
    assert rows(between_snapshots(make.repo, a, b)) == [("data", "data", "dvc aa.dir, 3 bytes", "dvc bb.dir, 4 bytes")]


def test_the_same_files_pinned_in_another_way_cannot_change_bits(make: Maker) -> None:
    pinned = make.dataset(DATA, kind="dvc", hash="aa.dir")
    (change,) = between_snapshots(make.repo, make.snapshot(), make.snapshot(datasets=(pinned,)))
    assert change.rating == "cannot"


def test_the_declared_environment_and_determinism_are_compared(make: Maker) -> None:
    declared = Declared(locks={"uv.lock": "1" * 64}, image="x@sha256:1", wanted={"nccl": "2.28"})
    changed = make.snapshot(declared=declared, determinism=Determinism(threads=2, nccl_algo=None))
    assert rows(between_snapshots(make.repo, make.snapshot(), changed)) == [
        ("declared", "image", None, "x@sha256:1"),
        ("declared", "lock uv.lock", "0" * 64, "1" * 64),
        ("declared", "wanted nccl", "2.27", "2.28"),
        ("determinism", "threads", "1", "2"),
        ("determinism", "nccl_algo", "Ring", None),
    ]


def test_an_unknown_snapshot_is_not_found(make: Maker) -> None:
    with pytest.raises(NotFound):
        between_snapshots(make.repo, make.snapshot(), "0" * 64)


# --- runs ----------------------------------------------------------------------------------------------------------

SPEC = LaunchSpec(command=("train.py",), nproc=2, seed=1)


def test_runs_of_one_snapshot_launched_alike_do_not_differ(make: Maker) -> None:
    snapshot = make.snapshot()
    facts: list[dict[str, str | None]] = [{"threads": "1"}, {"threads": "1"}]
    a, b = (make.run(snapshot, SPEC, facts, Observed(facts={"kernel": "6"})) for _ in range(2))
    assert between_runs(make.repo, a, b) == ()


def test_launch_settings_of_runs_are_compared(make: Maker) -> None:
    spec = LaunchSpec(command=("train.py", "--x"), nproc=3, seed=2, environment={"A": "1"}, fingerprint_every=5)
    a, b = make.run(make.snapshot(), SPEC), make.run(make.snapshot(), spec)
    changes = between_runs(make.repo, a, b)
    assert rows(changes) == [
        ("argument", "x", None, "true"),
        ("launch", "nproc", "2", "3"),
        ("launch", "seed", "1", "2"),
        ("launch", "fingerprint_every", None, "5"),
        ("launch", "environment.A", None, "1"),
    ]
    assert [change.rating for change in changes] == ["can", "does", "does", "cannot", "can"]


def test_arguments_are_compared_by_name(make: Maker) -> None:
    snapshot = make.snapshot()
    old = LaunchSpec(command=("train.py", "a.b=1", "--lr", "0.001", "--steps=10", "--no-ema"))
    new = LaunchSpec(command=("train.py", "+a.b=2", "--lr", "0.002", "--steps=10", "--ema"))
    a, b = make.run(snapshot, old), make.run(snapshot, new)
    assert rows(between_runs(make.repo, a, b)) == [
        ("argument", "a.b", "1", "2"),
        ("argument", "ema", "false", "true"),
        ("argument", "lr", "0.001", "0.002"),
    ]
    module = make.run(snapshot, LaunchSpec(command=("-m", "pkg.train", *old.command[1:])))
    assert rows(between_runs(make.repo, a, module)) == [("launch", "command", "train.py", "-m pkg.train")]
    ordered = LaunchSpec(command=("train.py", "a.b=1", "--steps", "10", "--lr", "0.001", "--no-ema"))
    assert rows(between_runs(make.repo, a, make.run(snapshot, ordered))) == [
        ("launch", "command", " ".join(old.command), " ".join(ordered.command))
    ]


def test_a_file_that_both_commands_name_is_compared_by_its_keys(make: Maker) -> None:
    one = {"ds/a.json": b'{"lr": 1, "zero": {"stage": 2}}', "ds/b.json": b'{"lr": 2, "zero": {"stage": 2}}'}
    changed = one | {"ds/a.json": b'{"lr": 1, "zero": {"stage": 3}}'}
    old, new = (
        make.snapshot(code=Code(commit=None, dirty=False, tree=make.tree(CODE | files))) for files in (one, changed)
    )
    spec = LaunchSpec(command=("train.py", "--deepspeed", "ds/a.json"))
    changes = between_runs(make.repo, make.run(old, spec), make.run(new, spec))
    assert rows(changes) == [
        ("code", "ds/a.json", changes[0].old, changes[0].new), ("argument", "deepspeed.zero.stage", "2", "3")
    ]  # fmt: skip
    assert [change.rating for change in changes] == ["cannot", "can"]

    renamed = LaunchSpec(command=("train.py", "--deepspeed", "ds/b.json"))
    changes = between_runs(make.repo, make.run(old, spec), make.run(old, renamed))
    assert rows(changes) == [("argument", "deepspeed.lr", "1", "2")]
    a, b = (make.run(old, LaunchSpec(command=("train.py", f"ds/{name}.json"))) for name in "ab")
    changes = between_runs(make.repo, a, b)
    assert rows(changes) == [("argument", "lr", "1", "2")]
    absent = LaunchSpec(command=("train.py", "--deepspeed", "ds/c.json"))
    changes = between_runs(make.repo, make.run(old, spec), make.run(old, absent))
    assert rows(changes) == [("argument", "deepspeed", "ds/a.json", "ds/c.json")]


def test_facts_from_ranks_take_precedence_over_facts_from_before_the_launch(make: Maker) -> None:
    snapshot = make.snapshot()
    a = make.run(snapshot, SPEC, [{"threads": "1"}, {"threads": "1"}], Observed(facts={"threads": "4"}))
    b = make.run(snapshot, SPEC, [{"threads": "2"}, {"threads": "2"}], Observed(facts={"threads": "4"}))
    (change,) = between_runs(make.repo, a, b)
    assert (change.name, change.old, change.new, change.rating) == ("threads", "1", "2", "does")


def test_a_change_on_some_ranks_names_the_ranks(make: Maker) -> None:
    snapshot = make.snapshot()
    a = make.run(snapshot, SPEC, [{"threads": "1"}] * 3)
    b = make.run(snapshot, SPEC, [{"threads": "1"}, {"threads": "2"}, {"threads": "2"}])
    (change,) = between_runs(make.repo, a, b)
    assert (change.detail or "").startswith("on rank 1, 2: ")


def test_another_number_of_ranks_is_part_of_the_environment(make: Maker) -> None:
    snapshot = make.snapshot()
    a, b = make.run(snapshot, SPEC, [{}, {}]), make.run(snapshot, SPEC, [{}, {}, {}])
    assert rows(between_runs(make.repo, a, b)) == [("environment", "world", "2", "3")]


def test_a_run_that_never_started_cannot_be_compared(make: Maker) -> None:
    snapshot = make.snapshot()
    a, b = make.run(snapshot, SPEC, [{}]), make.run(snapshot, SPEC)
    (change,) = between_runs(make.repo, a, b)
    assert (change.name, change.new) == ("observed", None)
    assert between_runs(make.repo, b, b) == ()


def test_an_attempt_without_started_ranks_is_compared_by_its_observation(make: Maker) -> None:
    snapshot = make.snapshot()
    a = make.run(snapshot, SPEC, [], Observed(distributions={"torch": "2.12"}))
    b = make.run(snapshot, SPEC, [], Observed(distributions={"torch": "2.13"}))
    assert rows(between_runs(make.repo, a, b)) == [("environment", "distribution.torch", "2.12", "2.13")]
