"""Fixtures of all parts, and the summary of tests that could not run."""

import gc
import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from m5ws.records.launch import STOP_SIGNALS
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.ranks import launch_count
from tests.support.ranks.forks import ForkParents
from tests.support.s3 import ceph as ceph_server
from tests.support.s3.s3_client import connect, fresh_bucket
from tests.support.s3.s3_servers import ENVIRONMENT, S3Server, moto
from tests.support.workspace import golden

_LOUD = "NOT TESTED: "

# A shell that starts this in the background has it ignored, and tests press Ctrl-C on processes of their own.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The time to draw an example depends on the load of the machine, and not on m5ws.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", settings.get_profile("untimed"), max_examples=8)
settings.load_profile("untimed")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def repo(store: LocalStore) -> Repository:
    return Repository.create(store)


@pytest.fixture(scope="session")
def session_directory(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A directory that all workers of a session share, and no other session."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session", autouse=True)
def _state_home(session_directory: Path) -> None:
    """Have runs at work below the session's own folder, in this process and all that it starts."""
    os.environ["XDG_STATE_HOME"] = str(session_directory / "state")


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Begin with SIGHUP as it is without nohup(1), and put the signal handlers back: sessions may be left open."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def fork_parents() -> Iterator[ForkParents]:
    """The processes from which ranks are forked, for all launches of a worker."""
    with ForkParents() as parents:
        yield parents


@pytest.fixture(scope="session")
def ceph(session_directory: Path) -> Iterator[ceph_server.Ceph]:
    """A real Ceph RGW, one for all workers."""
    if absent := ceph_server.missing():
        loud_skip(f"nothing on Ceph: {', '.join(absent)} not found (apt-get install {ceph_server.PACKAGES})")
    with ceph_server.hold(session_directory / "ceph") as running:
        # A busy machine's first bucket was seen to take more than a minute.
        fresh_bucket(connect(running.endpoint, running.users["admin"], attempts=5, read_timeout_s=30))
        yield running


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A light S3 server, for the session."""
    with moto(tmp_path_factory.mktemp("moto") / "log") as server:
        yield server


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of nobody's, and none of this machine's own configuration."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "Rewrite the files of tests/data/golden with the present output."
    parser.addoption(golden.FLAG, action="store_true", help=text)
    parser.addoption("--campaign-seed", type=int, help="Seed of a campaign that takes one; drawn if it is not given.")
    parser.addoption("--campaign-count", type=int, help="How much a campaign that takes a count is to do.")


def loud_skip(reason: str) -> None:
    """Skip a test that lacks a server or program, and say so where nobody can miss it; `.ci/run` installs them all."""
    pytest.skip(_LOUD + reason)


_SLOWEST = (
    # The first to use DeepSpeed compiles its operators, which takes one to two minutes: the other worker begins with
    # modules that do not wait for them.
    "training/test_deepspeed.py", "training/test_reshard_deepspeed.py", "training/test_export_deepspeed.py",
    "services/test_frameworks.py", "services/test_images.py", "flows/test_guide_commands.py", "flows/test_clusters.py",
    "flows/test_told_to_end.py", "flows/test_documented_commands.py", "flows/test_nodes.py",
    "services/test_triton.py", "services/test_mlflow_server.py", "services/test_mlflow_ui.py",
    "services/test_page_delivery.py",
    "templates/test_training.py", "flows/test_evidence.py",
    "services/test_package_tools.py", "environment/test_virtual_environments.py", "flows/test_plain.py",
    "services/test_pins.py", "tracking/test_migrations.py", "tracking/test_context_provider.py",
    "flows/test_resume.py", "cli/test_running.py", "snapshot/test_known_files.py", "flows/test_reproduce.py",
    "flows/test_explain.py", "flows/test_elsewhere.py", "tracking/test_follower.py",
    "flows/test_segments.py", "training/test_features.py", "environment/test_machine.py", "flows/test_isolation.py",
    "flows/test_environments.py", "flows/test_recheck.py", "training/test_store_in_trouble.py",
    "snapshot/test_crash.py", "training/test_dcp.py", "flows/test_fork.py",
    "flows/test_bisect.py", "repository/test_bindings.py", "contract/test_launchers.py", "contract/test_store.py",
    "tracking/test_crashes.py", "bisect/test_bisect.py", "flows/test_s3_store.py",
    "training/test_portable.py", "flows/test_work_directories.py", "snapshot/test_killed.py",
)  # fmt: skip
"""Modules that begin first, so that no worker is left with a long module when all other workers have ended."""


_OF_DEEPSPEED = ("deepspeed", "deepspeed_cpu_adam", "export_deepspeed", "observation", "reshard_deepspeed", "tracing")
_TOGETHER = {
    # The parent of their ranks imports DeepSpeed, which takes seconds.
    **{f"tests/training/test_{name}.py": "DeepSpeed" for name in _OF_DEEPSPEED},
    **{f"tests/services/test_{name}.py": "an image of Podman" for name in ("images", "batch_containers")},
    **{f"tests/services/test_{name}.py": "a server of MLflow" for name in ("mlflow_ui", "page_delivery")},
}
"""Modules that one worker runs, by the thing that they share."""


class _BySharedThings(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """`--dist=loadfile`, with the modules of `_TOGETHER` that share a thing as one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _BySharedThings | None:
    return _BySharedThings(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the garbage collector out of the imports of all modules, and their objects out of its later collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_LONG_MARKS = ("services", "long")
_NAMES_A_LONG_MARK = re.compile(rf"\bmark\.(?:{'|'.join(_LONG_MARKS)})\b")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules without a test of `make test-services`: each worker would import them all, for nothing."""
    if not str(config.option.markexpr).startswith("(services or long)") or collection_path.suffix != ".py":
        return None
    return None if _NAMES_A_LONG_MARK.search(collection_path.read_text()) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = {item.path for item in items if any(map(item.get_closest_marker, _LONG_MARKS))}
    if unnamed := [str(path) for path in marked if not _NAMES_A_LONG_MARK.search(path.read_text())]:
        raise pytest.UsageError(f"`make test-services` finds a mark by its name, which is not in {', '.join(unnamed)}")
    places = {f"tests/{name}": place for place, name in enumerate(_SLOWEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def _is_make_test(config: pytest.Config) -> bool:
    """Return True for a run of `make test`, whose real launches are counted."""
    return str(config.option.markexpr).startswith("not soak and not")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not _is_make_test(session.config):
        return
    made = launch_count.count(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    if made.real > launch_count.MOST_REAL:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports, which come from the workers' processes too.
    reports = terminalreporter.stats.get("skipped", [])
    texts = [str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple)]
    for text in dict.fromkeys(texts):
        if _LOUD in text:
            terminalreporter.write_line(text.removeprefix("Skipped: "), red=True, bold=True)
    made = launch_count.count(terminalreporter.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    said = f"launches: {made.real} real, {made.forked} forked"
    if _is_make_test(terminalreporter.config) and made.real > launch_count.MOST_REAL:
        said += f"; at most {launch_count.MOST_REAL} real launches may be here, tests/support/ranks/launch_count.py"
    terminalreporter.write_line(said)
