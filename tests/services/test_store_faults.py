"""The S3 store over a way that breaks: everything succeeds with verified bytes, or fails with one clear error.

A short sample in ordinary runs; all kinds of faults at all rates in `make soak`, which writes docs/soak.md. By hand:
`PYTHONPATH=. python tests/services/test_store_faults.py --kind stall --rate 0.5` prints seeds and counts.
"""

import argparse
import importlib
import importlib.util
import itertools
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from m5ws.store.interface import ObjectStore
from tests.conftest import loud_skip
from tests.support.campaigns import soak_page
from tests.support.campaigns.campaign_result import Result
from tests.support.campaigns.store_campaign import Campaign, Open
from tests.support.network.fault_plan import KINDS, Counters, Settings
from tests.support.network.proxies import FaultProxy
from tests.support.s3.ceph import Ceph, hold
from tests.support.s3.s3_client import REGION, connect, fresh_bucket

pytestmark = pytest.mark.services

RATES = (0.1, 0.5, 0.9)
SOAK_OPERATIONS = 1000
# The client's stall limit and the proxy's stall. The client must notice a stall before the proxy ends it.
_CLIENT_STALL_S = 1.0
_PROXY_STALL_S = 120.0


def opener(ceph: Ceph, endpoint: str, *, budget_s: float) -> Open:
    """Return a function that opens the S3 store of a new bucket through `endpoint`, each time as another client."""
    bucket = fresh_bucket(connect(ceph.endpoint, ceph.users["admin"]))
    url = f"s3://{bucket}/team/store?endpoint_url={endpoint}&region={REGION}&stall_s={_CLIENT_STALL_S}"
    location: Any = importlib.import_module("m5ws.store.s3.location")
    retry: Any = importlib.import_module("m5ws.store.s3.retry")
    s3: Any = importlib.import_module("m5ws.store.s3.store")
    # Pauses are short, because the proxy needs none. The number of attempts is the same as with long ones.
    patience = retry.RetryPolicy(budget_s=budget_s, contact_s=budget_s, first_s=0.01, longest_s=0.1)

    def opened() -> ObjectStore:
        store: ObjectStore = s3.S3Store(location.parse(url), patience)
        return store

    return opened


@contextmanager
def credentials(ceph: Ceph) -> Iterator[None]:
    """Sign as the admin, with nothing of this machine's own configuration."""
    keys = ceph.users["admin"]
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", keys.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_key)
        yield


def rates_of(kind: str, rate: float) -> dict[str, float]:
    """Return the proxy's rates: all of one kind, or shared among all ("mixed")."""
    return {name: rate / len(KINDS) for name in KINDS} if kind == "mixed" else {kind: rate}


def campaign(
    ceph: Ceph,
    kind: str,
    rate: float,
    *,
    operations: int,
    seed: int,
    workers: int = 8,
    budget_s: float = 30.0,
    drip_bytes_s: int = 1024,
) -> tuple[Result, Counters]:
    """Run one campaign. Return the counts of its clients and its proxy."""
    with credentials(ceph), FaultProxy(f"127.0.0.1:{ceph.port}") as proxy:
        opened = opener(ceph, proxy.endpoint, budget_s=budget_s)
        proxy.change(Settings(rates=rates_of(kind, rate), seed=seed, stall_s=_PROXY_STALL_S, drip_bytes_s=drip_bytes_s))
        seen: list[Counters] = []

        def quiet() -> None:
            seen.append(proxy.counters)
            proxy.quiet()

        misleading = kind in ("corrupt_response", "mixed")
        one = Campaign(opened, operations=operations, seed=seed, workers=workers, misleading=misleading)
        return one.run(quiet=quiet), seen[0]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Ceph:
    if importlib.util.find_spec("m5ws.store.s3.store") is None:
        loud_skip("the S3 store under faults: there is no m5ws.store.s3.store")
    found: Ceph = request.getfixturevalue("ceph")
    return found


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_a_sample_of_faults_leaves_nothing_wrong(server: Ceph, rate: float) -> None:
    # A drip here is as fast as the client accepts. A slower one takes a minute until the client gives up.
    result, seen = campaign(server, "mixed", rate, operations=100, seed=1, budget_s=20, drip_bytes_s=1 << 15)
    assert result.violations == [], result.line()
    assert result.succeeded and sum(result.by_operation.values()) == 100
    # A bit flip that met no body has nothing to work on, and counts as met.
    met = seen.injected.keys() | seen.pointless.keys()
    assert met == (KINDS.keys() if rate > 0.3 else met) and bool(met) == bool(rate), seen
    if not rate:
        assert result.failed == {}, result.line()


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[tuple[str, float], str]]:
    """Lines of the table, which is written when all are there."""
    lines: dict[tuple[str, float], str] = {}
    yield lines
    if len(lines) == 1 + len(KINDS) * len(RATES):
        write_table([lines[at] for at in sorted(lines)])


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(("kind", "rate"), [("none", 0.0), *itertools.product(KINDS, RATES)])
def test_a_thousand_operations_of_each_kind_and_rate(
    server: Ceph, rows: dict[tuple[str, float], str], kind: str, rate: float
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    result, seen = campaign(
        server, "mixed" if kind == "none" else kind, rate, operations=SOAK_OPERATIONS, seed=seed, workers=32
    )
    print(f"{kind} at {rate:.0%}: {result.line()}; {seen}")
    rows[kind, rate] = row(kind, rate, result, seen)
    assert result.violations == [], result.line()


HEADER = (
    "| fault | of requests | seed | operations | requests | faults | succeeded | failed, clearly | misled |"
    " wrong | slowest |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(kind: str, rate: float, result: Result, seen: Counters) -> str:
    """Return a campaign's line of the table."""
    failed = sum(result.failed.values())
    cells = (kind, f"{rate:.0%}", result.seed, result.operations, seen.requests, sum(seen.injected.values()))
    counts = (result.succeeded, failed, result.misled, len(result.violations), f"{result.slowest_s:.1f} s")
    return "| " + " | ".join(map(str, (*cells, *counts))) + " |"


def write_table(lines: list[str]) -> None:
    """Put the table into its place on the page."""
    soak_page.write("faults", [HEADER, *lines])


def main() -> None:
    """Run campaigns by hand."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kind", choices=[*KINDS, "mixed"], action="append")
    parser.add_argument("--rate", type=float, action="append")
    parser.add_argument("--operations", type=int, default=SOAK_OPERATIONS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--budget-s", type=float, default=30.0)
    given = parser.parse_args()
    print(HEADER)
    with (
        tempfile.TemporaryDirectory(prefix="m5ws-faults-", ignore_cleanup_errors=True) as directory,
        hold(Path(directory)) as ceph,
    ):
        for kind, rate in itertools.product(given.kind or list(KINDS), given.rate or list(RATES)):
            result, seen = campaign(
                ceph,
                kind,
                rate,
                operations=given.operations,
                seed=given.seed,
                workers=given.workers,
                budget_s=given.budget_s,
            )
            print(row(kind, rate, result, seen), flush=True)
            for line in (result.line(), str(seen.injected), *result.violations):
                print(f"    {line.splitlines()[0]}")


if __name__ == "__main__":
    main()
