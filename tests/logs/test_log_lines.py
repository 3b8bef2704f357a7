"""Logs of any size and content are read with bounded memory, and secrets in them stay masked."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.logs import log_lines
from m5ws.logs.log_lines import LogReader
from m5ws.logs.parts import LogParts
from m5ws.logs.reading import Source
from m5ws.repository.repository import Repository

_RUN = "7c1d0a9b8e2f"
_KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEA7bq\n" * 40 + "-----END RSA PRIVATE KEY-----\n"
_READ = """
import resource, sys
from pathlib import Path
from m5ws.logs.log_lines import LogReader
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lines = LogReader(Path(sys.argv[1])).read(last=True)
print(lines[0], lines[-1], sum(map(len, lines)) < 5 * 2**20)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_progress_bar_is_its_last_state(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    bar = "".join(f"\r{number}/1000000" for number in range(1_000_000))
    log.write_text(f"begin\n{bar}\nend\n\x1b[31mred\x1b[0m\n")
    lines = [line for block in LogReader(log).read_all() for line in block]
    assert lines == ["begin", "999999/1000000", "end", "red"]
    assert LogReader(log).read()[-3:] == lines[-3:]
    assert log_lines.read_end(log, 2)[1] == ["end", "red"]


@pytest.mark.parametrize("content", [b"x" * 10**8, b"", b"\xff\x1b[3\n" * 5 * 10**6], ids=["line", "10 GiB", "bad"])
def test_hostile_content_is_read_in_bounded_memory(tmp_path: Path, content: bytes) -> None:
    log = tmp_path / "rank-0.log"
    with log.open("wb") as file:
        file.write(b"first\n" + content)
        if not content:  # A file with a hole, which is read as zeros.
            file.truncate(10 * 2**30)
            file.seek(0, 2)
        file.write(b"\nlast\n")
    done = subprocess.run([sys.executable, "-c", _READ, str(log)], capture_output=True, text=True, check=True)
    shown, memory_mib = done.stdout.splitlines()
    assert shown == "first last True"
    assert int(memory_mib) < 256
    assert log_lines.read_end(log, 3)[1][-1] == "last"


@given(
    st.lists(st.sampled_from([b"a\n", b"\n", b"\r", b"bc", _KEY.encode(), b"\xff\n", b"\x1b[1m\n"])), st.integers(0, 9)
)
def test_the_end_of_a_log_has_its_last_lines_and_their_place(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], most_lines: int
) -> None:
    log = tmp_path_factory.getbasetemp() / "log"
    log.write_bytes(text := b"".join(pieces))
    place, lines = log_lines.read_end(log, most_lines + 1)
    every = text.removesuffix(b"\n").split(b"\n") if text else []
    assert log_lines.count_lines(log, place) + len(lines) == len(every)
    assert len(lines) == min(len(every), most_lines + 1)


@pytest.mark.parametrize("before", range(0, 3_000, 250))
def test_a_key_at_the_edge_of_a_flood_stays_masked(tmp_path: Path, before: int) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("x\n" * (before // 2) + _KEY * 400 + "y\n" * 500)
    lines = LogReader(log).read(last=True, most_bytes=200_000)
    assert any("bytes of this log are left out" in line for line in lines)
    assert not [line for line in lines if "MIIE" in line]
    assert lines[-1] == "y"


def test_a_flood_is_stored_with_its_ends(repo: Repository, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rank-0.log"
    log.parent.mkdir()
    log.write_text("begin\n" + "a" * 9_000 + "\n" + "flood of lines\n" * 10**6 + "end\n")
    LogParts(repo, _RUN, 1, 0, log.parent).store(last=True)
    ((name, lines),) = Source(repo, _RUN, 1, tmp_path / "nowhere").read(last=True)
    assert (name, lines[0], lines[-1]) == ("0", "begin", "end")
    assert len(lines) == 2_001 and max(map(len, lines)) < 4_200
    (end,) = Source(repo, _RUN, 1, tmp_path / "nowhere").ends(10).values()
    assert list(end.lines) == ["flood of lines"] * 9 + ["end"] and end.lines_before == 1_991
    assert sum(stat.size_bytes for stat in repo.store.list("logs/")) < 5_000
