"""`m5ws du`."""

from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made
from tests.support.records import planted


def test_du_lists_the_bytes_of_runs_and_of_the_store(m5: M5, made: Made, home: Repository) -> None:
    done = m5("du")
    assert done.status == 0 and made.run in done.out and "needed by no run" in done.out
    document = m5("du", "--json", "--limit", "1").document
    assert (document["more"], document["runs"][0]["replays"]) == (0, 1) and made.replay not in done.out
    planted.run(home, "7c1d00000009", made.changed)
    document = m5("du", "--json", "--limit", "1").document
    (row,) = document["runs"]
    assert document["more"] == 1 and row["logical_bytes"] == row["unique_bytes"] + row["shared_bytes"]
    assert row["record_bytes"] > 0 and document["size_bytes"] >= row["logical_bytes"]
    assert "1 runs with fewer" in m5("du", "--limit", "1").err
