"""Test of restores: a short training without a stop, and restores of it after many of its steps.

Each restore starts from the checkpoint of one step and continues to the last step. It is compared bit for bit with the
uninterrupted training: quantities, batches, generators, tensors and checkpoints. State that is missing from a
checkpoint shows as a difference, even if only after many steps. A script without a session is interrupted and resumed
instead (`interruptions`).
"""

import random
from collections.abc import Sequence

import msgspec

from m5ws.attempts import planning
from m5ws.environment import recorded, usage
from m5ws.errors import UsageError
from m5ws.records import codec
from m5ws.records.certificate import Certificate, find_outcome
from m5ws.records.checkpoint import Content
from m5ws.records.ledger import Observation
from m5ws.records.run import LaunchSpec, Run, Segment
from m5ws.records.verdict import Verdict
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.runs import history

_VERSIONS = ("torch", "deepspeed")
_OBSERVED = ("transformers", "lightning", "pytorch-lightning", "accelerate", "deepspeed", "torchtune", "torchtitan")
"""Distributions of frameworks whose versions a certificate of an observed script lists, if a rank imported them."""
_WITHOUT_STEPS = (
    "m5ws looks for m5ws.session, and without it for calls of `step()` of optimizers of torch.optim, in the processes "
    "that it starts (not if `[run] observe` in m5ws.toml is false). A script that trains without them is tested by "
    "hand: kill a run, continue it with `m5ws resume RUN`, and compare its files with `m5ws reproduce RUN`."
)
_FRAMEWORKS = {"dcp/1": "PyTorch", "deepspeed/1": "DeepSpeed"}


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """A restore after step `resumed`, and the verdict on the steps after it.

    A script without a session was interrupted after step `after`, and resumed: after step 0 if it started from the
    beginning. `resumed` is None if the step is unknown.
    """

    after: int | None = None
    resumed: int | None
    verdict: Verdict


def training(snapshot: str, launch: LaunchSpec, steps: int) -> Run:
    """Return the uninterrupted training: `steps` steps, with a checkpoint and fingerprints after each."""
    dense = msgspec.structs.replace(launch, checkpoint_every=1, checkpoint_minutes=None, fingerprint_every=1)
    made = planning.new_run(snapshot, dense, name="certify")
    return msgspec.structs.replace(made, segment=Segment(first=0, last=steps))


def restores(repo: Repository, run_id: str, count: int | None, seed: int) -> list[Segment]:
    """Return the segments to restore: after every step but the last, or after `count` of them drawn by `seed`.

    Raises UsageError if the training recorded no step, or published no checkpoint before its last one.
    """
    done = history.load(repo, run_id)
    last = done.last_step
    if not last:
        raise UsageError(f"nothing to certify: m5ws recorded no training step of run {run_id}", hint=_WITHOUT_STEPS)
    labels = {checkpoints.step_of(label): label for label in checkpoints.valid(repo, run_id)}
    steps = sorted(step for step in labels if 0 < step < last)
    if not steps:
        raise UsageError(
            f"nothing to restore: run {run_id} has no checkpoint before its last step",
            hint="Train more than one step (`--steps`).",
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


def certificate(repo: Repository, run_id: str, results: Sequence[Restore]) -> Certificate:
    """Return the joint result of restores. One after which nothing was resumed decides only if there is no other."""
    interrupted = tuple(result.after for result in results if result.after is not None)
    made = Certificate(
        run=run_id,
        outcome="certified",
        what=_described_observed(repo, run_id) if interrupted else _described(repo, run_id),
        steps=history.load(repo, run_id).last_step,
        restored=tuple(result.resumed for result in results),
        interrupted=interrupted,
        verdicts=tuple(result.verdict for result in results),
    )
    bad = (outcome for outcome in map(find_outcome, made.tested) if outcome != "certified")
    return msgspec.structs.replace(made, outcome=next(bad, "certified"))


def _described(repo: Repository, run_id: str) -> dict[str, str]:
    """Return the facts of a certificate: framework, optimizer, number of ranks and versions."""
    label = checkpoints.valid(repo, run_id)[-1]
    content = repo.objects.get_record(checkpoints.find(repo, run_id, label)[1].content, Content)
    facts = {"framework": _FRAMEWORKS.get(content.format, content.format), "ranks": str(content.world)}
    plain = codec.decode_plain(repo.objects.read(content.common)) if content.common is not None else None
    backend = plain.get("backend") if isinstance(plain, dict) else None
    kind = backend.get("optimizer_kind") if isinstance(backend, dict) else None
    if kind:
        facts["optimizer"] = str(kind)
    observed = recorded.of_run(repo, run_id)
    known = {**observed.distributions, **observed.facts}
    return facts | {name: value for name in _VERSIONS if (value := known.get(name))}


def _described_observed(repo: Repository, run_id: str) -> dict[str, str]:
    """Return the facts of a certificate of a script without a session, as it was observed."""
    parts = {
        label: text
        for event in ledger.events(repo, run_id, 1, "0")
        if isinstance(event, Observation)
        for label, text in event.parts.items()
    }
    facts = {"ranks": str(history.load(repo, run_id).world)}
    facts |= {name: parts[name].partition(",")[0] for name in ("model", "optimizer") if name in parts}
    observed, used = recorded.of_run(repo, run_id), usage.of_run(repo, run_id)
    if used is not None:
        installed = {name: version for name in _OBSERVED if (version := observed.distributions.get(name))}
        facts |= {name: installed[name] for name in installed if usage.is_imported(name, (observed,), used)}
    return facts | {"torch": observed.facts.get("torch") or "unknown"}
