"""The cause of a failed attempt, from its logs and the failures that its ranks recorded."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from m5ws.errors import NotFound
from m5ws.logs import reading
from m5ws.records.cause import Cause, Rule
from m5ws.records.failure import EndReason
from m5ws.records.ledger import NODE, RankEnded, Stacks, Step
from m5ws.records.stacks import NodeEvidence, RankStack
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository
from m5ws.supervision import causes, clocks, evidence
from m5ws.supervision.progress import EXIT

_LAST_BATCHES = 3
_SIGNALS = frozenset(signal.Signals)
_OF_SHELL = 128
"""The status of a shell whose last command was killed by a signal is the number of the signal and this number."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a failed attempt; None if it is unknown. `host` is the machine of the cause's rank, if known.

    `stacks` has the stacks of all ranks of an attempt that ended as stuck, and `nodes` the evidence about its nodes.
    """

    cause: Cause | None
    host: str | None = None
    stacks: tuple[RankStack, ...] = ()
    nodes: tuple[NodeEvidence, ...] = ()


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Records at the end of an attempt: failures of ranks, the nodes of ranks, and the hosts of nodes.

    `dead` has the statuses of ranks that recorded no failure, negative for a signal. `ended_s` has the times of
    failures by rank, all by the clock of the first rank's node.
    """

    failures: dict[int, RankEnded]
    dead: dict[str, int]
    ended_s: dict[str, float]
    nodes: dict[int, int]
    hosts: dict[int, str]

    def host_of(self, log: str) -> str | None:
        """Return the machine of a log: of a rank, or of the launcher of a node."""
        if log.isdigit():
            return self.hosts.get(self.nodes.get(int(log), -1))
        return self.hosts.get(int(log.partition("-")[2] or 0))


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of all logs of an attempt by name, and its records. Secrets are not masked."""

    ends: dict[str, reading.LogEnd]
    recorded: Recorded

    @property
    def lines(self) -> dict[str, list[str]]:
        """The last lines of each log. A rank without a log has the text of its recorded failure.

        After the lines of a rank that a signal killed, or its shell, comes a line with the signal, as torchrun
        writes it.
        """
        lines = {
            str(rank): f"{ended.failure.type}: {ended.failure.text}".split("\n")
            for rank, ended in self.recorded.failures.items()
            if ended.failure is not None and ended.failure.type is not None
        }
        lines |= {name: list(end.lines) for name, end in self.ends.items()}
        for rank, status in self.recorded.dead.items():
            if (number := -status if status < 0 else status - _OF_SHELL) in _SIGNALS:
                lines.setdefault(rank, []).append(f"Signal {number} ({signal.Signals(number).name})")
        return lines

    def find(self, rules: Mapping[str, Rule]) -> Cause | None:
        """Return the cause by `rules`; None if it is unknown. Raises ConfigError for a pattern that cannot be used."""
        cause = causes.Classifier(rules).find(self.lines, self.recorded.ended_s)
        if cause is None:
            return None
        end = self.ends.get(cause.rank)
        is_logged = end is not None and cause.line <= len(end.lines)
        return msgspec.structs.replace(cause, line=cause.line + end.lines_before if end and is_logged else 0)


def collect(repo: Repository, run: str, attempt: int, folder: Path) -> Evidence:
    """Return the evidence of an attempt. Its logs are in `folder` and in the store.

    Raises NotFound without logs, CorruptObject, Misplaced.
    """
    ends = reading.Source(repo, run, attempt, folder).ends(causes.END_LINES)
    if not ends and not folder.is_dir():
        raise NotFound(
            f"run {run} has no logs of attempt {attempt} on this machine, and none in the store",
            hint="The store has new lines after 10 seconds to a minute.",
        )
    return Evidence(ends=ends, recorded=_recorded(repo, run, attempt))


def diagnose(repo: Repository, run: str, attempt: int, folder: Path, rules: Mapping[str, Rule]) -> Diagnosis:
    """Return the cause of a failed attempt by `rules`. Its logs are in `folder` and in the store.

    A stuck attempt has the cause of a rank whose script had failed before: its process had not ended.
    Raises ConfigError for a pattern that cannot be used, and as `collect`.
    """
    end = ledger.ended(repo, run, attempt)
    reason = end.reason if end is not None else None
    ranks, nodes = _evidence(repo, run, attempt) if reason is not None and reason.kind == "stuck" else ((), ())
    recorded = _recorded(repo, run, attempt)
    has_failed = any(each.phase == EXIT and each.rank in recorded.failures for each in ranks)
    if reason is not None and reason.kind in ("stuck", "loss") and not has_failed:
        typed = _describe_end(reason, rules[reason.kind], nodes)
        return Diagnosis(cause=typed, host=reason.host, stacks=ranks, nodes=nodes)
    cause = collect(repo, run, attempt, folder).find(rules)
    host = None if cause is None else recorded.host_of(cause.rank)
    return Diagnosis(cause=cause, host=host, stacks=ranks, nodes=nodes)


def _describe_end(reason: EndReason, rule: Rule, nodes: Sequence[NodeEvidence]) -> Cause:
    """Return the cause of an attempt that its leader ended, because a rank made no progress, or by the loss."""
    return Cause(
        kind=reason.kind,
        **causes.shared(rule),
        rank="" if reason.rank is None else str(reason.rank),
        line=0,
        evidence=(*(reason.problem or "").split("; "), *evidence.describe(nodes)),
        others={},
        place=reason.place,
    )


def _evidence(repo: Repository, run: str, attempt: int) -> tuple[tuple[RankStack, ...], tuple[NodeEvidence, ...]]:
    """Return the evidence about ranks and nodes that the leader of a stuck attempt recorded before its end."""
    for batch in ledger.backwards(repo, run, attempt, 0):
        for origin, event in ledger.decode(batch):
            if origin == NODE and isinstance(event, Stacks):
                return event.ranks, event.nodes
    return (), ()


def _recorded(repo: Repository, run: str, attempt: int) -> Recorded:
    """Return the records in the last batches of all nodes, back to a step: a process can outlive its script."""
    failures, nodes, steps = dict[int, RankEnded](), dict[int, int](), dict[int, dict[int, float]]()
    for node in ledger.nodes(repo, run, attempt):
        for number, batch in enumerate(ledger.backwards(repo, run, attempt, node)):
            if number >= _LAST_BATCHES and any(nodes[rank] == node for rank in steps):
                break
            for origin, event in ledger.decode(batch):
                if not origin.isdigit():
                    continue
                nodes[int(origin)] = node
                if isinstance(event, Step):
                    steps.setdefault(int(origin), {})[event.step] = event.time_s
                elif isinstance(event, RankEnded) and event.failure is not None:
                    failures[int(origin)] = event
    ahead_s = clocks.offsets_s(steps, nodes)
    ended_s = {str(rank): ended.time_s - ahead_s.get(nodes[rank], 0.0) for rank, ended in failures.items()}
    hosts = {start.node: start.host for start in ledger.node_starts(repo, run, attempt)}
    end = ledger.ended(repo, run, attempt)
    dead = end.reason.dead if end is not None and end.reason is not None else {}
    return Recorded(failures=failures, dead=dead, ended_s=ended_s, nodes=nodes, hosts=hosts)
