"""A launcher runs as typed, with the module of a rank in the script's place; options that contradict it are refused."""

import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.attempts import planning
from m5ws.attempts.planning import RunOptions
from m5ws.config.commands import arguments, launchers
from m5ws.config.settings import RunSettings
from m5ws.errors import UsageError
from m5ws.records.run import Starter

_PYTHON = sys.executable
_LAUNCHERS: dict[str, tuple[Starter, str]] = {
    "python": ("python", "-m"),
    f"{_PYTHON} -u -X dev": ("python", "-m"),
    "torchrun --standalone --nproc-per-node 2": ("torchrun", "-m"),
    "python -m torch.distributed.run --nnodes=1:4": ("torchrun", "-m"),
    "deepspeed --num_gpus 2": ("deepspeed", "--module"),
    "python -u -m deepspeed": ("deepspeed", "--module"),
    "accelerate launch --config_file conf/a.yaml": ("accelerate", "-m"),
    "accelerate-launch --use_fsdp": ("accelerate", "-m"),
    "python -m accelerate.commands.accelerate_cli launch -q": ("accelerate", "-m"),
    "composer -n 2 -v": ("composer", "-m"),
}
_SCRIPTS = (("train.py",), ("exp/a.py",), ("-m", "pkg.train"))
_WORD = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["--", "-m", "--module", "--nproc-per-node", "python", "torchrun", "other.py", "--local_rank=0"]
)


@given(st.sampled_from([*_LAUNCHERS]), st.sampled_from(_SCRIPTS), st.lists(_WORD, max_size=5))
def test_a_launcher_keeps_its_options_and_a_rank_gets_the_script(
    launcher: str, script: tuple[str, ...], words: list[str]
) -> None:
    starter, option = _LAUNCHERS[launcher]
    command = (*shlex.split(launcher), *script, *words)
    launchers.refuse_unusable(command)
    assert launchers.read(command).starter == starter
    started, options = launchers.argv(command, starter, None, _PYTHON), shlex.split(launcher)[1:]
    end = (*options, option, launchers.RANK, *script, *words)
    head = started[: -len(end)]
    assert started == (*head, *end)
    # The launcher is of the environment of the ranks: its program, or its module if it has none there.
    assert Path(head[0]).parent == Path(_PYTHON).parent
    assert launchers.read((*head, *options, *script)).starter == starter
    # Arguments that a launcher puts before the script, as deepspeed does, follow the script.
    ranked = ("--local_rank=1", *script, *words)
    assert launchers.split_rank(ranked) == (*script, "--local_rank=1", *words)
    assert launchers.split_rank((*script, *words)) == (*script, *words)
    assert arguments.split(command) == ((*shlex.split(launcher), *script), tuple(words))


@given(st.sampled_from(_SCRIPTS), st.lists(_WORD, max_size=5), st.integers(1, 4))
def test_a_script_starts_as_one_python_process_or_as_torchrun_ranks(
    script: tuple[str, ...], words: list[str], count: int
) -> None:
    command = (*script, *words)
    starter, nproc = planning.processes(command, RunOptions(), None, count)
    assert (starter, nproc) == ("python" if count == 1 else "torchrun", count)
    argv = launchers.argv(command, starter, nproc, _PYTHON)
    torchrun = () if count == 1 else ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))
    assert argv == (_PYTHON, *torchrun, "-m", launchers.RANK, *command)


@given(st.lists(_WORD, min_size=1, max_size=6))
def test_reading_a_command_loses_no_word(words: list[str]) -> None:
    typed = launchers.read(words)
    script = typed.script if typed.script[:1] != ("-m",) else typed.script[1:]
    assert (*typed.launcher, *script) == tuple(word for place, word in enumerate(words) if place != _option(words))
    head, rest = arguments.split(words)
    assert len(head) + len(rest) == len(words) and head


def _option(words: list[str]) -> int | None:
    """Return the place of the option before the script's module."""
    typed = launchers.read(words)
    return len(typed.launcher) if typed.script[:1] == ("-m",) else None


@pytest.mark.parametrize(
    "command",
    ["bash run.sh train.py", "make train", "tune run recipe", "accelerate config", "python -c pass", "python train x"],
)
def test_any_other_command_runs_as_typed_below_one_rank(command: str) -> None:
    words = tuple(command.split())
    starter, nproc = planning.processes(words, RunOptions(), None, None)
    assert (starter, nproc) == ("command", 1)
    assert launchers.argv(words, starter, nproc, _PYTHON) == (_PYTHON, "-m", launchers.RANK, "--", *words)


@pytest.mark.parametrize(
    "command", ["torchrun", "deepspeed --num_gpus 2", "torchrun -m", "torchrun -m --nproc-per-node 2 a", "-m"]
)
def test_a_launcher_without_a_script_is_refused(command: str) -> None:
    with pytest.raises(UsageError, match="no script") as raised:
        launchers.refuse_unusable(command.split())
    assert raised.value.hint


def test_a_launcher_of_another_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(Path(_PYTHON).parent)
    launchers.refuse_unusable((str(tmp_path / "linked" / "python"), "train.py"))
    for program in ("/nowhere/bin/python", "/nowhere/bin/torchrun", "python2"):
        with pytest.raises(UsageError, match=program):
            launchers.refuse_unusable((program, "train.py"))


@pytest.mark.parametrize("launcher", [*_LAUNCHERS, "make"])
@pytest.mark.parametrize("options", [RunOptions(nproc=2), RunOptions(trainer="torchrun")], ids=["nproc", "trainer"])
def test_options_that_contradict_a_launcher_are_refused(launcher: str, options: RunOptions) -> None:
    with pytest.raises(UsageError, match="--trainer and --nproc") as raised:
        planning.processes((*shlex.split(launcher), "train.py"), options, None, None)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("given", "settings", "expected"),
    [
        ((None, None), (None, 1), ("python", 1)),
        ((None, None), (None, 4), ("torchrun", 4)),
        ((None, None), ("torchrun", 1), ("torchrun", 1)),
        ((None, None), ("deepspeed", 2), ("deepspeed", 2)),
        ((None, 4), ("deepspeed", 2), ("deepspeed", 4)),
        ((None, 2), ("python", 1), ("torchrun", 2)),
        ((None, 1), (None, 4), ("python", 1)),
        (("python", None), ("torchrun", 4), ("python", 1)),
        (("torchrun", 1), (None, 1), ("torchrun", 1)),
        (("python", 2), (None, 1), None),
    ],
)
def test_the_number_of_processes_decides_between_python_and_torchrun(
    given: tuple[None, int | None], settings: tuple[None, int], expected: tuple[str, int] | None
) -> None:
    options = RunOptions(trainer=given[0], nproc=given[1], command=("train.py",))
    if expected is None:
        with pytest.raises(UsageError, match="starts 1 process"):
            planning.spec(RunSettings(trainer=settings[0], nproc=settings[1]), options)
        return
    spec = planning.spec(RunSettings(trainer=settings[0], nproc=settings[1]), options)
    assert (spec.trainer, spec.nproc) == expected
