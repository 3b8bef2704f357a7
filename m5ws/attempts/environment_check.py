"""Comparison of the observed environment with the required environment, before an attempt begins.

Every run requires the versions that its snapshot declares. A resumed run also requires the environment of the attempt
that it continues. `reproduce` compares by the same rules.
"""

from collections.abc import Mapping

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.environment import drift, reads, recorded, usage
from m5ws.errors import M5Error
from m5ws.records.environment import Observed
from m5ws.records.verdict import Change
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, snapshots
from m5ws.repository.repository import Repository
from m5ws.wording.changes import title
from m5ws.wording.lists import list_names

_NAMED = 5


class EnvironmentDiffers(M5Error):
    """The environment differs from the start of its run, or from the declaration of its snapshot."""

    hint = "`--env warn` continues anyway; `m5ws resume RUN --env rebuild` rebuilds the environment of the run."


_FIRST = (
    "`--env warn` continues anyway. Install the declared versions, in the image if [environment] image declares one."
)
"""Hint for a new run, which has no environment yet that could be rebuilt."""


def differences(
    ports: Ports, plan: AttemptPlan, observed: Observed, others: Mapping[str, Observed]
) -> tuple[Change, ...]:
    """Return all differences, the most serious first. Distributions that no rank loaded count as harmless.

    A first attempt without declared versions has no required environment. Files that earlier attempts read are
    compared too. `others` has the environments of other nodes by their names; all nodes must be alike.
    """
    unmet = drift.unmet(snapshots.load(ports.repo, plan.run.snapshot).declared, observed)
    unmet = (*unmet, *between_nodes(observed, others))
    if plan.attempt == 1:
        return unmet
    read = reads.changes_since(ports.repo, plan.run.id)
    if (continued := _continued(ports.repo, plan)) is None:
        return (*unmet, *read)
    pinned = usage.EnvironmentSide(
        observed=recorded.of_attempt(ports.repo, plan.run.id, continued),
        usage=usage.of_attempt(ports.repo, plan.run.id, continued),
    )
    return (*unmet, *usage.before_launch(pinned, observed), *read)


def between_nodes(observed: Observed, others: Mapping[str, Observed]) -> tuple[Change, ...]:
    """Return the differences of other nodes' environments, by their names, from the leader's."""
    return tuple(_on(name, change) for name, other in others.items() for change in drift.drift(observed, other))


def refuse(changes: tuple[Change, ...], *, is_new: bool) -> None:
    """Raise EnvironmentDiffers for a difference that can change bits; `is_new`: the run has no attempt yet."""
    if grave := [title(change) for change in changes if change.rating != "cannot"]:
        raise EnvironmentDiffers(
            f"the environment differs: {list_names(grave, '; ', _NAMED)}",
            hint=_FIRST if is_new else EnvironmentDiffers.hint,
        )


def _on(node: str, change: Change) -> Change:
    return msgspec.structs.replace(change, name=f"{change.name} on {node}")


def _continued(repo: Repository, plan: AttemptPlan) -> int | None:
    """Return the attempt that a resume continues: the attempt of its checkpoint, or the last with an environment.

    An attempt that was killed at its start has none. None if all attempts were.
    """
    if plan.resume is not None and plan.context.parent is None:
        return checkpoints.attempt_of(plan.resume)
    earlier = range(plan.attempt - 1, 0, -1)
    return next(
        (number for number in earlier if any(True for _ in ledger.node_starts(repo, plan.run.id, number))), None
    )
