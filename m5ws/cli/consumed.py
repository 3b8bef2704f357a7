"""`m5ws consumed`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.errors import UsageError
from m5ws.wording import lists

if TYPE_CHECKING:
    from m5ws.runs.consumed import Consumption

_ABSENT = 1


@click.command("consumed")
@click.argument("run", type=names.Id(("run",)), required=False)
@click.option(
    "--sample", type=names.Text(), metavar="ID", help="Sample: PATH#ROW, or an id in the batches of the script."
)
@click.option("--file", type=names.Text(), metavar="PATH", help="File, folder or dataset of the workspace.")
@click.option("--match", type=names.Text(), metavar="DIGEST", help="Digest of a file's content, or of a batch.")
@click.option("--everywhere", type=names.Text(), metavar="PATH", help="List all runs that consumed samples of PATH.")
@output.json_command
def command(
    context: click.Context,
    run: str | None,
    sample: str | None,
    file: str | None,
    match: str | None,
    everywhere: str | None,
    as_json: bool,
) -> int:
    """List the steps and runs that consumed a sample or a file.

    The steps that lead to the weights of RUN are searched, also the steps of a fork's parent up to the fork. A loader
    of `m5ws.data` records samples, and so does a batch with `sample_ids`. Steps without samples are listed as unknown.

    With `--everywhere`, each run is listed with its last checkpoint before the first such step, and the command that
    forks there without PATH.

    Exit status: 0 consumed, 1 not consumed, or not known, 3 no such path or content.

    \b
    Examples:
      m5ws consumed 7c1d --file data/web/part-7.jsonl
      m5ws consumed 7c1d --sample data/web/part-7.jsonl#12
      m5ws consumed --everywhere data/web/part-7.jsonl
    """
    from m5ws.runs import consumed

    if (run is None) == (everywhere is None):
        raise UsageError("give a run, or --everywhere PATH", hint="m5ws consumed RUN --file PATH lists steps of a run.")
    if everywhere is not None:
        if sample or file or match:
            raise UsageError("--everywhere cannot be combined with --sample, --file and --match")
        return _everywhere(context, everywhere, as_json)
    query = consumed.query(sample, file, match)
    repo = names.workspace(context).open_repository()
    found = consumed.find(repo, names.find_id(repo, run or "", "run"), query)
    if not found.unknown:
        consumed.refuse_unknown([found], query)
    if as_json:
        output.print_json(found)
    else:
        output.echo(*_steps(found))
    return 0 if found.steps else _ABSENT


def _everywhere(context: click.Context, path: str, as_json: bool) -> int:
    from m5ws.runs import consumed

    query = consumed.query(None, path, None)
    assert query.file is not None
    repo = names.workspace(context).open_repository()
    every = [*consumed.everywhere(repo, query)]
    consumed.refuse_unknown(every, query)
    seen = [found for found in every if found.steps]
    unknown = [found for found in every if found.unknown and not found.steps]
    if as_json:
        output.print_json(
            {
                "consumed": [
                    {**msgspec.structs.asdict(found), "command": consumed.command(found, query.file)} for found in seen
                ],
                "not_consumed": [found.run for found in every if not found.steps and not found.unknown],
                "unknown": [{"run": found.run, "why": found.unknown} for found in unknown],
            }
        )
        return 0 if seen else _ABSENT
    for found in seen:
        output.echo((output.StyledText(f"run {found.run}", bold=True),), *(f"  {line}" for line in _steps(found)))
        names_seen = ", ".join(found.seen_by) or "none"
        output.echo(f"  checkpoints that consumed samples of it: {names_seen}")
        fork = consumed.command(found, query.file)
        output.echo(f"  without it: {fork}" if fork else "  no checkpoint without it")
    for found in unknown:
        output.echo(f"run {found.run}: not known", *(f"  {line}" for line in found.unknown))
    others = len(every) - len(seen) - len(unknown)
    output.print_note(
        f"{lists.count(others, 'other run')} consumed no sample of {query.file} from the loader of the session"
    )
    return 0 if seen else _ABSENT


def _steps(found: "Consumption") -> Iterator[str]:
    for each in found.steps:
        steps = f"step {each.first}" if each.first == each.last else f"steps {each.first}-{each.last}"
        of = f" of run {each.run}" if each.run != found.run else ""
        epoch = f", epoch {each.epoch}" if each.epoch is not None else ""
        yield f"{steps}{of}: {each.source}{epoch}, {lists.count(each.samples, 'sample')}"
    if not found.steps and not found.unknown:
        yield "no step consumed it from the loader of the session"
    yield from (f"not known: {line}" for line in found.unknown)
