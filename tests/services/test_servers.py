"""docs/reference/servers.md matches the servers that are installed: each cell is tested with the server."""

import re
from pathlib import Path

import pytest

from tests.conftest import loud_skip
from tests.support.s3.ceph import Ceph, Keys
from tests.support.s3.s3_client import connect
from tests.support.s3.s3_servers import S3Server
from tests.support.s3.server_checks import CHECKS, Server

pytestmark = pytest.mark.services

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "servers.md"
_TABLE = re.compile(r"(<!-- servers: begin -->\n.*?\n.*?\n)(.*?)(<!-- servers: end -->)", re.DOTALL)


def of_ceph(ceph: Ceph) -> Server:
    """Return Ceph with two of its users."""
    owner, other = (ceph.users[name] for name in ("admin", "researcher"))
    return Server(connect(ceph.endpoint, owner), connect(ceph.endpoint, other), other.arn)


def of_moto(endpoint: str) -> Server:
    """Return moto with one user: it tells none apart."""
    return Server(connect(endpoint, Keys("anybody", "anybody", "anything")))


@pytest.fixture
def moto(s3_server: S3Server) -> Server:
    return of_moto(s3_server.endpoint)


def cells(name: str) -> list[str]:
    """Return a row's cells: AWS, Ceph, moto."""
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    (found,) = (row[1:] for row in rows if row[0] == f"| {name}")
    return [cell.removesuffix(" |") for cell in found]


def test_the_page_has_a_row_for_each_check() -> None:
    found = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert found and [line.split(" | ")[0][2:] for line in found[2].splitlines()] == list(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_ceph_behaves_as_documented(ceph: Ceph, name: str) -> None:
    if "version 16.2." not in ceph.version:
        loud_skip(f"the pages describe Ceph 16.2, and this is {ceph.version}")
    assert CHECKS[name](of_ceph(ceph)) == cells(name)[1]


@pytest.mark.parametrize("name", CHECKS)
def test_moto_behaves_as_documented(moto: Server, name: str) -> None:
    assert CHECKS[name](moto) == cells(name)[2]
