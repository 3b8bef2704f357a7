"""Commands that begin with a launcher: python, torchrun, deepspeed, `accelerate launch`, `tune run` or composer.

m5ws starts the ranks itself. So it takes over the processes, the trainer and the variables of the launcher's options,
and refuses options that have no equivalent. The script and its arguments stay as they are. Pure: files are read
by a function of the caller.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath

import msgspec

from m5ws.config.commands import accelerate
from m5ws.config.commands.options import Parsed, parse, refusal, table
from m5ws.errors import UsageError
from m5ws.records.run import Trainer

ReadFile = Callable[[str], bytes]
"""Returns a file of the snapshot by its path. Raises UsageError if there is none."""

_NODES = "m5ws runs on one machine: leave the option out, and start fewer processes."
_SCRIPT = "m5ws runs Python scripts: name the script, or its module with -m."
_DEVICES = "Leave it out, and set CUDA_VISIBLE_DEVICES in the shell."
_LEAVE_OUT = "Leave the option out."

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?(\.exe)?")
_MODULES = {
    "torch.distributed.run": ("torchrun",),
    "deepspeed": ("deepspeed",),
    "deepspeed.launcher.runner": ("deepspeed",),
    "accelerate.commands.launch": ("accelerate", "launch"),
    "accelerate.commands.accelerate_cli": ("accelerate",),
    "torchtune._cli.tune": ("tune",),
    "composer.cli.launcher": ("composer",),
}
"""Modules that are launchers, as their programs."""
_DEEPSPEED_OPTION = re.compile(r"--deepspeed(?:[_-]config)?(?:=.+)?", re.DOTALL)
"""The option of a script that uses DeepSpeed, of `deepspeed.add_config_arguments` and of Hugging Face's Trainer."""
_SINGLE_DEVICE = "_single_device"
"""The end of the names of torchtune's recipes that `tune run` refuses to start by torchrun."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A command without its launcher, and the settings in the launcher's options.

    `nproc` is None if the launcher would count the machine's devices. `environment` has the variables that the launcher
    sets in each rank. `ignored` has the options that cannot change the training, and `note` a difference for people.
    """

    launcher: str
    command: tuple[str, ...]
    trainer: Trainer
    nproc: int | None
    environment: dict[str, str] = {}
    ignored: tuple[str, ...] = ()
    note: str = ""


def is_launcher(word: str) -> bool:
    """Return True if a command that begins with this word begins with a launcher."""
    return _program(word) in _LAUNCHERS


def understand(command: Sequence[str], read: ReadFile) -> Launch | None:
    """Return the launch of a command; None if it begins with a script.

    Raises UsageError for an option without an equivalent.
    """
    if not command:
        return None
    launcher = _LAUNCHERS.get(_program(command[0]))
    return launcher(command, read) if launcher is not None else None


def describe(launch: Launch, trainer: Trainer, nproc: int) -> str:
    """Return one line about a launch that was taken over: the command of m5ws that is equal to it."""
    equal = f"--trainer {trainer} --nproc {nproc} -- {shlex.join(launch.command)}"
    parts = [f"{launch.launcher}: taken over as {equal}"]
    if launch.environment:
        parts.append(f"with {len(launch.environment)} variables (`--dry-run` lists them)")
    if launch.ignored:
        parts.append(f"without {' '.join(launch.ignored)}")
    return "; ".join([*parts, launch.note] if launch.note else parts)


def _program(word: str) -> str:
    """Return the name of a launcher's program, without folder and version."""
    name = PurePath(word).name
    if _PYTHON.fullmatch(name):
        return "python"
    return {"accelerate-launch": "accelerate"}.get(name, name)


# --- one function a launcher ---------------------------------------------------------------------------------------


def _python(command: Sequence[str], read: ReadFile) -> Launch:
    """`python [-u] [-B] SCRIPT` or `-m MODULE`. A launcher's module is that launcher."""
    _refuse_other_python(command[0])
    words = list(command[1:])
    while words and words[0].startswith("-") and words[0] != "--":
        option = words.pop(0)
        if option == "-m" and words:
            if words[0] in _MODULES:
                program = _MODULES[words[0]]
                return _LAUNCHERS[program[0]]((*program, *words[1:]), read)
            if words[0] == "torch.distributed.launch":
                raise refusal("python", "-m torch.distributed.launch", "Use torchrun, which has replaced it.")
            words.insert(0, "-m")
            break
        if not set(option[1:]) <= {"u", "B"} or option == "-":
            raise refusal("python", option, _python_remedy(option))
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise UsageError("python: no script to run", hint="Give a script, or a module with -m.")
    return Launch(launcher="python", command=tuple(words), trainer="python", nproc=1)


def names_deepspeed(command: Sequence[str]) -> bool:
    """Return True if a script gets the option for a configuration of DeepSpeed."""
    return any(map(_DEEPSPEED_OPTION.fullmatch, command[1:]))


def _torchrun(command: Sequence[str], _read: ReadFile) -> Launch:
    """`torchrun` of torch 2.13 (https://docs.pytorch.org/docs/stable/elastic/run.html), on one node."""
    launcher = _program(command[0])
    parsed = parse(launcher, command[1:], _TORCHRUN, {"m": "module", "r": "redirects", "t": "tee"})
    values = parsed.values
    if str(values.get("nnodes", "1")) not in ("1", "1:1"):
        raise refusal(launcher, f"--nnodes {values['nnodes']}", _NODES)
    if values.get("max_restarts", 0) != 0:
        remedy = "Leave the option out: `m5ws run --resume RUN` continues a run that failed."
        raise refusal(launcher, f"--max-restarts {values['max_restarts']}", remedy)
    if values.get("node_rank", 0) != 0:
        raise refusal(launcher, f"--node-rank {values['node_rank']}", _NODES)
    command = _script(parsed)
    return Launch(
        launcher=launcher,
        command=command,
        # Both start the same command. DeepSpeed's operator is compiled before it.
        trainer="deepspeed" if names_deepspeed(command) else "torchrun",
        nproc=_count(launcher, "--nproc-per-node", values.get("nproc_per_node", "1")),
        ignored=parsed.ignored,
    )


def _deepspeed(command: Sequence[str], _read: ReadFile) -> Launch:
    """`deepspeed` of DeepSpeed 0.19 (https://www.deepspeed.ai/getting-started/#launching-deepspeed-training)."""
    short = {"H": "hostfile", "i": "include", "e": "exclude", "q": "quiet"}
    parsed = parse("deepspeed", command[1:], _DEEPSPEED, short)
    values = parsed.values
    if values.get("num_nodes", 1) not in (-1, 1):
        raise refusal("deepspeed", f"--num_nodes {values['num_nodes']}", _NODES)
    if values.get("node_rank", 0) not in (-1, 0):
        raise refusal("deepspeed", f"--node_rank {values['node_rank']}", _NODES)
    count = values.get("num_gpus", values.get("num_accelerators", -1))
    note = "" if "no_local_rank" in values else "the script gets no --local_rank, the variable LOCAL_RANK is set"
    return Launch(
        launcher="deepspeed",
        command=_script(parsed),
        trainer="deepspeed",
        nproc=None if count == -1 else _count("deepspeed", "--num_gpus", count),
        ignored=parsed.ignored,
        note=note,
    )


def _accelerate(command: Sequence[str], read: ReadFile) -> Launch:
    """`accelerate launch` of accelerate 1.15: options before the config file's values."""
    words = list(command[1:])
    if PurePath(command[0]).name != "accelerate-launch":
        if words[:1] != ["launch"]:
            hint = "Give `accelerate launch`, its options, and the script."
            raise UsageError("accelerate: only `accelerate launch` starts a training", hint=hint)
        words = words[1:]
    parsed = parse("accelerate", words, accelerate.OPTIONS, {"m": "module", "q": "quiet", "t": "tee"})
    arguments = accelerate.arguments(parsed.values, read)
    return Launch(
        launcher="accelerate",
        command=_script(parsed),
        trainer=accelerate.trainer(arguments),
        nproc=accelerate.processes(arguments),
        environment=accelerate.environment(arguments),
        ignored=parsed.ignored,
    )


def _tune(command: Sequence[str], read: ReadFile) -> Launch:
    """`tune run` of torchtune 0.6: with options of torchrun, a distributed recipe; else one process.

    torchtune finds recipes and configs by their names. So each rank gets `tune run` without the options.
    """
    if list(command[1:2]) != ["run"]:
        raise UsageError("tune: only `tune run` starts a training", hint="Give `tune run RECIPE --config CONFIG`.")
    launch = _torchrun(("tune", *command[2:]), read)
    has_options = len(launch.command) < len(command) - 2
    recipe = launch.command[0]
    if has_options and recipe.endswith(_SINGLE_DEVICE):
        raise refusal("tune", f"a launch of {recipe} by torchrun", f"Leave out the options before {recipe}.")
    return msgspec.structs.replace(
        launch,
        command=("-m", "torchtune._cli.tune", "run", *launch.command),
        trainer="torchrun" if has_options else "python",
    )


def _composer(command: Sequence[str], _read: ReadFile) -> Launch:
    """`composer` of MosaicML Composer 0.32 (https://docs.mosaicml.com/projects/composer/en/stable/cli.html)."""
    short = {"n": "nproc", "v": "verbose", "m": "module_mode", "c": "command_mode"}
    parsed = parse("composer", command[1:], _COMPOSER, short)
    values = parsed.values
    count = values.get("nproc")
    for name, single in (("world_size", count), ("base_rank", 0), ("node_rank", 0)):
        if values.get(name, single) != single:
            raise refusal("composer", f"--{name} {values[name]}", _NODES)
    is_expanded = any("$" in word or word.startswith("~") for word in parsed.rest)
    return Launch(
        launcher="composer",
        command=_script(parsed),
        trainer="torchrun",
        nproc=None if count is None else _count("composer", "--nproc", count),
        environment={"NODE_RANK": "0"},
        ignored=parsed.ignored,
        note="variables and ~ in the arguments are not expanded" if is_expanded else "",
    )


_LAUNCHERS: dict[str, Callable[[Sequence[str], ReadFile], Launch]] = {
    "python": _python,
    "torchrun": _torchrun,
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
    "tune": _tune,
    "composer": _composer,
}

_TORCHRUN = table(
    flags=("module",),
    values={"nproc_per_node": str, "nnodes": str, "node_rank": int, "max_restarts": int},
    # m5ws chooses address and port, and keeps the logs of all ranks.
    ignored_flags=("standalone",),
    ignored_values=(
        *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "master_addr", "master_port", "local_addr"),
        *("monitor_interval", "log_dir", "redirects", "tee", "local_ranks_filter", "event_log_handler"),
        *("duplicate_stdout_filters", "duplicate_stderr_filters"),
    ),
    refused_flags={
        "no_python": _SCRIPT,
        "run_path": _LEAVE_OUT,
        "virtual_local_rank": "Leave the option out: every rank sees all devices.",
    },
    refused_values={
        "start_method": _LEAVE_OUT,
        "role": _LEAVE_OUT,
        "logs_specs": "Leave the option out: `m5ws logs RUN` prints the logs of all ranks.",
        "numa_binding": "Leave the option out: threads are set by [determinism] threads in m5ws.toml.",
        "signals_to_handle": _LEAVE_OUT,
        "shutdown_timeout": "Set [checkpoint] deadline_s in m5ws.toml.",
    },
)
_COMPOSER = table(
    flags=("module_mode",),
    values={"nproc": int, "world_size": int, "base_rank": int, "node_rank": int},
    # m5ws keeps the logs of all ranks.
    ignored_flags=("verbose",),
    ignored_values=("stdout", "stderr", "master_addr", "master_port"),
    refused_flags={"command_mode": _SCRIPT},
)
_DEEPSPEED = table(
    flags=("module", "no_local_rank"),
    values={"num_nodes": int, "num_gpus": int, "num_accelerators": int, "node_rank": int},
    ignored_flags=("quiet", "no_ssh_check", "save_pid"),
    ignored_values=("master_port", "master_addr", "log_level", "enable_each_rank_log", "ssh_port"),
    refused_flags={
        "no_python": _SCRIPT,
        "no_ssh": _NODES,
        "force_multi": _NODES,
        "bind_cores_to_rank": "Leave the option out: threads are set by [determinism] threads in m5ws.toml.",
    },
    refused_values={
        "hostfile": _NODES,
        "include": _DEVICES,
        "exclude": _DEVICES,
        "launcher": _NODES,
        "launcher_args": _NODES,
        "autotuning": "Tune first, then run the script with the configuration that was found.",
        "bind_core_list": "Leave the option out: threads are set by [determinism] threads in m5ws.toml.",
        "venv_script": "Activate the environment in the shell.",
    },
)


def _script(parsed: Parsed) -> tuple[str, ...]:
    is_module = "module" in parsed.values or "module_mode" in parsed.values
    return ("-m", *parsed.rest) if is_module else parsed.rest


def _count(launcher: str, label: str, value: object) -> int | None:
    """Return a number of processes; None for `gpu`, `cpu` and `auto`, which the launcher would count."""
    if value in ("gpu", "cpu", "xpu", "auto"):
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise UsageError(
            f"{launcher}: {label} is not a number of processes: {value!r}", hint="Give a whole number of at least 1."
        )
    return number


def _refuse_other_python(word: str) -> None:
    """Raise UsageError for the interpreter of another environment, or another version: ranks would not be run by it."""
    version = PurePath(word).name.removesuffix(".exe").removeprefix("python")
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder, own = os.path.dirname(word), os.path.dirname(sys.executable)
    # A link to the folder is the same environment; one to the interpreter alone is not.
    is_other = os.path.isabs(folder) and os.path.realpath(folder) != os.path.realpath(own)
    if is_other or version not in ("", str(sys.version_info.major), ours):
        raise UsageError(
            f"ranks are run by the Python that runs m5ws, {sys.executable}, and not by {word}",
            hint="Install m5ws in the environment of that Python, and start m5ws there.",
        )


def _python_remedy(option: str) -> str:
    """Return the remedy for an option of Python: its variable, which the run records, if there is one."""
    variables = {"-O": "PYTHONOPTIMIZE = '1'", "-OO": "PYTHONOPTIMIZE = '2'", "-W": "PYTHONWARNINGS = '…'"}
    if option == "-c":
        return "Write the code into a script."
    variable = variables.get(option) or variables.get(option[:2])
    if variable is None:
        return "Leave the option out, or set its variable in [run] environment of m5ws.toml."
    return f"Leave the option out, and set [run] environment = {{ {variable} }} in m5ws.toml."
