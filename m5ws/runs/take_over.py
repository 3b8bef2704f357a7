"""Takes over settings of a launcher on the command line, and the shell's PYTHONPATH, as options of m5ws.

Options of m5ws on the command line come before the launcher's. A number of processes that contradicts the launcher's is
an error.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from m5ws.config.commands import launchers
from m5ws.config.commands.launchers import Launch, ReadFile
from m5ws.config.settings import RunSettings
from m5ws.errors import UsageError
from m5ws.records.run import Trainer
from m5ws.runs import import_path
from m5ws.runs.run import RunOptions


def take_over(settings: RunSettings, options: RunOptions, read: ReadFile) -> tuple[RunOptions, str | None]:
    """Return the options with those of the command's launcher, and one line about them; None without a launcher.

    The command is that of `options`, else of `settings`. Raises UsageError for options without an equivalent.
    """
    launch = launchers.understand(options.command or settings.command, read)
    if launch is None:
        return options, None
    nproc = _count(settings, options, launch)
    trainer = options.trainer or (None if options.command else _set_trainer(settings)) or launch.trainer
    if trainer == "python" and nproc > 1 and options.trainer is None:
        trainer = "torchrun"
    taken = msgspec.structs.replace(
        options, command=launch.command, trainer=trainer, nproc=nproc, environment=launch.environment
    )
    return taken, launchers.describe(launch, trainer, nproc)


def take_over_import_path(
    settings: RunSettings, options: RunOptions, root: Path, environment: Mapping[str, str]
) -> tuple[RunOptions, str | None]:
    """Return the options with the shell's PYTHONPATH if it has a folder of the workspace `root`, and one line about it.

    A value in m5ws.toml comes first. The launcher's folders follow. Relative folders are those of the work directory.
    """
    folders = import_path.entries(environment, root)
    if import_path.VARIABLE in settings.environment or all(map(os.path.isabs, folders)):
        return options, None
    added = filter(None, options.environment.get(import_path.VARIABLE, "").split(os.pathsep))
    value = os.pathsep.join(dict.fromkeys((*folders, *added)))
    taken = msgspec.structs.replace(options, environment=options.environment | {import_path.VARIABLE: value})
    return taken, f"{import_path.VARIABLE}={value} of this shell: taken over, and recorded with the run"


def _set_trainer(settings: RunSettings) -> Trainer | None:
    """Return the trainer that m5ws.toml sets, None for the default."""
    return settings.trainer if settings.trainer != RunSettings().trainer else None


def _count(settings: RunSettings, options: RunOptions, launch: Launch) -> int:
    """Return the number of processes. Raises UsageError for a contradiction, and if it depends on the devices."""
    wanted, source = (options.nproc, "--nproc") if options.command else (_set_nproc(settings), "[run] nproc")
    if wanted is not None and launch.nproc not in (None, wanted):
        raise UsageError(
            f"{source} {wanted} contradicts {launch.launcher}, which starts {launch.nproc} process"
            f"{'es' if launch.nproc != 1 else ''}",
            hint=f"Leave out one of the two, or give the script without {launch.launcher}.",
        )
    nproc = options.nproc or launch.nproc or _set_nproc(settings)
    if nproc is None:
        raise UsageError(
            f"{launch.launcher} would start a process for each device, and m5ws does not count them",
            hint="Give the number of processes: m5ws run --nproc N -- …",
        )
    return nproc


def _set_nproc(settings: RunSettings) -> int | None:
    """Return the number of processes that m5ws.toml sets, None for the default."""
    return settings.nproc if settings.nproc != RunSettings().nproc else None
