"""`python -m m5ws.training.rank script.py arguments…`: one rank of an attempt; after `--`, any other program.

It prepares the process before the script starts (log, admission, ledger, determinism) and runs the script as Python
would. Then it records the exit status. It dies with its launcher, so that no attempt outlives its supervisor. All that
it changes in the process is listed in docs/reference/inside-a-rank.md.
"""

import ctypes
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import msgspec

from m5ws import secret_scan
from m5ws.config.commands import launchers
from m5ws.environment.observe.machine import Machine
from m5ws.errors import M5Error, UsageError
from m5ws.filesystem import write_atomically
from m5ws.records import codec
from m5ws.records.environment import Observed
from m5ws.records.failure import Failure
from m5ws.records.launch import ADMITTED, OBSERVED, STOP_SIGNALS, WARNINGS, Admission, Context, open_log, stop_signals
from m5ws.records.ledger import RankEnded, RankStarted
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.store.cache.cache import cached
from m5ws.store.traffic import NAME, traffic
from m5ws.training import determinism
from m5ws.training.observation import watch
from m5ws.training.runtime import context, facts, imported_copies, imports, isolation, nccl, script_error
from m5ws.training.runtime.reads import ReadNotes, note_reads
from m5ws.training.runtime.stop import StopRequest
from m5ws.training.state import rng

_PR_SET_PDEATHSIG, _PR_SET_PTRACER = 1, 0x59616D61
_POLL_S = 0.005


def main(arguments: Sequence[str]) -> int:
    """Run the command of this rank and return its exit status."""
    parent = os.getppid()
    orders = read_context()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    _die_with_parent(parent)
    _permit_stacks(orders.supervisor)
    _prepare_signals()
    traffic.count_to(Path(orders.spool_dir, NAME))
    stop = StopRequest(Path(orders.spool_dir) / "processes")
    stop.register()
    _redirect(Path(orders.log_dir) / f"rank-{rank}.log")
    admitted = _await_admission(orders, is_first=os.environ.get("LOCAL_RANK", "0") == "0")
    loads = imports.Imports(Path(orders.spool_dir) / f"{rank}.imports")
    isolation.watch(orders, admitted.local_installs, loads.note)
    imported_copies.prefer(orders)
    spool = _open_spool(orders, rank)
    references = Path(orders.references) if orders.references else None
    repo = Repository.open(cached(open_store(orders.store), Path(orders.copies), orders.copies_bytes, references))
    determinism.apply(orders.determinism)
    if orders.determinism.level != "off":
        # Otherwise the system seeds them, for a script that does not.
        rng.seed_all((orders.spec.seed or 0) + rank)
    captured = nccl.capture(Path(orders.spool_dir), rank)
    nccl.record_collectives(Path(orders.spool_dir), rank)
    active = context.ActiveRank(orders, repo, spool, stop, rank, world, _facts(orders) | captured, loads)
    context.activate(active)
    active.emit(RankStarted, rank=rank, world=world, pid=os.getpid(), facts=active.facts)
    if orders.spec.observe:
        watch.start(active)
    end = _run(arguments, active, note_reads(orders, os.environ))
    # The script has ended, and its result is kept. While Python ends, it replaces handlers by the default action, but
    # ignored signals stay ignored.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    active.note_imports()
    active.emit(RankEnded, rank=rank, failure=end.failure)
    _print_end(end.error)
    return end.status


def _await_admission(orders: Context, *, is_first: bool) -> Admission:
    """Return the admission of this rank. A rank that a launcher starts again has it already.

    The first rank of the node observes its environment, and all wait until their node admits them: no line of the
    script runs in an environment that does not fit. The first rank's number need not be 0. A node that ends takes its
    ranks with it, so the wait has no limit.
    """
    path = Path(orders.spool_dir) / ADMITTED
    if is_first and not path.exists():
        write_atomically(path.with_name(OBSERVED), codec.encode(_observe(orders)))
    while not path.exists():
        time.sleep(_POLL_S)
    return codec.decode(path.read_bytes(), Admission, str(path))


def _observe(orders: Context) -> Observed:
    """Return the environment of this process, as it is before any setting of the run is applied to torch."""
    observing = orders.observing
    observed = Machine(
        root=Path(observing.root),
        copies=tuple(Path(copy) for copy in (orders.work_dir, observing.copy) if copy),
        variable_names=observing.variables,
        read_torch=facts.versions,
    ).observe({})
    if observing.rebuilt is None:
        return observed
    return msgspec.structs.replace(observed, facts=observed.facts | {"rebuilt": observing.rebuilt})


def _open_spool(orders: Context, rank: int) -> SpoolWriter:
    """Return the spool of this rank. Raises UsageError for a rank that was started before in the attempt."""
    path = Path(orders.spool_dir) / f"{rank}.spool"
    try:
        return SpoolWriter(path, genesis(orders.run, orders.attempt, str(rank)))
    except FileExistsError as error:
        raise UsageError(
            f"rank {rank} was started before in this attempt",
            hint=f"A launcher starts each rank once, without restarts. `m5ws resume {orders.run}` continues.",
        ) from error


def _facts(orders: Context) -> dict[str, str | None]:
    """Return the effective values in this rank. DeepSpeed loads its operators from the folder of m5ws's builds."""
    if orders.spec.trainer == "deepspeed":
        from m5ws.training.backends.deepspeed import cpu_adam

        cpu_adam.use_own_folder()
    return dict(facts.effective())


def read_context() -> Context:
    """Return the orders in the file that M5WS_CONTEXT names. Raises UsageError."""
    path = os.environ.get("M5WS_CONTEXT")
    if not path:
        raise UsageError("M5WS_CONTEXT is not set", hint="`m5ws run` starts ranks. Do not call this module by hand.")
    return codec.decode(Path(path).read_bytes(), Context, path)


class _End(msgspec.Struct, frozen=True):
    """The end of a script: the exit status and the failure. `error` is printed after the failure is recorded."""

    status: int
    failure: Failure | None = None
    error: BaseException | None = None


def _run(arguments: Sequence[str], active: context.ActiveRank, notes: ReadNotes) -> _End:
    """Run the script to its end."""
    try:
        if active.context.determinism.level == "portable":
            determinism.require()
        alive: dict[str, object] = {}
        try:
            alive |= _run_script(arguments)
        finally:
            watch.finish()
            alive.clear()
    except SystemExit as leaving:
        if leaving.code is None or leaving.code == 0:
            return _End(0)
        if isinstance(leaving.code, int):
            return _end_with(leaving.code)
        return _End(1, Failure(text=secret_scan.masked(str(leaving.code))), leaving)
    except KeyboardInterrupt as interrupt:
        return _end_with(128 + signal.SIGINT, interrupt)
    except BaseException as error:
        # The one broad handler of a rank: every error of a script belongs in its log and its ledger.
        # Torch's handler raises errors of loaders. The script has ended, and no error may replace its own.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if (advice := script_error.advice(error, active.context)) is not None:
            active.notice("missing-file", secret_scan.masked(advice))
        notes.search(error)
        return _End(getattr(error, "exit_code", 1), script_error.find_failure(error), error)
    return _End(0)


def _print_end(error: BaseException | None) -> None:
    """Print an error to the log as Python would. The script may have closed the log."""
    try:
        if isinstance(error, SystemExit):
            print(error.code, file=sys.stderr)
        elif error is not None:
            traceback.print_exception(error)
        if isinstance(error, M5Error) and error.hint:
            print(error.hint, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception as problem:
        os.write(2, f"the end of this log cannot be printed: {type(problem).__name__}: {problem}\n".encode())


def _run_script(arguments: Sequence[str]) -> dict[str, object]:
    """Run `script.py arguments…` or `-m module arguments…` as `python` would, in this process; `-- …` in another.

    Return the globals of the script.
    """
    if arguments[:1] == ["--"]:
        raise SystemExit(_run_program(arguments[1:]))
    words = list(launchers.split_rank(arguments))
    if words[:1] == ["-m"]:
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        return runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    return runpy.run_path(words[0], run_name="__main__")


def _run_program(command: Sequence[str]) -> int:
    """Run a program to its end, and return its exit status. It gets the signals that stop this process."""
    try:
        program = subprocess.Popen(command)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}", hint="Give a program on PATH.") from error

    def pass_on(number: int, _: FrameType | None) -> None:
        # The launcher sends SIGINT to all processes, as Ctrl-C in a terminal does.
        if number != signal.SIGINT:
            program.send_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, pass_on)
    status = program.wait()
    return status if status >= 0 else 128 - status


def _end_with(status: int, error: BaseException | None = None) -> _End:
    """Return the end of a script with an exit status, which may stand for a signal."""
    if status - 128 in STOP_SIGNALS:
        return _End(status, Failure(signal=status - 128), error)
    return _End(status, Failure(status=status))


def _die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its launcher dies; a killed launcher cannot do it itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # It died in between.


def _permit_stacks(supervisor: int | None) -> None:
    """Let processes of the supervisor read the stack of this process, also where the kernel permits only its parents.

    See kernel.yama.ptrace_scope (https://docs.kernel.org/admin-guide/LSM/Yama.html). Other kernels ignore the call.
    """
    if sys.platform == "linux" and supervisor is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, supervisor, 0, 0, 0)


def _prepare_signals() -> None:
    """Do nothing at the warnings of schedulers; leave Python's own handling of the other signals that stop a run.

    m5ws gets a warning too, and stops the ranks by SIGTERM. A session puts its own handler in this place. Programs that
    the script starts have the default action again, since they inherit no handlers.
    """
    for number in WARNINGS:
        signal.signal(number, lambda *_: None)
    for number in stop_signals():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _redirect(log: Path) -> None:
    """Send the output of this process, its C libraries and its children to its log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_log(log)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _leave(status: int) -> None:
    """End the process. A running save is left behind: at exit, Python would crash in its thread."""
    if any(thread.name == context.SAVE_THREAD for thread in threading.enumerate()):
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        # It came before the script. A traceback of m5ws would tell the user nothing.
        status = 128 + signal.SIGINT
    _leave(status)
