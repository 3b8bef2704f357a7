"""`m5ws checkpoint export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.checkpoints.export.export import ExportRecord


@click.command("export")
@click.argument("checkpoint", metavar="CHECKPOINT", type=names.Id(("run",)))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["safetensors", "hf"]), required=True, help="Format of the files.")
@click.option(
    "--tensors",
    "what",
    type=click.Choice(["weights", "all"]),
    default="weights",
    show_default=True,
    help="weights: parameters and buffers; all: also optimizer state.",
)
@click.option("--dry-run", is_flag=True, help="List the files and the state that is left out; write nothing.")
@output.json_command
def command(
    context: click.Context, checkpoint: str, directory: Path, form: str, what: str, dry_run: bool, as_json: bool
) -> None:
    """Write a checkpoint as files of other tools.

    CHECKPOINT is RUN@STEP, or RUN for its newest. DIRECTORY must be empty or missing. It is written completely or not
    at all. Every byte is verified. State that a format cannot hold, such as random number generators, is listed.

    \b
    safetensors  one file, or several of at most 5 GB with an index
    hf           for from_pretrained: safetensors with the model's own names, config.json and tokenizer

    \b
    Example:
      m5ws checkpoint export 7c1d@20000 --format hf /tmp/model
    """
    from m5ws import fresh_directory, workspace
    from m5ws.checkpoints import resolve
    from m5ws.checkpoints.export import export

    repo = names.workspace(context).repository()
    fresh_directory.check(directory)
    which = resolve.resolve(repo, checkpoint, counting=False)
    plan = export.plan(repo, which, cast(Any, form), cast(Any, what), workspace.export_tools())
    if not dry_run:
        with progress.Bar() as bar:
            export.apply(repo, plan, directory, bar)
    if as_json:
        result = cast(dict[str, object], output.plain(plan.planned))
        return output.print_json({**result, "directory": directory.absolute(), "written": not dry_run})
    output.echo(_text(plan.planned, directory, dry_run))
    return None


def _text(planned: "ExportRecord", directory: Path, dry_run: bool) -> str:
    verb = "would be written" if dry_run else "written"
    content = f"{planned.tensors:,} tensors, {output.size(planned.size_bytes)}, of {planned.run}@{planned.step}"
    lines = [f"{content} {verb} to {directory}"]
    if dry_run:
        lines += [f"  {name}{'' if size is None else f'  {output.size(size)}'}" for name, size in planned.files.items()]
    if planned.left_out:
        lines += ["left out:", *(f"  {line}" for line in planned.left_out)]
    return "\n".join(lines)
