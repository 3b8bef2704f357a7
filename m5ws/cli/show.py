"""`m5ws show`."""

from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli import outputs
from m5ws.cli.parameters import names
from m5ws.cli.terminal import data, output, progress, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from m5ws.records.environment import Observed
    from m5ws.records.job import Cancel, Job
    from m5ws.records.note import Note
    from m5ws.records.run import Parent
    from m5ws.records.verdict import Change
    from m5ws.runs.listing import RunRow, RunView, SnapshotView
    from m5ws.runs.state import AttemptState, RunState
    from m5ws.workspace import Workspace


@click.command("show")
@click.argument("name", metavar="ID", type=names.Id(("snapshot", "run", "sweep")))
@click.option("--environment", is_flag=True, help="Print the observed environment, with all distributions.")
@click.option("--lock", type=click.Choice(["conda", "pip"]), help="Print the packages at a run's start as a lock file.")
@output.json_command
def command(context: click.Context, name: str, environment: bool, lock: str | None, as_json: bool) -> None:
    """Show a snapshot, a run or a sweep.

    For a snapshot: its parts with digests and sizes, its commit and its messages. For a run: its state, attempts,
    checkpoints, output files and verdicts, and the run or checkpoint that it started from. For a sweep: its values, and
    the state of each of its runs.

    \b
    Example:
      m5ws show 1f3a9c
    """
    from m5ws.agent import untracked
    from m5ws.outputs import kept_work
    from m5ws.repository.references import ids as refs
    from m5ws.repository.references import jobs
    from m5ws.runs import listing

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    kind, record_id = refs.resolve(repo, name, ("snapshot", "run", "sweep"))
    if lock is not None:
        from m5ws.environment.rebuild import rebuild

        return output.echo(rebuild.lock(repo, names.find_id(repo, name, "run"), lock))
    if kind == "sweep":
        from m5ws.cli import sweep_runs

        return sweep_runs.show(repo, record_id, as_json=as_json)
    with progress.Bar() as bar:
        bar(f"reading the records of the {kind}", 0, 0)
        view = listing.view_run(repo, record_id) if kind == "run" else listing.view_snapshot(repo, record_id)
    if isinstance(view, listing.RunView):
        view = msgspec.structs.replace(view, kept=kept_work.find(workspace.home, workspace.kept, record_id))
        submitted = jobs.of_run(repo, record_id) if workspace.settings.clusters else []
        newest = next((job for job in reversed(submitted) if not job.command), None)
        view = msgspec.structs.replace(
            view,
            jobs=tuple(msgspec.structs.replace(job, settings="") for job in submitted),
            cancel=jobs.cancel_of_job(repo, newest) if newest is not None else None,
        )
    if as_json:
        return output.print_json(view)
    output.echo(_run(view) if isinstance(view, listing.RunView) else _snapshot(view))
    if isinstance(view, listing.RunView) and newest is not None:
        output.echo(f"\n{_job(workspace, newest, view.cancel)}")
    if view.observed is not None:
        output.echo("\n" + _environment(view.observed, whole=environment))
    if record_id in untracked.waiting(workspace.home) and (tracker := workspace.tracker()) is not None:
        output.print_note(
            f"MLflow lacks records of the run. They are delivered in the background, or by {tracker.remedy}."
        )
    return None


def _snapshot(view: "SnapshotView") -> str:
    code, tokenizer = view.snapshot.code, view.snapshot.tokenizer
    state = "with changes" if code.dirty else "clean"
    lines = [f"snapshot {view.id}"]
    lines.append(output.fields({"commit": f"{code.commit} ({state})" if code.commit else "none"}, "  "))
    for annotation in view.annotations:
        fields = {
            "when": output.moment(annotation.created_s),
            "author": annotation.author,
            "message": annotation.message,
            "branch": annotation.branch,
            "remote": annotation.remote,
            "from": annotation.derived_from,
            "set": ", ".join(annotation.overrides) or None,
        }
        lines += ["", output.fields(fields, "  "), *(f"  note: {note}" for note in annotation.notes)]
    rows = [(part.name, output.short(part.tree), str(part.files), output.size(part.size_bytes)) for part in view.parts]
    rows += [
        (
            f"data:{each.name}",
            output.short(each.manifest),
            str(each.files),
            f"{output.size(each.size_bytes)} in its remote",
        )
        for each in view.snapshot.remote
    ]
    lines += ["", output.table(("PART", "TREE", "FILES", "SIZE"), rows)]
    pinned = {dataset.name: f"{dataset.kind} {dataset.hash}" for dataset in view.snapshot.datasets if dataset.hash}
    pinned |= {each.name: " ".join(filter(None, (each.kind, each.hash, each.url))) for each in view.snapshot.remote}
    if pinned:
        lines += ["", output.fields(pinned)]
    if tokenizer is not None:
        ids = " ".join(map(str, tokenizer.probe_ids[:16])) + " …" if tokenizer.probe_ids else "not recorded"
        lines += ["", output.fields({"tokenizer probe": ids})]
    declared = view.snapshot.declared
    wanted = {f"lock {name}": output.short(digest) for name, digest in declared.locks.items()}
    wanted |= {f"wanted {name}": value for name, value in declared.wanted.items()}
    if declared.image:
        wanted["image"] = declared.image
    if wanted:
        lines += ["", "declared:", output.fields(wanted, "  ")]
    if view.runs:
        lines += ["", f"runs: {', '.join(view.runs)}"]
    return "\n".join(lines)


def _run(view: "RunView") -> str:
    from m5ws.outputs import kept_work
    from m5ws.repository.references import lineage

    run, spec, state, gone = view.run, view.run.spec, view.state, view.removal
    total = f" of {state.total_steps}" if state.total_steps else ""
    creator = " on ".join(filter(None, (run.user, run.host)))
    fields = {
        "name": run.name,
        "removed": " by ".join(filter(None, (output.moment(gone.created_s), gone.author))) if gone else None,
        "state": f"{view.standing}, step {state.last_step}{total}{_inexact(state)}",
        "snapshot": run.snapshot,
        "commit": view.commit,
        "reproduces": run.reproduces,
        "sweep": run.sweep.id if run.sweep else None,
        "starts": lineage.format_lineage(view.lineage, view.lineage_whole),
        "restarted": ", ".join(run.parent.restart) or None if run.parent else None,
        "created": " by ".join(filter(None, (output.moment(run.created_s), creator))),
        "command": " ".join(spec.command),
        "launch": spec.processes,
        "seed": str(spec.seed) if spec.seed is not None else None,
    }
    lines = [f"run {run.id}", output.fields(fields, "  ")]
    if view.notes:
        lines += ["", "notes:", *map(_note, view.notes)]
    for attempt in state.attempts:
        lines += [
            "",
            *_attempt(attempt, run.parent),
            *_cause(view, attempt.attempt),
            *_differences(view.environments.get(attempt.attempt, ())),
        ]
    if view.checkpoints:
        rows = [(row.name, str(row.step), output.short(row.content)) for row in view.checkpoints]
        lines += ["", output.table(("CHECKPOINT", "STEP", "CONTENT"), rows)]
    if view.outputs:
        lines += ["", outputs.table(view.outputs)]
    for work in view.kept:
        lines += ["", f"kept on this machine: {kept_work.describe(work)}"]
        lines += [f"  `m5ws fork {run.id}` starts a new run from the checkpoint"] if work.checkpoints else []
        lines.append(f"  `m5ws rm {run.id} --drop` deletes it")
    if view.verdict is not None:
        lines += ["", verdict.format_verdict(view.verdict)]
    if view.joint is not None:
        lines += ["", verdict.format_joint(view.joint)]
    if view.replays:
        rows = [(row.id, output.moment(row.created_s), _found(row)) for row in view.replays]
        lines += ["", output.table(("REPLAYED BY", "WHEN", "VERDICT"), rows)]
    if view.forks:
        lines += ["", output.table(("FORK", "AFTER STEP", "WHEN", "STATE", "NAME"), [_fork(row) for row in view.forks])]
    return "\n".join(lines)


def _job(workspace: "Workspace", job: "Job", cancel: "Cancel | None") -> str:
    """Return the lines of a run's newest job, with its state if the engine answers."""
    from m5ws.engines import submission
    from m5ws.engines.interface import EngineUnavailable

    try:
        found = submission.engine_of_job(workspace.settings, job).state(job.name)
        since = f" since {output.moment(job.created_s)}" if found.standing == "queued" else ""
        reason = f", because {found.reason}" if found.reason else ""
        text = f": {found.text}" if found.text.lower() != found.standing else ""
        state = f"{found.standing}{since}{text}{reason}"
    except EngineUnavailable as error:
        state = f"unknown, because {job.cluster} does not answer here: {error}"
    fields = {"cluster": f"{job.cluster} ({job.engine})", "nodes": str(job.nodes), "state": state}
    fields |= {"submitted": " by ".join(filter(None, (output.moment(job.created_s), job.user)))}
    if cancel is not None:
        why = f": {cancel.problem}" if cancel.problem else ""
        fields["cancelled"] = f"{output.moment(cancel.created_s)} from {cancel.host or 'another machine'}{why}"
    return "\n".join([f"job {job.name}", output.fields(fields, "  ")])


def _inexact(state: "RunState") -> str:
    """Return a mark of the first resume that repeated a step with other values."""
    steps = [str(notice.step) for notice in state.notices if notice.kind == "inexact-resume"]
    return f", after an inexact resume (step {steps[0]})" if steps else ""


def _note(note: "Note") -> str:
    head = " ".join(part for part in (output.moment(note.created_s), note.author) if part)
    kind = "why: " if note.kind == "why" else ""
    outcome = f" [{note.outcome}]" if note.outcome else ""
    return f"  {head}: {kind}{note.text}{outcome}"


def _found(row: "RunRow") -> str:
    again = f" (rechecks {row.rechecks})" if row.rechecks else f" (explains {row.explains})" if row.explains else ""
    return f"{row.outcome or row.standing}{again}"


def _fork(row: "RunRow") -> tuple[str, ...]:
    after = str(row.parent.step) if row.parent is not None else "-"
    return row.id, after, output.moment(row.created_s), row.standing, row.name or ""


def _attempt(attempt: "AttemptState", parent: "Parent | None") -> list[str]:
    from m5ws.wording.failures import describe_end, describe_failure

    took, end_s = (" after", attempt.ended_s) if attempt.ended_s else (", last event after", attempt.last_s)
    took = f"{took} {output.duration(end_s - attempt.started_s)}" if end_s and attempt.started_s else ""
    lines = [f"attempt {attempt.attempt}: {attempt.standing}{took}, step {attempt.last_step}"]
    fields = {
        "when": output.moment(attempt.started_s),
        "host": attempt.host,
        "resumed from": _resumed_from(attempt, parent),
        "last": ", ".join(f"{name} {output.number(value)}" for name, value in attempt.quantities.items()) or None,
        "crossed": data.describe_moved(attempt.moved),
        "status": str(attempt.exit_code) if attempt.exit_code else None,
        "why": describe_end(attempt.reason) if attempt.reason is not None else None,
    }
    lines.append(output.fields(fields, "  "))
    lines += [f"  rank {rank}: {describe_failure(failure)}" for rank, failure in attempt.rank_failures.items()]
    for notice in attempt.notices:
        where = f" at step {notice.step}" if notice.step is not None else ""
        lines.append(f"  {notice.kind}{where}: {notice.message}")
    return lines


def _cause(view: "RunView", attempt: int) -> list[str]:
    """Return the cause of the newest failed attempt, with earlier failures of its kind; nothing for other attempts."""
    from m5ws.wording.incidents import describe_advice, describe_cause

    if (incident := view.incident) is None or incident.attempt != attempt:
        return []
    advice = [describe_advice(incident.cause)] if incident.cause is not None else []
    return [f"  cause: {describe_cause(incident)}", *(f"    {line}" for line in (*advice, *incident.memory))]


def _differences(changes: "Sequence[Change]") -> list[str]:
    """Return differences between environments of the first and a later attempt. Harmless differences are counted."""
    from m5ws.wording.changes import describe

    if not changes:
        return []
    lines = [describe(change, with_part=False) for change in changes if change.rating != "cannot"]
    if harmless := len(changes) - len(lines):
        lines.append(f"{harmless} differences that cannot change bits")
    return ["  environment, compared with the first attempt:", *(f"    {line}" for line in lines)]


def _resumed_from(attempt: "AttemptState", parent: "Parent | None") -> str | None:
    """Return the checkpoint that an attempt started from. A fork's first one belongs to its parent."""
    if parent is not None and attempt.resume == parent.checkpoint:
        return f"{attempt.resume} of run {parent.run}"
    return attempt.resume


def _environment(observed: "Observed", *, whole: bool) -> str:
    if not whole:
        counted = f"{len(observed.facts)} facts, {len(observed.distributions)} distributions"
        return f"observed environment: {counted} (--environment prints them)"
    present = {name: value for name, value in sorted(observed.facts.items()) if value is not None}
    absent = ", ".join(name for name, value in sorted(observed.facts.items()) if value is None)
    lines = ["observed environment:", output.fields(present, "  "), *([f"  absent: {absent}"] if absent else [])]
    return "\n".join([*lines, "", output.fields(dict(sorted(observed.distributions.items())), "  ")])
