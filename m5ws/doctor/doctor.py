"""Checks run in parallel, with one limit of time. A check that hangs does not hold up the program."""

import time
from collections.abc import Callable, Mapping
from multiprocessing import TimeoutError as NoAnswer
from multiprocessing.pool import ThreadPool

import msgspec

from m5ws import secret_gate
from m5ws.errors import M5Error, MissingExtra
from m5ws.records.check import Check
from m5ws.wording.checks import CORRECT, NO_ANSWER, REMEDIES

Probe = Callable[[str], Check]
"""Returns the check of the given name. An M5Error or OSError that it raises becomes the check."""


def examine(probes: Mapping[str, Probe], limit_s: float) -> tuple[Check, ...]:
    """Return the check of each probe, in order. A probe without a result after `limit_s` seconds is broken."""
    until_s = time.monotonic() + limit_s
    # Its threads are daemons, so the program can end while a thread waits.
    pool = ThreadPool(len(probes))
    results = {name: pool.apply_async(_run, (probe, name)) for name, probe in probes.items()}
    checks = list[Check]()
    for name, result in results.items():
        try:
            checks.append(result.get(max(0.0, until_s - time.monotonic())))
        except NoAnswer:
            checks.append(Check(name, "broken", f"no answer in {limit_s:g} s", NO_ANSWER))
    return tuple(map(secret_gate.masked, checks))


def _run(probe: Probe, name: str) -> Check:
    try:
        check = probe(name)
    except (M5Error, OSError) as error:
        hint = error.hint if isinstance(error, M5Error) else ""
        check = Check(name, "missing" if isinstance(error, MissingExtra) else "broken", str(error), hint)
    return check if check.passed or check.remedy else msgspec.structs.replace(check, remedy=REMEDIES.get(name, CORRECT))
