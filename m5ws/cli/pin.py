"""`m5ws pin`."""

import difflib

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.errors import UsageError


@click.command("pin")
@click.argument("run", required=False, type=names.Id(("run",)))
@click.option("--image", metavar="NAME", type=names.Text(), help="Pin the image NAME by the digest that it has now.")
@click.option("--dry-run", is_flag=True, help="Print the change; write nothing.")
@output.json_command
def command(context: click.Context, run: str | None, image: str | None, dry_run: bool, as_json: bool) -> None:
    """Write the versions and the image of a run into m5ws.toml.

    The versions of python, torch, cuda, cudnn, nccl, libfabric, ofi-nccl, efa and driver that RUN recorded become
    [environment] wanted, also of names that are there already. The image becomes [environment] image if the container
    engine or the runtime stated its digest. All other lines of m5ws.toml stay the same.

    --image asks the container engine for the digest of a tag, once. If NAME has moved since, both digests are printed.

    \b
    Examples:
      m5ws pin 7c1d --dry-run
      m5ws pin --image registry.example.org/train:v2
    """
    from m5ws.config import toml_edit
    from m5ws.projects import pin
    from m5ws.workspace import FILE

    if run is None and image is None:
        raise UsageError("no RUN and no --image", hint="Give the run whose environment is pinned, or an image.")
    workspace = names.workspace(context)
    settings, pins = workspace.settings.environment, pin.Pins()
    if run is not None:
        repo = workspace.open_repository()
        pins = pin.of_run(repo, names.find_id(repo, run, "run"), settings.wanted)
    if image is not None:
        pins = pin.with_image(pins, workspace.environment, image, settings.image)
    old = (workspace.root / FILE).read_bytes().decode()
    new = pin.edited(old, pins)
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), FILE, FILE, lineterm=""))
    if new != old and not dry_run:
        toml_edit.write(workspace.root / FILE, new)
    if as_json:
        return output.print_json({"pins": pins, "diff": lines, "dry_run": dry_run})
    for note in pins.notes:
        output.warn(note)
    return output.echo(*lines) if lines else output.print_note(f"{FILE} has these pins already")
