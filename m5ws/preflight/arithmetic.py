"""Arithmetic with known results on this machine, judged by mathematics and by the records of machines of its kind.

Exact results are the same on all machines. Rounded results are the same on machines of one kind: the digest of most
hosts counts, and of two equal numbers of hosts the digest that was recorded first.
"""

import importlib.util
import os
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import blake3
import msgspec

from m5ws.errors import M5Error, MissingExtra
from m5ws.records.check import Check
from m5ws.records.known import Arithmetic, Known
from m5ws.repository.references import known
from m5ws.repository.repository import Repository
from m5ws.wording.lists import count, list_names

EXACT = {
    "cpu": "0370c49178a792a1f8008028cf56524e588a00ae959f24191b0d5bf18feea36d",
    "gpu": "594ba2e3cd2e0cc2971ff5b96eba35da28cdf8a403c3233aad4530ae996e445c",
}
"""Digests of the exact results, which integer arithmetic gives too (tests/preflight/test_arithmetic.py)."""
_PROGRAM = ("-P", "-m", "m5ws.training.tools.known_digest")
_LIMIT_S = 300.0
_LEAST_RECORDS, _SLOW = 5, 0.7
"""A rate below 70 % of the median is slow, if as many records of the kind exist."""
_NAMED = 8
_DRAIN = "Drain this node, and test its processors and memory."
_THIRD = "Run `m5ws preflight` on a third machine of this kind, and drain the machine that is alone."


class NotComputed(M5Error):
    """The program with the arithmetic failed."""

    hint = "Run `python -m m5ws.training.tools.known_digest` on this machine, and correct the error that it prints."


def measure(python: str, environment: Mapping[str, str], seconds: float) -> Arithmetic:
    """Compute on each processor and GPU of this machine. Raises MissingExtra, NotComputed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("arithmetic with known results", "train")
    words = (python, *_PROGRAM, "--seconds", str(seconds))
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise NotComputed(f"the arithmetic did not end in {_LIMIT_S:.0f} s") from error
        finally:
            if process.returncode is None:
                # The ranks are processes of their own, and would keep the GPUs.
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise NotComputed(f"the arithmetic ended with {process.returncode}: {lines[-1] if lines else 'no output'}")
    return msgspec.json.decode(output, type=Arithmetic)


def kind_of(result: Arithmetic) -> str:
    """Return the name of a kind of machine in the store: a digest of its facts."""
    return blake3.blake3(msgspec.json.encode(dict(sorted(result.kind.items())))).hexdigest()[:32]


def judge(repo: Repository, result: Arithmetic) -> tuple[Check, ...]:
    """Return the checks of a result, and publish its digests and rates if the machine agrees with itself."""
    kind = kind_of(result)
    faults, earlier = tuple(_own_faults(result)), known.of_kind(repo, kind)
    digests = {place.place.partition(" ")[0]: place.rounded[0] for place in result.computed}
    remedy = _DRAIN
    if not faults:
        faults, remedy = tuple(_differences(digests, result.host, earlier)), _THIRD
        now_s = repo.store.now()
        own = Known(
            kind=kind, host=result.host, facts=result.kind, digests=digests, rates=result.rates, created_s=now_s
        )
        known.publish(repo, own)
    hosts = {record.host for record in earlier} - {result.host}
    places = ", ".join(each.place for each in result.computed[:_NAMED])
    detail = f"exact, and equal on {places} and on {count(len(hosts), 'other host')} of kind {kind[:8]}"
    sums = [f"rank {rank}: {count(wrong, 'wrong value')}" for rank, wrong in result.wrong_sums.items()]
    checks = (
        _check("arithmetic", faults, detail, remedy),
        _check("all-reduce", sums, f"{count(result.ranks, 'rank')} have the exact sum", _DRAIN),
    )
    return (*checks, _check_rates(result, earlier))


def _check(name: str, faults: Sequence[str], detail: str, remedy: str) -> Check:
    return Check(name, "failed", list_names(faults, "; ", _NAMED), remedy) if faults else Check(name, "ok", detail)


def _own_faults(result: Arithmetic) -> Iterator[str]:
    """Yield the faults of places that differ from themselves, from mathematics, or from most places of the machine."""
    rounded = Counter((each.place.partition(" ")[0], each.rounded) for each in result.computed)
    for each in result.computed:
        unit, where = each.place.partition(" ")[0], f"{each.place} of {result.host}"
        most = max((seen for seen in rounded if seen[0] == unit), key=lambda seen: rounded[seen])
        if len(each.exact) > 1 or len(each.rounded) > 1:
            yield f"{where} gave different bits in {count(each.repetitions, 'equal computation')}"
        elif each.exact[0] != EXACT[unit]:
            yield f"{where} computed a wrong result"
        elif each.rounded != most[1]:
            yield f"{where} computed other bits than the other places of the machine"


def _differences(digests: Mapping[str, str], host: str, earlier: Sequence[Known]) -> Iterator[str]:
    """Yield the differences of a machine's digests from the digests of its kind."""
    newest = {record.host: record for record in earlier if record.host != host}
    for unit, own in digests.items():
        first = next((record for record in earlier if unit in record.digests), None)
        if first is None:
            continue
        votes = Counter((own, *(record.digests[unit] for record in newest.values() if unit in record.digests)))
        most = max(votes, key=lambda digest: (votes[digest], digest == first.digests[unit]))
        if own == most:
            continue
        agreeing = [record.host for record in newest.values() if record.digests.get(unit) == most]
        when = time.strftime("%Y-%m-%d", time.gmtime(first.created_s))
        yield (
            f"{host} computes other bits ({unit}) than {list_names(agreeing, ', ', _NAMED)}, of the same kind; "
            f"{first.host} recorded the first result of this kind on {when}"
        )


def _check_rates(result: Arithmetic, earlier: Sequence[Known]) -> Check:
    """Compare the rates with the median of the newest records of the kind."""
    texts, slow = list[str](), list[str]()
    for name, rate in sorted(result.rates.items()):
        before = [record.rates[name] for record in earlier if name in record.rates]
        text = f"{name} {rate / 1e9:.1f} GB/s"
        if len(before) >= _LEAST_RECORDS:
            median = statistics.median(before)
            text += f" (median {median / 1e9:.1f})"
            slow += [name] if rate < _SLOW * median else []
        texts.append(text)
    remedy = "End other programs and repeat. A rate that stays low is a fault of memory, disk or links."
    return Check("bandwidth", "warning" if slow else "ok", ", ".join(texts), remedy if slow else "")
