"""Test of restores: a short training without a stop, and restores of it after many of its steps.

Each restore starts from the checkpoint of one step and continues to the last step. It is compared bit for bit with the
uninterrupted training: quantities, batches, generators, tensors and checkpoints. State that is missing from a
checkpoint shows as a difference, even if only after many steps.
"""

import random
from collections.abc import Sequence

import msgspec

from m5ws.config.settings import RunSettings
from m5ws.errors import UsageError
from m5ws.records import codec
from m5ws.records.checkpoint import Content
from m5ws.records.environment import Observed
from m5ws.records.ledger import AttemptStarted
from m5ws.records.run import LaunchSpec, Run, Segment, Trainer
from m5ws.records.verdict import EXIT_CODES, Outcome, Verdict
from m5ws.repository import checkpoints
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.repository import Repository
from m5ws.runs import history, run

_NPROC = 3
"""Default number of processes: checkpoints of three ranks have uneven shards."""
_VERSIONS = ("torch", "deepspeed")
_FRAMEWORKS = {"dcp/1": "PyTorch", "deepspeed/1": "DeepSpeed"}


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Joint result of the restores of `run` after steps `restored`. `what` has framework, optimizer and versions."""

    run: str
    outcome: Outcome
    what: dict[str, str]
    steps: int
    restored: tuple[int, ...]
    verdicts: tuple[Verdict, ...]
    reason: str

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]


def choose_launcher(settings: RunSettings, options: run.RunOptions, wanted: Trainer | None) -> run.RunOptions:
    """Return options with a trainer and a number of processes for it. `wanted` is the trainer that the user named.

    A script that m5ws.toml starts with `python` is certified in the same way, as one process. More need torchrun.
    """
    trainer = options.trainer or settings.trainer
    if trainer == "python" and wanted is None and (options.nproc or 1) > 1:
        trainer = "torchrun"
    nproc = options.nproc or (1 if trainer == "python" else _NPROC)
    return msgspec.structs.replace(options, trainer=trainer, nproc=nproc)


def training(snapshot: str, launch: LaunchSpec, steps: int) -> Run:
    """Return the uninterrupted training: `steps` steps, with a checkpoint and fingerprints after each."""
    dense = msgspec.structs.replace(launch, checkpoint_every=1, checkpoint_minutes=None, fingerprint_every=1)
    made = run.new_run(snapshot, dense, name="certify")
    return msgspec.structs.replace(made, segment=Segment(first=0, last=steps))


def restores(repo: Repository, run_id: str, count: int | None, seed: int) -> list[Segment]:
    """Return the segments to restore: after every step but the last, or after `count` of them drawn by `seed`.

    Raises UsageError if the training published no checkpoint before its last step.
    """
    done = history.load(repo, run_id)
    last = done.last_step
    labels = {checkpoints.step_of(label): label for label in checkpoints.valid(repo, run_id)}
    steps = sorted(step for step in labels if 0 < step < last)
    if not steps:
        raise UsageError(
            f"nothing to restore: run {run_id} has no checkpoint before its last step",
            hint="Use m5ws.session in the script, and train more than one step.",
        )
    if count is not None and count < len(steps):
        steps = sorted(random.Random(seed).sample(steps, count))
    return [
        Segment(
            first=step,
            last=last,
            checkpoint=labels[step],
            digest=checkpoints.digest(repo, run_id, labels[step], done.published),
        )
        for step in steps
    ]


def certificate(repo: Repository, run_id: str, verdicts: Sequence[Verdict]) -> Certificate:
    """Return the joint result of the verdicts on restores."""
    last = history.load(repo, run_id).last_step
    steps = tuple(verdict.segment.first for verdict in verdicts if verdict.segment is not None)
    bad = [verdict for verdict in verdicts if verdict.outcome != "sampled"]
    if bad:
        first = bad[0]
        after = first.segment.first if first.segment is not None else 0
        # "not comparable" in a run's verdict, but a proven fault of its restore.
        outcome = "diverged" if first.recheck is not None and first.recheck.start_equal else first.outcome
        reason = (
            f"{len(bad)} of {len(verdicts)} restores differ from uninterrupted training. "
            f"The first is the restore after step {after}: {first.reason}"
        )
    else:
        outcome = "reproduced"
        reason = (
            f"{len(verdicts)} restores, each continued to step {last}, give the same bits as uninterrupted training"
        )
    return Certificate(
        run=run_id,
        outcome=outcome,
        what=described(repo, run_id),
        steps=last,
        restored=steps,
        verdicts=tuple(verdicts),
        reason=reason,
    )


def described(repo: Repository, run_id: str) -> dict[str, str]:
    """Return the facts of a certificate: framework, optimizer, number of ranks and versions."""
    label = checkpoints.valid(repo, run_id)[-1]
    content = repo.objects.get_record(checkpoints.load(repo, run_id, label).content, Content)
    facts = {"framework": _FRAMEWORKS.get(content.format, content.format), "ranks": str(content.world)}
    plain = codec.decode_plain(repo.objects.read(content.common)) if content.common is not None else None
    backend = plain.get("backend") if isinstance(plain, dict) else None
    kind = backend.get("optimizer_kind") if isinstance(backend, dict) else None
    if kind:
        facts["optimizer"] = str(kind)
    for event in ledger.events(repo, run_id, 1, LAUNCHER):
        if isinstance(event, AttemptStarted):
            observed = repo.objects.get_record(event.observed, Observed).facts
            facts |= {name: value for name in _VERSIONS if (value := observed.get(name))}
            break
    return facts
