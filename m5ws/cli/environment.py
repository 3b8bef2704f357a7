"""The environment on the command line: the reaction to a difference, and the place where an attempt runs."""

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import click
import msgspec

from m5ws.cli.terminal import output
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.agent.attempt_plan import AttemptPlan
    from m5ws.agent.ports import Ports
    from m5ws.progress import Progress
    from m5ws.records.environment import Observed
    from m5ws.records.recipe import Recipe
    from m5ws.records.verdict import Change
    from m5ws.workspace import Workspace

Policy = Literal["fail", "warn", "ignore"]
_REBUILD = "rebuild"
_WIDTH = 44

policy_option = click.option(
    "--env",
    type=click.Choice(["fail", "warn", "ignore"]),
    multiple=True,
    metavar="[fail|warn|ignore]",
    help="Reaction to an environment that differs in a way that can change bits; default: fail.",
)
option = click.option(
    "--env",
    type=click.Choice(["fail", "warn", "ignore", _REBUILD]),
    multiple=True,
    metavar="[fail|warn|ignore|rebuild]",
    help="Reaction to an environment that differs in a way that can change bits; default: fail. rebuild: install the "
    "original environment again and run there; may be given with another value.",
)


def policy(given: Sequence[str]) -> Policy:
    """Return the reaction to drift. Raises UsageError if two are given."""
    policies = list(dict.fromkeys(value for value in given if value != _REBUILD))
    if len(policies) > 1:
        raise UsageError(
            f"--env {policies[0]} cannot be combined with --env {policies[1]}",
            hint="Only `--env rebuild` can be combined with another value.",
        )
    return cast(Policy, policies[0]) if policies else "fail"


def ports(workspace: "Workspace", given: "Ports", env: Sequence[str], run: str, snapshot: str | None) -> "Ports":
    """Return the ports for a replay of `run`: the given ports, or ports of a rebuilt environment with `--env rebuild`.

    Raises M5Error if the environment cannot be rebuilt, before the replay starts.
    """
    if _REBUILD not in env:
        return given
    from m5ws.cli.terminal.progress import Bar
    from m5ws.environment.rebuild import rebuild

    recipe = rebuild.recipe(given.repo, run, snapshot)
    with Bar() as bar:
        return made(workspace, given, recipe, bar, same_patch=policy(env) == "fail")


def made(
    workspace: "Workspace", given: "Ports", recipe: "Recipe", progress: "Progress", *, same_patch: bool = True
) -> "Ports":
    """Return the ports of a recipe's environment, which is built unless it exists. Raises M5Error."""
    from m5ws.environment.rebuild import rebuild

    write_code = partial(rebuild.write_code, given.repo, recipe, progress=progress)
    there = workspace.environments().build(recipe, write_code, progress, same_patch=same_patch)
    output.print_note(f"environment: rebuilt, {there.python}")
    return msgspec.structs.replace(
        given, python=there.python, environment=there.environment, launcher=there.launcher, observing=there.observing
    )


def check(
    given: "Ports", plan: "AttemptPlan", env: Sequence[str], observed: "Observed", others: "Mapping[str, Observed]"
) -> None:
    """Compare the environments of all nodes before an attempt begins. Raises EnvironmentDiffers with `--env fail`."""
    from m5ws.attempts import environment_check

    wanted = policy(env)
    changes = environment_check.differences(given, plan, observed, others) if wanted != "ignore" else ()
    if changes:
        output.print_note("environment: differs from the environment that the run requires")
        output.print_note(_table(changes, "required"))
    if wanted == "fail":
        environment_check.refuse(changes, is_new=plan.attempt == 1)


def announce(drifted: "tuple[Change, ...]") -> None:
    """Print the differences of the pinned and the observed environment side by side, on stderr.

    Changes of files that the original read are announced on their own.
    """
    if not drifted:
        output.print_note("environment: the same as at the start of the original run")
        return
    if all(change.part == "read" for change in drifted):
        output.print_note("files outside the snapshot: changed since the original run read them")
    else:
        output.print_note("environment: drifted since the start of the original run")
    output.print_note(_table(drifted, "original"))


def _table(drifted: "tuple[Change, ...]", old: str) -> str:
    from m5ws.wording.changes import effect, values

    rows = [
        (
            change.name,
            *(output.cut(value, _WIDTH) for value in values(change, _WIDTH)),
            effect(change.rating),
            change.detail or "",
        )
        for change in drifted
        if change.rating != "cannot"
    ]
    lines = [output.table(("", old, "here", "effect", ""), rows)] if rows else []
    if harmless := len(drifted) - len(rows):
        lines.append(f"{harmless} differences that cannot change bits")
    return textwrap.indent("\n".join(lines), "  ")
