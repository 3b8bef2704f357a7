"""A scripted S3 server for tests of the S3 store, with accepted credentials."""

from collections.abc import Iterator

import pytest

from m5ws.store.s3.location import parse
from m5ws.store.s3.retry import RetryPolicy
from m5ws.store.s3.store import S3Store
from tests.support.s3.s3_servers import descriptions_read_once
from tests.support.s3.scripted_s3 import ScriptedS3


@pytest.fixture
def at_once() -> RetryPolicy:
    """Pauses without length: a scripted server needs no rest."""
    return RetryPolicy(budget_s=60.0, first_s=0.0, longest_s=0.0)


@pytest.fixture(scope="package")
def quick_clients() -> Iterator[None]:
    with descriptions_read_once():
        yield


@pytest.fixture
def server(s3_environment: None, quick_clients: None) -> Iterator[ScriptedS3]:
    with ScriptedS3() as running:
        yield running


@pytest.fixture
def store(server: ScriptedS3, at_once: RetryPolicy) -> S3Store:
    return S3Store(parse(server.url()), at_once)
