"""Runs written straight into a store, as by a supervisor, for tests of their readers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.environment import Declared, Observed
from m5ws.records.ledger import NODE, AttemptEnded, CheckpointPublished, RankStarted, Step
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.snapshot import Dataset, Tokenizer
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from tests.support.records import planted

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DVC_HASH = "2d0d8a1e9f1d4b6a8c3e5f7091a2b3c4.dir"
FACTS: dict[str, str | None] = {
    "torch": "2.13.0+cu130",
    "torch.cuda": "13.0",
    "nccl": "2.29.3",
    "gpu.model": "NVIDIA H100 80GB HBM3",
    "gpu.count": "8",
    "gpu.driver": "580.95.05",
    "efa.driver": "2.17.2",
    "libfabric": "2.3.1",
    "aws-ofi-nccl": None,
    "threads": "1",
}
CONFIG = "model:\n  width: 64\n  layers: [2, 3]\ntrain:\n  lr: 3.0e-4\n  warmup: null\n"


def publish_snapshot(repo: Repository, directory: Path, *, config: str = CONFIG, code: str = "print('train')\n") -> str:
    """Publish a snapshot with code, config, tokenizer and two datasets, and return its id."""
    parts = {
        "code": {"train.py": code},
        "config": {"config.yaml": config},
        "tokenizer": {"tokenizer/vocab.json": '{"a": 0}'},
        "data": {"data/a.txt": "text " * 100},
    }
    digests = {part: planted.tree(repo, directory / part, files) for part, files in parts.items()}
    snapshot = planted.snapshot(
        digests["code"],
        commit=COMMIT,
        dirty=True,
        config=digests["config"],
        tokenizer=Tokenizer(tree=digests["tokenizer"], probe_text="a", probe_ids=(0,)),
        datasets=(
            Dataset(name="data", kind="files", tree=digests["data"], size_bytes=500),
            Dataset(name="corpus", kind="dvc", tree=digests["data"], size_bytes=500, hash=DVC_HASH),
        ),
        declared=Declared(image="registry.example/train@sha256:" + "ab" * 32),
    )
    return planted.publish(
        repo,
        snapshot,
        created_s=1_700_000_000.0,
        author="A. Author",
        message="a first try",
        branch="main",
        remote="https://git.example/a/b.git",
    )


def publish_run(repo: Repository, snapshot: str, **fields: object) -> Run:
    """Publish a run of a snapshot and return it."""
    spec = LaunchSpec(command=("train.py", "--fast"), nproc=2, seed=7)
    usual: dict[str, object] = {"spec": spec, "created_s": 1_700_000_100.0}
    return planted.run(repo, runs.new_id(), snapshot, **usual | fields)


def begin(
    repo: Repository,
    run: Run,
    attempt: int = 1,
    world: int = 2,
    resume: str | None = None,
    facts: Mapping[str, str | None] | None = None,
) -> None:
    """Write the first events of an attempt's node and ranks."""
    observed = repo.objects.put_record(Observed(facts=dict(facts or FACTS)))
    planted.begin(repo, run.id, attempt, observed, resume=resume, time_s=_time(attempt, 0))
    for rank in range(world):
        event = RankStarted(rank=rank, world=world, pid=1, facts={"threads": "2"}, time_s=_time(attempt, 0))
        planted.append(repo, run.id, attempt, str(rank), event)


def train(
    repo: Repository,
    run: Run,
    steps: Sequence[int],
    attempt: int = 1,
    world: int = 2,
    lr: float = 3e-4,
    total: int = 10,
) -> None:
    """Write steps of all ranks. With the usual lr, the loss of rank r after step s is 1/s + r."""
    for rank in range(world):
        planted.append(repo, run.id, attempt, str(rank), *(step(number, attempt, rank, lr, total) for number in steps))


def step(number: int, attempt: int = 1, rank: int = 0, lr: float = 3e-4, total: int = 10) -> Step:
    """Return the event of one step."""
    loss = 1 / number + rank + 1000 * (lr - 3e-4)
    quantities = {"loss": loss.hex(), "grad_norm": (0.1 * number).hex(), "lr": lr.hex()}
    return Step(
        step=number, quantities=quantities, tokens=1024, seconds=0.25, total=total, time_s=_time(attempt, number) + rank
    )


def checkpoint(repo: Repository, run: Run, after: int, attempt: int = 1) -> str:
    """Write the event of a published checkpoint, and return its name."""
    name = f"{after:010d}-{attempt:04d}"
    record = Checkpoint(run=run.id, snapshot=run.snapshot, attempt=attempt, step=after, content=f"{after:064x}")
    event = CheckpointPublished(
        step=after, name=name, checkpoint=repo.objects.digest(codec.encode(record)), content=record.content
    )
    planted.append(repo, run.id, attempt, "0", event)
    return name


def publish_checkpoint(repo: Repository, run: Run, after: int, attempt: int = 1) -> str:
    """Publish an empty checkpoint, and return its record's digest."""
    return planted.checkpoint(repo, run.id, after, Content(format="dcp/1", world=2), attempt=attempt)


def end(repo: Repository, run: Run, attempt: int = 1, outcome: str = "finished") -> None:
    """Write the last event of an attempt."""
    event = AttemptEnded(outcome=outcome, exit_code=0, time_s=_time(attempt, 5000))  # type: ignore[arg-type]
    planted.append(repo, run.id, attempt, NODE, event)


def _time(attempt: int, number: int) -> float:
    return 1_700_000_000.0 + 100_000.0 * attempt + number
