"""Conformance tests of `Launcher`: the launcher of users, and the forks that most tests use instead."""

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws.agent import failure
from m5ws.launch.interface import LEFT_PROCESSES, Launcher, Process
from m5ws.launch.local import LocalLauncher
from m5ws.records import codec
from m5ws.records.launch import LaunchRequest
from m5ws.records.run import LaunchSpec
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.conftest import loud_skip
from tests.support.ranks.forks import ForkLauncher, ForkParents, wait
from tests.support.ranks.orders import orders
from tests.support.waiting import is_alive, wait_for

_SCRIPTS = Path(__file__).parent / "scripts"
_PATIENCE_S = 120.0
_OF_THIS_LAUNCH = {"MASTER_ADDR", "MASTER_PORT", "PROBE", "TORCHELASTIC_RUN_ID"}
"""Variables with different values in each launch."""
_ONLY_TORCHRUN = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "NUMA_BINDING"}
"""Variables that torchrun sets and forks do not. m5ws and the test scripts do not read them."""

Launchers = Callable[[dict[str, str]], Launcher]


@pytest.fixture(scope="module")
def parents() -> Iterator[ForkParents]:
    """Parents for this module only, started with variables that no other test uses."""
    with ForkParents() as parents:
        yield parents


_KINDS = [pytest.param("real", marks=pytest.mark.long), "forks"]
_REAL_IN_CAMPAIGNS = pytest.mark.parametrize(
    "launcher", [pytest.param("real", marks=pytest.mark.soak), "forks"], indirect=True
)
"""For rules of which another test here has a part with the launcher of users."""


@pytest.fixture(params=_KINDS)
def launcher(request: pytest.FixtureRequest, parents: ForkParents) -> Launchers:
    """Create a launcher from the environment that its processes inherit."""
    return LocalLauncher if request.param == "real" else lambda inherited: ForkLauncher(parents, inherited)


def _request(
    directory: Path, *command: str, ranks: int | None = 2, unset: tuple[str, ...] = (), **variables: str
) -> Any:
    torchrun = () if ranks is None else ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    script, *arguments = command
    return LaunchRequest(
        argv=(sys.executable, *torchrun, str(_SCRIPTS / script), *arguments),
        cwd=str(directory),
        environment=variables,
        log=str(directory / "logs" / "launcher.log"),
        unset=unset,
    )


_FIXED = {
    "PYTHONHASHSEED": "3", "OMP_NUM_THREADS": "2", "MKL_DYNAMIC": "FALSE", "ATEN_CPU_CAPABILITY": "default",
    "GLOO_SOCKET_IFNAME": "lo", "SET": "new",
}  # fmt: skip


def _probe(launcher: Launchers, directory: Path, ranks: int | None) -> dict[str, Any]:
    directory.mkdir()
    inherited = dict(os.environ) | {"GONE": "1", "SET": "old", "KEPT": "1"}
    request = _request(
        directory, "probe.py", "--flag", "two words", ranks=ranks, unset=("GONE",), PROBE=str(directory), **_FIXED
    )
    assert wait(launcher(inherited).launch(request)) == 0, Path(request.log).read_text()
    names = [str(number) for number in range(ranks)] if ranks else ["alone"]
    found = {name: json.loads((directory / name).read_text()) for name in names}
    log = Path(request.log).read_text()
    assert all(f"{how} by {name}" in log for name in names for how in ("printed", "complained"))
    return found


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_launched_process_gets_the_requested_environment_and_arguments(
    launcher: Launchers, tmp_path: Path, ranks: int | None
) -> None:
    place = tmp_path / "place"
    for name, found in _probe(launcher, place, ranks).items():
        variables = found["variables"]
        assert (variables["SET"], variables["KEPT"], "GONE" in variables) == ("new", "1", False)
        assert found["arguments"] == ["--flag", "two words"] and found["script"] == str(_SCRIPTS / "probe.py")
        assert (found["cwd"], found["stdin"], found["first on the path"]) == (str(place), "", str(_SCRIPTS))
        # Settings that are read when Python and torch start.
        # torch before 2.8 has another name for it.
        assert (found["threads"], found["capability"]) in ((2, "DEFAULT"), (2, "NO AVX"))
        seeded = subprocess.run(
            [sys.executable, "-c", "print(hash('m5ws'))"], env=os.environ | _FIXED, capture_output=True, text=True
        )
        assert found["hash"] == int(seeded.stdout)
        if ranks:
            assert found["sum over ranks"] == 3
            own = {"RANK": name, "LOCAL_RANK": name, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
            assert own.items() <= variables.items()
        else:
            assert "RANK" not in variables


@_REAL_IN_CAMPAIGNS
def test_parallel_launches_see_their_own_folders_at_the_same_path(launcher: Launchers, tmp_path: Path) -> None:
    place = tmp_path / "place"
    requests = []
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "work").mkdir(parents=True)
        request = _request(folder, "ends.py", "waits", "waits", ENDS=".")
        requests.append(msgspec.structs.replace(request, cwd=str(place), mount=(str(folder / "work"), str(place))))
    place.mkdir()
    if not launcher({}).can_mount(*requests[0].mount):
        loud_skip("no mount namespaces: needs the rights of root")
    launched = [launcher(dict(os.environ)).launch(request) for request in requests]
    files = [tmp_path / name / "work" / str(rank) for name in ("one", "two") for rank in range(2)]
    wait_for(lambda: all(file.exists() for file in files) or any(process.poll() is not None for process in launched))
    assert len({file.read_text() for file in files}) == 4 and not any(place.iterdir())
    for process in launched:
        process.stop(_PATIENCE_S)


def test_a_process_with_busy_threads_can_launch(tmp_path: Path) -> None:
    """The child of such a process runs Python before it becomes another program, and must not wait for their locks."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    launcher, over = LocalLauncher(os.environ), threading.Event()

    def work(module: str) -> None:
        while not over.wait(0.001):  # not all the time, or launches would wait for the interpreter's lock alone
            sys.modules.pop(module, None)
            importlib.import_module(module)
            logging.getLogger(__name__).debug("%s", [bytearray(1000) for _ in range(100)])

    def launch(number: int) -> int:
        log = tmp_path / f"{number}.log"
        request = LaunchRequest(argv=(str(program),), cwd=str(tmp_path), environment={}, log=str(log))
        return wait(launcher.launch(request))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("colorsys", "nturl2path", "tabnanny")]
    for thread in threads:
        thread.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(launch, range(12))) == {3}
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.soak
def test_forked_ranks_have_the_variables_of_torchrun_ranks(parents: ForkParents, tmp_path: Path) -> None:
    real = _probe(LocalLauncher, tmp_path / "real", 2)
    forked = _probe(lambda inherited: ForkLauncher(parents, inherited), tmp_path / "forked", 2)
    for name, found in real.items():
        told, also = found["variables"], forked[name]["variables"]
        assert told.keys() - also.keys() <= _ONLY_TORCHRUN
        assert also.keys() - told.keys() == set()
        assert {key: value for key, value in also.items() if key not in _OF_THIS_LAUNCH} == {
            key: value for key, value in told.items() if key not in _OF_THIS_LAUNCH | _ONLY_TORCHRUN
        }


_STATUSES = {"3": 3, "raises": 1, "killed": -signal.SIGKILL}
"""Exit statuses of the ranks of ends.py that fail by themselves."""


@pytest.mark.parametrize(
    ("ranks", "how", "status"),
    [
        (2, ("0", "0"), 0),
        # torchrun ends with 1 for any status of a rank. It also ends the other ranks, without a request.
        (2, ("waits", "3"), 1),
        (2, ("killed", "waits"), 1),
        (None, ("raises",), 1),
        (None, ("killed",), -signal.SIGKILL),
    ],
)
def test_a_launch_returns_its_exit_status_and_logs_the_status_of_each_rank(
    launcher: Launchers, tmp_path: Path, ranks: int | None, how: tuple[str, ...], status: int
) -> None:
    request = _request(tmp_path, "ends.py", *how, ranks=ranks, ENDS=str(tmp_path))
    assert wait(launcher(dict(os.environ)).launch(request)) == status
    if ranks is not None:
        expected = {rank: _STATUSES[words] for rank, words in enumerate(how) if words in _STATUSES}
        assert failure.read_statuses(Path(request.log)) == expected
    pids = [int(path.read_text()) for path in tmp_path.glob("[0-9]")]
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


def _as_rank(directory: Path, *how: str) -> LaunchRequest:
    """Return a launch of ends.py in ranks of m5ws. Each rank gets its own request to end, and dies with torchrun."""
    repo = Repository.create(LocalStore(directory / "store"))
    (directory / "work").mkdir()
    command = (str(_SCRIPTS / "ends.py"), *how)
    spec = LaunchSpec(command=command, nproc=len(how), seed=1)
    said = orders(directory, store=repo.store.url, spec=spec, author_dir=str(directory / "author"))
    (directory / "context").write_bytes(codec.encode(said))
    request = _request(
        directory, *command, ranks=len(how), ENDS=str(directory), M5WS_CONTEXT=str(directory / "context")
    )
    argv = (*request.argv[: -len(command)], "-m", "m5ws.training.rank", *command)
    processes = str(directory / "spool" / "processes")
    changed: LaunchRequest = msgspec.structs.replace(
        request, argv=argv, cwd=str(directory / "work"), processes=processes
    )
    return changed


def _alone(request: LaunchRequest) -> LaunchRequest:
    """Return a launch of one rank without torchrun."""
    argv = (sys.executable, *request.argv[request.argv.index("m5ws.training.rank") - 1 :])
    return msgspec.structs.replace(request, argv=argv)


def _started(launcher: Launchers, request: LaunchRequest, directory: Path) -> tuple[Process, list[int]]:
    """Launch two waiting processes. Return the launch and their ids."""
    process = launcher(dict(os.environ)).launch(request)
    files = [directory / str(number) for number in range(2)]
    wait_for(lambda: all(file.exists() for file in files) or process.poll() is not None)
    assert process.poll() is None
    return process, [int(file.read_text()) for file in files]


def test_stop_signals_every_rank_and_waits_for_every_rank(launcher: Launchers, tmp_path: Path) -> None:
    process, pids = _started(launcher, _as_rank(tmp_path, "waits", "waits"), tmp_path)
    assert process.stop(_PATIENCE_S) == 0
    assert len(list(tmp_path.glob("*.ended"))) == 2
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


@_REAL_IN_CAMPAIGNS
@pytest.mark.parametrize(("number", "asked"), [(signal.SIGTERM, {"0.ended"}), (signal.SIGINT, {"0.ended", "-1.ended"})])
def test_sigterm_goes_to_the_rank_and_ctrl_c_to_its_workers_too(
    launcher: Launchers, tmp_path: Path, number: signal.Signals, asked: set[str]
) -> None:
    process = launcher(dict(os.environ)).launch(_alone(_as_rank(tmp_path, "waits with a worker")))
    wait_for((tmp_path / "0").exists)
    assert process.stop(_PATIENCE_S, number) == 0
    assert {file.name for file in tmp_path.glob("*.ended")} == asked


def test_no_process_outlives_a_launch_and_each_left_process_is_named(launcher: Launchers, tmp_path: Path) -> None:
    request = _as_rank(tmp_path, "leaves a process", "leaves a process")
    assert wait(launcher(dict(os.environ)).launch(request)) == 0
    pids = [int(file.read_text()) for file in tmp_path.glob("[0-9]")]
    assert len(pids) == 2 and not any(map(is_alive, pids))
    left = Path(request.processes, LEFT_PROCESSES).read_text().splitlines()
    assert {int(line.split()[0]) for line in left} == set(pids)


def _noted(folder: Path) -> int:
    """Return the number of processes that have written their id."""
    return sum(bool(file.read_text()) for file in folder.glob("[0-9]"))


@_REAL_IN_CAMPAIGNS
def test_a_script_is_stopped_together_with_its_child_processes(launcher: Launchers, tmp_path: Path) -> None:
    request = _as_rank(tmp_path, "spawns")
    process = launcher(dict(os.environ)).launch(_alone(request))
    wait_for(lambda: _noted(tmp_path) == 3 or process.poll() is not None)
    pids = [int(file.read_text()) for file in tmp_path.glob("[0-9]")]
    assert process.stop(_PATIENCE_S) != 0
    assert len(pids) == 3 and not any(map(is_alive, pids))
    assert not Path(request.processes, LEFT_PROCESSES).exists()


@_REAL_IN_CAMPAIGNS
def test_ranks_that_do_not_end_in_time_are_killed(launcher: Launchers, tmp_path: Path) -> None:
    process, pids = _started(launcher, _as_rank(tmp_path, "stays", "stays"), tmp_path)
    assert process.stop(0.3) == process.poll() == -signal.SIGKILL
    assert not any(map(is_alive, pids))


@pytest.mark.long
def test_no_rank_outlives_the_launching_process(tmp_path: Path) -> None:
    (tmp_path / "request").write_bytes(codec.encode(_as_rank(tmp_path, "waits", "waits")))
    owner = subprocess.Popen(
        [sys.executable, str(_SCRIPTS / "owner.py"), str(tmp_path / "request")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        files = [tmp_path / str(number) for number in range(2)]
        wait_for(lambda: _noted(tmp_path) == 2 or owner.poll() is not None)
        pids = [int(file.read_text()) for file in files]
    finally:
        owner.kill()
        owner.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
