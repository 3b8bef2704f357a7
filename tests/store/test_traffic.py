"""Bytes that processes count to one file: none is lost or counted twice, also of processes that are killed."""

import multiprocessing
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from m5ws.cli.terminal import data
from m5ws.library.crossings import Crossing
from m5ws.records.ledger import Moved
from m5ws.store.traffic import Traffic

_ROUTES = (("eu-west-1", "us-east-1"), ("eu-west-1", None), (None, None))


def _requests(seed: int) -> list[tuple[str | None, str | None, int, int]]:
    draw = random.Random(seed)
    return [(*draw.choice(_ROUTES), draw.randrange(10**6), draw.randrange(10**6)) for _ in range(200)]


def _work(file: Path, seed: int) -> None:
    traffic, requests = Traffic(), _requests(seed)

    def add(part: list[tuple[str | None, str | None, int, int]]) -> None:
        for bucket, here, read, written in part:
            traffic.add(bucket, here, read=read, written=written)

    # Some requests come before the file is known.
    add(requests[:50])
    traffic.count_to(file)
    threads = [threading.Thread(target=add, args=(requests[start::3],)) for start in (50, 51, 52)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_file_has_each_byte_of_several_killed_processes_once(tmp_path: Path) -> None:
    file, seeds = tmp_path / "traffic", range(4)
    processes = [multiprocessing.get_context("fork").Process(target=_work, args=(file, seed)) for seed in seeds]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    expected: Counter[tuple[str, str, str]] = Counter()
    for bucket, here, read, written in (each for seed in seeds for each in _requests(seed)):
        expected[bucket or "-", here or "-", "read"] += read
        expected[bucket or "-", here or "-", "written"] += written
    counted: Counter[tuple[str, str, str]] = Counter()
    for line in file.read_text().splitlines():
        region, place, *sizes = line.split()
        for kind, size_bytes in zip(("read", "written"), sizes, strict=True):
            counted[region, place, kind] += int(size_bytes)
    assert counted == expected


def test_bytes_are_kept_until_there_is_a_file_and_after_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    traffic = Traffic()
    traffic.count_to(tmp_path / "absent" / "traffic")
    traffic.add("a", "b", read=3)
    traffic.count_to(None)
    traffic.add("a", "b", written=4)
    traffic.count_to(tmp_path / "traffic")
    assert (tmp_path / "traffic").read_text() == "a b 3 4\n"


@pytest.mark.parametrize(
    ("crossing", "parts"),
    [
        (Crossing(region="a", here=None), ["set region in [clusters.cloud]"]),
        (Crossing(region=None, here="b"), ["the region of the store is unknown"]),
        (Crossing(region="b", here="b"), []),
        (Crossing(region="a", here="b", snapshot_bytes=2048), ["2 KiB of the snapshot", "an unknown number of bytes"]),
        (
            Crossing(region="a", here="b", resume_bytes=1024, save_bytes=1024, data={"d": ("c", 5), "e": (None, 6)}),
            [
                "read 1 KiB of a checkpoint",
                "each checkpoint writes 1 KiB",
                "d: 5 B cross from c",
                "an unknown region to b",
            ],
        ),
        (Crossing(region="b", here="b", data={"d": ("b", 5)}), []),
    ],
)
def test_lines_before_a_job_name_the_bytes_that_cross_and_unknown_regions(crossing: Crossing, parts: list[str]) -> None:
    text = "\n".join(data.describe_crossing(crossing, "cloud"))
    assert all(part in text for part in parts) and bool(text) == bool(parts)


def test_bytes_inside_a_region_do_not_cross() -> None:
    inside = Moved(region="a", here="a", read_bytes=1)
    assert data.describe_moved([inside]) is None
    between = Moved(region="a", here="b", read_bytes=1, written_bytes=2)
    unknown = Moved(region="a", read_bytes=3)
    text = data.describe_moved([inside, between, unknown])
    assert text == "1 B read, 2 B written between a and b; 3 B read, 0 B written between a and an unknown region"
