"""The environment on the command line: what a difference in it does, and where an attempt runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import click
import msgspec

from m5ws.cli.terminal import output
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.progress import Progress
    from m5ws.records.recipe import Recipe
    from m5ws.records.verdict import Change
    from m5ws.runs.run import Plan
    from m5ws.runs.supervise import Ports
    from m5ws.workspace import Workspace

Policy = Literal["fail", "warn", "ignore"]
_REBUILD = "rebuild"
_WIDTH = 44

option = click.option(
    "--env",
    type=click.Choice(["fail", "warn", "ignore", _REBUILD]),
    multiple=True,
    metavar="[fail|warn|ignore|rebuild]",
    help="Reaction to an environment that differs and can change bits; the default is fail. rebuild: install the "
    "original environment again and run there; can be combined with another value.",
)


def policy(given: Sequence[str]) -> Policy:
    """Return what drift does. Raises UsageError for two answers."""
    said = list(dict.fromkeys(one for one in given if one != _REBUILD))
    if len(said) > 1:
        raise UsageError(
            f"--env {said[0]} and --env {said[1]} say different things", hint="`--env rebuild` goes with one of them."
        )
    return cast(Policy, said[0]) if said else "fail"


def ports(here: "Workspace", given: "Ports", said: Sequence[str], run: str, snapshot: str | None) -> "Ports":
    """Return the outside for a replay of `run`: as it is, or with `--env rebuild` an environment made again.

    Raises M5Error for what cannot be made again, before anything is spent.
    """
    if _REBUILD not in said:
        return given
    from m5ws.cli.terminal.progress import Bar
    from m5ws.environment.rebuild import rebuild

    recipe = rebuild.recipe(given.repo, run, snapshot)
    if recipe.image is not None and here.inside(recipe.image):
        output.note(f"environment: this is a container of {recipe.image} already")
        return given
    with Bar() as bar:
        return made(here, given, recipe, bar, same_patch=policy(said) == "fail")


def made(
    here: "Workspace", given: "Ports", recipe: "Recipe", progress: "Progress", *, same_patch: bool = True
) -> "Ports":
    """Return the outside of runs in the environment of a recipe, which is made unless it is there. Raises M5Error."""
    from m5ws.environment.rebuild import rebuild

    there = here.environments(containers=recipe.image is not None).build(
        recipe, rebuild.code_writer(given.repo, recipe, progress), progress, same_patch=same_patch
    )
    output.note(f"environment: made again, {recipe.image or there.python}")
    return msgspec.structs.replace(
        given, python=there.python, environment=there.environment, launcher=there.launcher, observer=there.observer
    )


def check(given: "Ports", plan: "Plan", said: Sequence[str]) -> None:
    """Compare the environment before the launch of an attempt. Raises EnvironmentDiffers with `--env fail`."""
    from m5ws.runs import environment_check

    wanted = policy(said)
    found = environment_check.differences(given, plan) if wanted != "ignore" else ()
    if found:
        output.note("environment: differs from the one that the run needs")
        output.note(_table(found, "wanted"))
    if wanted == "fail":
        environment_check.refuse(found)


def announce(drifted: "tuple[Change, ...]") -> None:
    """Print the pinned and the observed environment side by side where they differ, on stderr."""
    if not drifted:
        output.note("environment: the same as when the original began")
        return
    output.note("environment: drifted since the original began")
    output.note(_table(drifted, "original"))


def _table(drifted: "tuple[Change, ...]", old: str) -> str:
    from m5ws.environment import drift

    rows = [
        (change.name, _value(change.old), _value(change.new), drift.says(change.rating), change.detail or "")
        for change in drifted
    ]
    return _indented(output.table(("", old, "here", "what it can do", ""), rows))


def _value(value: str | None) -> str:
    if value is None:
        return "absent"
    return value if len(value) <= _WIDTH else f"{value[: _WIDTH - 1]}…"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
