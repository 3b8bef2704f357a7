"""The process that delivers runs to MLflow, started with a run, or later for ended runs.

    MLFLOW_TRACKING_URI=URI python -P -m m5ws.tracking.mlflow.process OPTIONS RUN...

OPTIONS are `FollowerOptions` as JSON. The address is a variable and no argument, because it may contain a password and
all users see arguments.

It reads the ledger once for each write to its standard input, so an idle run of many ranks causes no requests. At the
end of standard input, which comes with any end of the supervisor, it makes a last pass. With `once` it delivers the
records of several ended runs instead, in order, until MLflow does not answer. It exits with 0 if MLflow has everything.
"""

import os
import select
import sys
import warnings
from collections.abc import Sequence

import msgspec

from m5ws import secret_scan
from m5ws.errors import M5Error
from m5ws.tracking.mlflow import migrations
from m5ws.tracking.mlflow.follower import Follower, FollowerOptions, limit_requests

URI = "MLFLOW_TRACKING_URI"
_FIRST_RETRY_S, _RETRY_S = 2.0, 60.0
_MOST_BYTES = 65_536


def argv(options: FollowerOptions, run_ids: Sequence[str]) -> list[str]:
    """Return the command line of the process for runs; for several runs only with `options.once`."""
    shown = msgspec.json.encode(msgspec.structs.replace(options, tracking_uri="")).decode()
    # -P: the current directory may contain a folder named mlflow.
    return [sys.executable, "-P", "-m", "m5ws.tracking.mlflow.process", shown, *run_ids]


def main(arguments: Sequence[str]) -> int:
    """Follow a run to its end, or catch up with several. Return 0 if everything was delivered, else 1.

    The missing parts are on stderr. Raises M5Error if the store cannot be opened.
    """
    options = msgspec.json.decode(arguments[0], type=FollowerOptions)
    options = msgspec.structs.replace(options, tracking_uri=os.environ[URI])
    every = [msgspec.structs.replace(options, run=run) for run in arguments[1:]]
    _prepare_process(options)
    if every[0].once:
        return _catch_up(every)  # A command waits for it.
    return _follow(every[0])


def _follow(options: FollowerOptions) -> int:
    follower, failure, retry_s = Follower(options), None, _FIRST_RETRY_S
    last, look = False, True
    while True:
        failure = _deliver(follower, last=last, look=look or failure is not None)
        if last:
            return _describe(follower, options, failure)
        retry_s = _FIRST_RETRY_S if failure is None else min(retry_s * 2, _RETRY_S)
        look, last = _wait(None if failure is None else retry_s)


def _catch_up(every: Sequence[FollowerOptions]) -> int:
    status = 0
    for options in every:
        follower = Follower(options)
        failure = _deliver(follower, last=True)
        status |= _describe(follower, options, failure)
        if failure is not None and not isinstance(failure, M5Error):
            break  # MLflow does not answer. The rest would fail in the same way, each after the same time.
    return status


def _deliver(follower: Follower, *, last: bool, look: bool = True) -> Exception | None:
    """Deliver new records. Return the error of the store or of MLflow, if there is one."""
    try:
        if not follower.is_tracked:
            follower.advance(last=last, look=look)
        if last:
            follower.finish()
    except Exception as error:
        return error
    return None


def _describe(follower: Follower, options: FollowerOptions, failure: Exception | None) -> int:
    """Print the records that MLflow lacks or refuses, and return the exit status."""
    for refusal in follower.refused:
        print(f"MLflow refuses {refusal}", file=sys.stderr)
    if failure is None:
        return int(bool(follower.refused))
    uri = secret_scan.masked(options.tracking_uri)
    print(f"run {options.run} is not in MLflow ({uri}): {type(failure).__name__}: {failure}", file=sys.stderr)
    return 1


def _prepare_process(options: FollowerOptions) -> None:
    limit_requests()
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    warnings.simplefilter("ignore")
    migrations.migrate(options.tracking_uri, options.experiment)


def _wait(limit_s: float | None) -> tuple[bool, bool]:
    """Wait for input for at most `limit_s` seconds. Return (True if there may be new events, True at the end of
    input).
    """
    if sys.stdin is None:
        return True, True
    if not select.select([sys.stdin], [], [], limit_s)[0]:
        return False, False
    return True, not os.read(sys.stdin.fileno(), _MOST_BYTES)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except M5Error as problem:
        print(f"{problem}\n{problem.hint}", file=sys.stderr)
        sys.exit(1)
