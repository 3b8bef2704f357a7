"""A run with all that a report shows: notes, a fork, an equal replay, a diverged replay, and verdicts on both."""

from pathlib import Path

from m5ws.records.note import Note
from m5ws.records.reasons import Differs, Gap
from m5ws.records.run import Parent, Run
from m5ws.records.verdict import Change, Divergence, Verdict
from m5ws.repository.references import checkpoints, notes, runs
from m5ws.repository.repository import Repository
from tests.support.records import mlflow_runs as written


def publish(repo: Repository, folder: Path, steps: int = 60, text: str | None = None) -> tuple[Run, Run, Run]:
    """Publish the original, its equal replay, and a replay with another learning rate. `text` replaces free texts."""
    first = written.publish_snapshot(repo, folder / "first")
    other = written.publish_snapshot(repo, folder / "other", config=written.CONFIG.replace("3.0e-4", "3.1e-4"))
    original = written.publish_run(repo, first, name=text or "gpt-fsdp")
    equal = written.publish_run(
        repo,
        first,
        name=text or "gpt-fsdp, replayed",
        reproduces=original.id,
        purpose="reproduce",
        created_s=1.7000002e9,
    )
    changed = written.publish_run(
        repo,
        other,
        name=text or "gpt-fsdp, another lr",
        reproduces=original.id,
        purpose="reproduce",
        created_s=1.7000003e9,
    )
    for run in (original, equal, changed):
        _train(repo, run, steps, changed=run is changed)
    digest = written.publish_checkpoint(repo, original, steps)
    parent = Parent(run=original.id, checkpoint=checkpoints.name(steps, 1), step=steps, digest=digest)
    written.publish_run(repo, other, name=text or "longer", parent=parent)
    _judge(repo, original, equal, changed, text)
    why, answer = text or "the spike at step 20 comes from the warmup", text or "there is no spike without it"
    author = text or "A. Author"
    notes.publish(repo, Note(run=original.id, text=why, kind="why", author=author, created_s=1.7e9))
    notes.publish(repo, Note(run=original.id, text=answer, outcome="supported", author=author, created_s=1.7001e9))
    return original, equal, changed


def _train(repo: Repository, run: Run, steps: int, *, changed: bool) -> None:
    written.begin(repo, run, facts=written.FACTS | ({"nccl": "2.30.0"} if changed else {}))
    written.train(repo, run, range(1, steps + 1), lr=3.1e-4 if changed else 3.0e-4, total=steps)
    written.end(repo, run)


def _judge(repo: Repository, original: Run, equal: Run, changed: Run, text: str | None) -> None:
    first = Divergence(
        step=1,
        rank=0,
        quantity="lr",
        original=(3.0e-4).hex(),
        replayed=(3.1e-4).hex(),
        tensor=text or "model.blocks.0.attention.out.weight",
        tensors_differ=12,
    )
    changes = (
        Change(part="config", name="train.lr", old="3.0e-4", new="3.1e-4", rating="does"),
        Change(part="environment", name=text or "nccl", old="2.29.3", new=text or "2.30.0"),
    )
    diverged = Verdict(
        run=original.id,
        replay=changed.id,
        outcome="diverged",
        first=first,
        changes=changes,
        reasons=(Differs(),),
        not_compared=(Gap(kind="none recorded", name=text or "checkpoints"),),
        created_s=1.7000005e9,
    )
    counts = {"steps": 60, "quantities": 360}
    reproduced = Verdict(run=original.id, replay=equal.id, outcome="reproduced", compared=counts, created_s=1.7000006e9)
    for verdict in (diverged, reproduced):
        runs.publish_verdict(repo, verdict)
