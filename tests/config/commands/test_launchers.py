"""Launchers on the command line: processes and trainer are taken over, and the script's words are never touched."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config.commands import launchers
from m5ws.config.commands.launchers import Launch
from m5ws.config.settings import RunSettings
from m5ws.errors import UsageError
from m5ws.runs import run
from m5ws.runs.run import RunOptions
from m5ws.runs.take_over import take_over

_ACCELERATE = json.loads((Path(__file__).parents[2] / "data" / "accelerate_launches.json").read_text(encoding="utf-8"))
"""Config files and options of `accelerate launch`, with the variables that accelerate's own functions return."""


_TUNE = "-m torchtune._cli.tune run"


def _read(path: str) -> bytes:
    files: dict[str, str] = _ACCELERATE["files"]
    if path not in files:
        raise UsageError(f"no file {path}", hint="Correct the path.")
    return files[path].encode()


def _understand(line: str) -> Launch:
    launch = launchers.understand(shlex.split(line), _read)
    assert launch is not None
    return launch


@pytest.mark.parametrize(
    ("line", "command", "trainer", "nproc"),
    [
        ("python train.py --lr 1e-3", "train.py --lr 1e-3", "python", 1),
        ("python3 -u train.py -u", "train.py -u", "python", 1),
        ("python -uB -m pkg.train -m x", "-m pkg.train -m x", "python", 1),
        ("python -- train.py", "train.py", "python", 1),
        ("torchrun train.py", "train.py", "torchrun", 1),
        ("torchrun --nproc-per-node 2 train.py", "train.py", "torchrun", 2),
        ("torchrun --nproc_per_node=2 train.py --nproc_per_node=3", "train.py --nproc_per_node=3", "torchrun", 2),
        ("torchrun --standalone --nnodes 1 --nproc-per-node 2 -m pkg.train a", "-m pkg.train a", "torchrun", 2),
        ("/opt/bin/torchrun --nnodes=1:1 --rdzv-endpoint localhost:0 train.py", "train.py", "torchrun", 1),
        ("torchrun train.py --deepspeed ds.json", "train.py --deepspeed ds.json", "deepspeed", 1),
        ("torchrun train.py --deepspeed_config=ds", "train.py --deepspeed_config=ds", "deepspeed", 1),
        ("torchrun train.py --deepspeedy deepspeed", "train.py --deepspeedy deepspeed", "torchrun", 1),
        ("torchrun --nproc-per-node gpu train.py", "train.py", "torchrun", None),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py", "torchrun", 2),
        ("deepspeed --num_gpus 2 train.py --deepspeed ds.json", "train.py --deepspeed ds.json", "deepspeed", 2),
        ("deepspeed --num_gpus=2 --master_port 1 --module pkg.train", "-m pkg.train", "deepspeed", 2),
        ("deepspeed train.py", "train.py", "deepspeed", None),
        ("accelerate launch --num_processes 2 train.py --cpu", "train.py --cpu", "torchrun", 2),
        ("accelerate launch --num-processes 1 -m pkg.train", "-m pkg.train", "python", 1),
        ("accelerate launch train.py", "train.py", "torchrun", None),
        ("accelerate-launch --config_file ds.yaml --num_processes 4 train.py", "train.py", "deepspeed", 4),
        ("python -m accelerate.commands.launch --num_processes 2 train.py", "train.py", "torchrun", 2),
        ("tune run rec_single_device --config c.yaml", f"{_TUNE} rec_single_device --config c.yaml", "python", 1),
        ("tune run --nproc_per_node 2 rec --config c a=1", f"{_TUNE} rec --config c a=1", "torchrun", 2),
        ("python -m torchtune._cli.tune run --nnodes 1 rec --config c", f"{_TUNE} rec --config c", "torchrun", 1),
        ("composer -n 2 train.py -n 3", "train.py -n 3", "torchrun", 2),
        ("composer -v -n2 train.py -n3", "train.py -n3", "torchrun", 2),
        ("composer -n=2 train.py", "train.py", "torchrun", 2),
        ("torchrun -r3 -t=3 --nproc-per-node 2 train.py", "train.py", "torchrun", 2),
        ("accelerate launch --num_processes 2 -t3 train.py", "train.py", "torchrun", 2),
        ("composer -v --nproc 2 --world_size 2 --stdout {rank} -m pkg.train", "-m pkg.train", "torchrun", 2),
        ("composer --module_mode pkg.train", "-m pkg.train", "torchrun", None),
    ],
)
def test_processes_and_trainer_are_taken_over(line: str, command: str, trainer: str, nproc: int | None) -> None:
    launch = _understand(line)
    assert (shlex.join(launch.command), launch.trainer, launch.nproc) == (command, trainer, nproc)


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("python -O train.py", "-O"),
        ("python -X dev train.py", "-X"),
        ("python -Xdev train.py", "-Xdev"),
        ("python -c pass", "-c"),
        ("python2 train.py", "python2"),
        ("/nowhere/bin/python train.py", "/nowhere/bin/python"),
        ("python -m torch.distributed.launch train.py", "torch.distributed.launch"),
        ("torchrun --nnodes 2 train.py", "--nnodes"),
        ("torchrun --nnodes 1:4 train.py", "--nnodes"),
        ("torchrun --max-restarts 3 train.py", "--max-restarts"),
        ("torchrun --node-rank 1 train.py", "--node-rank"),
        ("torchrun --no-python train.sh", "--no-python"),
        ("torchrun --nproc-per-node 0 train.py", "--nproc-per-node"),
        ("torchrun --nproc-per-node", "--nproc-per-node"),
        ("torchrun --standalone=1 train.py", "--standalone"),
        ("torchrun --no-such-option train.py", "--no-such-option"),
        ("torchrun --nproc-per-node 2", "script"),
        ("deepspeed --hostfile hosts train.py", "--hostfile"),
        ("deepspeed -H hosts train.py", "-H"),
        ("deepspeed --num_nodes 2 train.py", "--num_nodes"),
        ("deepspeed --include localhost:0 train.py", "--include"),
        ("accelerate config", "accelerate launch"),
        ("tune cp rec .", "tune run"),
        ("tune run", "script"),
        ("tune run --nnodes 2 rec --config c", "--nnodes"),
        ("tune run --nproc_per_node 1 rec_single_device --config c", "rec_single_device"),
        ("composer -n 2 --world_size 4 train.py", "--world_size"),
        ("composer -n 2 --base_rank 2 train.py", "--base_rank"),
        ("composer -c train.sh", "-c"),
        ("composer -n two train.py", "-n"),
        ("composer -ntwo train.py", "-n"),
        ("composer -n", "-n"),
        ("composer -vn2 train.py", "-v"),
        ("composer -x2 train.py", "-x2"),
        ("deepspeed -Hhosts train.py", "-H"),
        ("tune", "tune run"),
        ("accelerate launch --num_machines 2 train.py", "--num_machines"),
        ("accelerate launch --num_processes two train.py", "--num_processes"),
        ("accelerate launch --num_cpu_threads_per_process 2 train.py", "--num_cpu_threads_per_process"),
        ("accelerate launch --use_fsdp --use_deepspeed train.py", "--use_fsdp"),
        ("accelerate launch --mixed_precision fp4 train.py", "mixed_precision"),
        ("accelerate launch --config_file nowhere.yaml train.py", "nowhere.yaml"),
        ("accelerate launch --use_deepspeed --deepspeed_config_file no.json train.py", "no.json"),
    ],
)
def test_what_has_no_equivalent_is_named(line: str, option: str) -> None:
    with pytest.raises(UsageError) as raised:
        _understand(line)
    assert option in str(raised.value) and raised.value.hint


@pytest.mark.parametrize(
    ("text", "noun"),
    [
        ("distributed_type: XLA", "distributed_type"),
        ("num_processes: 2", "distributed_type"),
        ("distributed_type: FSDP\nfsdp_confg: {}", "fsdp_confg"),
        ("distributed_type: FSDP\nnum_machines: 2", "num_machines"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_hostfile: hosts}", "deepspeed_hostfile"),
        ("compute_environment: AMAZON_SAGEMAKER", "compute_environment"),
        ("[", "config file"),
        ("- 1", "config file"),
    ],
)
def test_a_config_file_that_accelerate_or_m5ws_cannot_use_is_refused(text: str, noun: str) -> None:
    with pytest.raises(UsageError, match=noun):
        launchers.understand(shlex.split("accelerate launch --config_file a.yaml t.py"), lambda path: text.encode())


@pytest.mark.parametrize("launch", _ACCELERATE["launches"], ids=lambda launch: launch["options"])
def test_the_variables_are_those_that_accelerate_sets(launch: dict[str, Any]) -> None:
    taken = _understand(f"accelerate launch {launch['options']}")
    assert taken.environment == launch["environment"]
    assert (taken.trainer, taken.nproc) == (launch["trainer"], launch["nproc"])


_WORD = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["--", "-m", "--nproc-per-node", "--num_gpus=3", "-O", "python", "train.py", "--config_file"]
)


@given(
    prefix=st.sampled_from(
        [
            "python",
            "python -u",
            "torchrun --nproc-per-node 2",
            "deepspeed --num_gpus 2",
            "accelerate launch --cpu",
            "composer -n 2",
        ]
    ),
    words=st.lists(_WORD),
)
def test_the_arguments_of_the_script_are_never_touched(prefix: str, words: list[str]) -> None:
    launch = launchers.understand((*prefix.split(), "train.py", *words), _read)
    assert launch is not None
    assert launch.command == ("train.py", *words)


@given(words=st.lists(_WORD))
def test_any_words_are_understood_or_refused(words: list[str]) -> None:
    for launcher in (["python"], ["torchrun"], ["deepspeed"], ["accelerate", "launch"], ["tune", "run"], ["composer"]):
        try:
            launch = launchers.understand((*launcher, *words), _read)
        except UsageError:
            continue
        assert launch is not None
        assert launch.command[-1:] == tuple(words[-1:])


def test_a_script_is_no_launcher() -> None:
    assert launchers.understand(("train.py", "python"), _read) is None
    assert launchers.understand(("-m", "pkg"), _read) is None
    assert launchers.understand((), _read) is None


# --- with the options of m5ws -------------------------------------------------------------------------------------


def _taken(line: str, **options: Any) -> RunOptions:
    return take_over(RunSettings(), RunOptions(command=tuple(shlex.split(line)), **options), _read)[0]


def test_options_of_m5ws_win_and_contradictions_are_refused() -> None:
    assert _taken("torchrun --nproc-per-node 2 t.py", nproc=2).nproc == 2
    assert _taken("torchrun --nproc-per-node 2 t.py", trainer="deepspeed").trainer == "deepspeed"
    assert _taken("python t.py", trainer="torchrun").trainer == "torchrun"
    assert _taken("deepspeed t.py", nproc=4).nproc == 4
    with pytest.raises(UsageError, match="--nproc 4"):
        _taken("torchrun --nproc-per-node 2 t.py", nproc=4)
    with pytest.raises(UsageError, match="--nproc 2"):
        _taken("python t.py", nproc=2)
    with pytest.raises(UsageError, match="device"):
        _taken("deepspeed t.py")


def test_a_command_of_the_settings_is_taken_over_and_nproc_of_the_command_line_comes_before_it() -> None:
    settings = RunSettings(command=("torchrun", "--nproc-per-node", "2", "t.py"))
    assert take_over(settings, RunOptions(), _read)[0].nproc == 2
    assert take_over(settings, RunOptions(nproc=3), _read)[0].nproc == 3
    several, _ = take_over(RunSettings(command=("python", "t.py")), RunOptions(nproc=3), _read)
    assert (several.trainer, several.nproc) == ("torchrun", 3)
    with pytest.raises(UsageError, match=r"\[run\] nproc 4"):
        take_over(RunSettings(command=settings.command, nproc=4), RunOptions(), _read)
    typed, _ = take_over(RunSettings(nproc=4, trainer="deepspeed"), RunOptions(command=("python", "t.py")), _read)
    assert (typed.trainer, typed.nproc) == ("python", 1)


def test_the_launch_spec_has_the_script_and_the_variables() -> None:
    options, line = take_over(
        RunSettings(),
        RunOptions(command=("accelerate", "launch", "--num_processes", "2", "--mixed_precision", "bf16", "t.py", "-x")),
        _read,
    )
    settings = RunSettings(environment={"ACCELERATE_MIXED_PRECISION": "no", "A": "b"})
    spec = run.spec(settings, options)
    assert (spec.command, spec.nproc, spec.trainer) == (("t.py", "-x"), 2, "torchrun")
    assert spec.environment["ACCELERATE_MIXED_PRECISION"] == "no" and spec.environment["A"] == "b"
    assert spec.environment["ACCELERATE_DYNAMO_BACKEND"] == "NO"
    assert line is not None and "--nproc 2" in line and "\n" not in line
    assert take_over(RunSettings(), RunOptions(command=("t.py",)), _read) == (RunOptions(command=("t.py",)), None)


def test_the_python_of_this_environment_is_understood_by_any_path_to_it(tmp_path: Path) -> None:
    own = Path(sys.executable)
    (tmp_path / "linked environment").symlink_to(own.parent)
    other = tmp_path / "other" / own.name
    other.parent.mkdir()
    other.symlink_to(own)
    for path in (own, tmp_path / "linked environment" / own.name):
        assert _understand(shlex.join([str(path), "train.py"])).command == ("train.py",)
    with pytest.raises(UsageError):
        _understand(shlex.join([str(other), "train.py"]))
