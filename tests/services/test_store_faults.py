"""The S3 store over a way that breaks: everything succeeds with verified bytes, or fails with one clear error.

A short sample in ordinary runs; all kinds of faults at all rates in `make soak`, which writes docs/soak.md.
"""

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from m5ws.store.s3.location import parse
from m5ws.store.s3.retry import RetryPolicy
from m5ws.store.s3.store import S3Store
from tests.support.campaigns import soak_page
from tests.support.campaigns.campaign_result import Result
from tests.support.campaigns.store_campaign import Campaign, Open
from tests.support.network.fault_plan import KINDS, Counters, Settings
from tests.support.network.proxies import FaultProxy
from tests.support.s3.ceph import Ceph
from tests.support.s3.s3_client import REGION, connect, fresh_bucket

pytestmark = pytest.mark.services

RATES = (0.1, 0.5, 0.9)
SOAK_OPERATIONS = 1000
_HEADER = (
    (
        "| fault | of requests | seed | operations | requests | faults | succeeded | failed, clearly | misled | wrong |"
        " slowest |"
    ),
    "|---|---|---|---|---|---|---|---|---|---|---|",
)
# The client's stall limit and the proxy's stall. The client must notice a stall before the proxy ends it.
_CLIENT_STALL_S = 1.0
_PROXY_STALL_S = 120.0


def opener(ceph: Ceph, endpoint: str, *, budget_s: float) -> Open:
    """Return a function that opens the S3 store of a new bucket through `endpoint`, each time as another client."""
    bucket = fresh_bucket(connect(ceph.endpoint, ceph.users["admin"]))
    url = f"s3://{bucket}/team/store?endpoint_url={endpoint}&region={REGION}&stall_s={_CLIENT_STALL_S}"
    # Pauses are short, because the proxy needs none. The number of attempts is the same as with long pauses.
    patience = RetryPolicy(budget_s=budget_s, contact_s=budget_s, first_s=0.01, longest_s=0.1)
    return lambda: S3Store(parse(url), patience)


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


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_a_sample_of_faults_causes_no_violation(ceph: Ceph, rate: float) -> None:
    # A drip here is as fast as the client accepts. A slower drip takes a minute until the client gives up.
    result, seen = campaign(ceph, "mixed", rate, operations=100, seed=1, budget_s=20, drip_bytes_s=1 << 15)
    assert result.violations == [], result.line()
    assert result.succeeded and sum(result.by_operation.values()) == 100
    # A bit flip that met no body has nothing to work on, and counts as met.
    met = seen.injected.keys() | seen.pointless.keys()
    assert met == (KINDS.keys() if rate > 0.3 else met) and bool(met) == bool(rate), seen
    if not rate:
        assert result.failed == {}, result.line()


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(("kind", "rate"), [("none", 0.0), *itertools.product(KINDS, RATES)])
def test_operations_with_each_kind_and_rate_of_faults_cause_no_violation(ceph: Ceph, kind: str, rate: float) -> None:
    seed = random.SystemRandom().randrange(10**6)
    result, seen = campaign(
        ceph, "mixed" if kind == "none" else kind, rate, operations=SOAK_OPERATIONS, seed=seed, workers=32
    )
    print(f"{kind} at {rate:.0%}: {result.line()}; {seen}")
    soak_page.put("faults", _HEADER, row(kind, rate, result, seen), cells=2)
    assert result.violations == [], result.line()


def row(kind: str, rate: float, result: Result, seen: Counters) -> str:
    """Return a campaign's line of the table."""
    failed = sum(result.failed.values())
    cells = (kind, f"{rate:.0%}", result.seed, result.operations, seen.requests, sum(seen.injected.values()))
    counts = (result.succeeded, failed, result.misled, len(result.violations), f"{result.slowest_s:.1f} s")
    return "| " + " | ".join(map(str, (*cells, *counts))) + " |"
