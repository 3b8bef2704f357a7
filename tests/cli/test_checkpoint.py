"""`m5ws checkpoint`: lists, details, comparisons, exports, and errors."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from m5ws.records import codec
from m5ws.records.checkpoint import Content, Shard, Tensor
from m5ws.repository.objects import write_parts
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made
from tests.support.records import contents, planted

_BASE = [float(number) for number in range(400_000)]
_PLAIN: dict[str, Any] = {"generators": {"torch": b"seed" * 100}, "feed": {"epoch": 1, "loader": {"given": 7}}}


def _tensor(repo: Repository, name: str, values: list[float]) -> Tensor:
    data = struct.pack(f"<{len(values)}f", *values)
    (parts,) = write_parts(repo.objects, [(name, data)]).values()
    shard = Shard(offsets=(0, 0), sizes=(2, len(values) // 2), parts=parts)
    return Tensor(name=name, dtype="float32", shape=(2, len(values) // 2), shards=(shard,))


def _publish(
    repo: Repository, made: Made, step: int, moved: list[float], state: dict[str, Any], attempt: int = 1
) -> str:
    fingerprints = {"model.fixed": "0" * 16, "model.moved": f"{hash(tuple(map(str, moved))) % 2**64:016x}@0-1"}
    common = {"step": 0, "scheduler": {"last_epoch": 3}}
    content = contents.content(
        repo.objects,
        fingerprints=planted.whole(repo.objects, codec.encode_plain(fingerprints)),
        tensors=(_tensor(repo, "model.fixed", _BASE), _tensor(repo, "model.moved", moved)),
        common=planted.whole(repo.objects, codec.encode_plain(common)),
        ranks=(planted.whole(repo.objects, codec.encode_plain(state)),),
    )
    return planted.checkpoint(repo, made.run, step, content, attempt=attempt, ledger={"0": "a" * 64})


@pytest.fixture
def two(home: Repository, made: Made) -> tuple[str, str]:
    """Checkpoints 4 and 6, which differ in three elements and a generator; `made` has an empty checkpoint 3."""
    moved = [0.5, 0.0, *([1.0] * 398)]
    later = [*moved]
    later[1], later[250], later[399] = -0.0, 3.0, 1.5
    state = {**_PLAIN, "generators": {"torch": b"deed" * 100}}
    return _publish(home, made, 4, moved, _PLAIN), _publish(home, made, 6, later, state)


def test_ls_shows_the_new_bytes_of_each_checkpoint(m5: M5, two: tuple[str, str], made: Made) -> None:
    assert m5("checkpoint", "keep", f"{made.run}@4").status == 0
    rows = {row["step"]: row for row in m5("checkpoint", "ls", made.run, "--json").document["checkpoints"]}
    assert list(rows) == [3, 4, 6]
    assert rows[3]["size_bytes"] == 0 and rows[3]["when_s"] == 1004.0, "the time is the ledger's, not the store's"
    assert rows[4]["new_bytes"] == rows[4]["size_bytes"] > 1_600_000
    assert rows[6]["size_bytes"] == rows[4]["size_bytes"]
    assert rows[6]["new_bytes"] < 4000, "the tensor that did not change costs nothing"
    assert (rows[4]["kept"], rows[6]["kept"], rows[6]["digest"]) == (True, False, two[1])
    table = m5("checkpoint", "ls", made.run).out.splitlines()
    assert table[0].split() == ["STEP", "ATTEMPT", "WHEN", "FORMAT", "RANKS", "SIZE", "NEW", "NOTE"]
    assert table[2].endswith("kept")


def test_a_checkpoint_that_does_not_count_is_marked_and_never_used(
    m5: M5, two: tuple[str, str], made: Made, home: Repository, tmp_path: Path
) -> None:
    inherits = tuple(checkpoints.name(step, 1) for step in (3, 4))
    planted.begin(home, made.run, 2, inherits=inherits)
    rows = {row["step"]: row["counts"] for row in m5("checkpoint", "ls", made.run, "--json").document["checkpoints"]}
    assert rows == {3: True, 4: True, 6: False}
    assert "not counted" in m5("checkpoint", "ls", made.run).out
    assert m5("checkpoint", "show", made.run, "--json").document["step"] == 4
    assert m5("checkpoint", "keep", f"{made.run}@6").status == 2
    assert "no: a newer attempt" in m5("checkpoint", "show", f"{made.run}@6-1").out


def test_ls_lists_other_checkpoints_beside_a_damaged_checkpoint(
    m5: M5, two: tuple[str, str], made: Made, place: Path
) -> None:
    (place / ".m5ws" / "store" / "objects" / two[0][:2] / two[0]).unlink()
    rows = {row["step"]: row["problem"] for row in m5("checkpoint", "ls", made.run, "--json").document["checkpoints"]}
    assert rows[6] is None and "not in the store" in rows[4]


def test_show_prints_the_origin_tensors_and_state_of_a_checkpoint(m5: M5, two: tuple[str, str], made: Made) -> None:
    done = m5("checkpoint", "show", f"{made.run}@6")
    assert done.status == 0
    for expected in (made.snapshot, two[1], "dcp/1, 1 ranks", "model.moved  float32  2×200", "1.53 MiB", "a" * 64,
                     "generators.torch", "400 bytes", "feed.loader.given", "scheduler.last_epoch"):  # fmt: skip
        assert expected in done.out
    shown = m5("checkpoint", "show", two[1], "--json").document
    assert (shown["run"], shown["step"], shown["attempt"], shown["ledger"]) == (made.run, 6, 1, {"0": "a" * 64})
    assert [row["shape"] for row in shown["tensors"]] == [[2, 200_000], [2, 200]]
    assert {"where": "rank 0", "path": "feed.loader.given", "value": "7"} in shown["state"]


def test_state_that_m5ws_never_wrote_is_an_error_and_no_bug(m5: M5, made: Made, home: Repository) -> None:
    _publish(home, made, 8, _BASE[:4], {"feed": {"!": "tuple"}, "state.own": {"!": "int"}})
    done = m5("checkpoint", "show", made.run)
    assert done.status == 3 and "plain state" in done.err


def test_diff_names_the_tensors_and_the_state_that_differ(m5: M5, two: tuple[str, str], made: Made) -> None:
    done = m5("checkpoint", "diff", f"{made.run}@4", f"{made.run}@6")
    assert done.status == 1
    assert "model.moved\n  float32 [2, 200], " in done.out
    assert "model.fixed" not in done.out and "1 tensors differ, 1 are equal" in done.out
    assert "state of rank 0\n  generators.torch: 400 bytes" in done.out
    found = m5("checkpoint", "diff", f"{made.run}@4", f"{made.run}@6", "--json").document
    (change,) = found["tensors"]
    assert change["name"] == "model.moved" and change["a"] != change["b"] and "@" not in change["a"] + change["b"]
    assert (found["equal"], found["tensors_equal"]) == (False, 1)
    assert [(one["where"], one["path"]) for one in found["state"]] == [("rank 0", "generators.torch")]


def test_diff_names_a_tensor_that_one_checkpoint_lacks_or_has_in_another_shape(
    m5: M5, two: tuple[str, str], made: Made, home: Repository
) -> None:
    fingerprints = planted.whole(home.objects, codec.encode_plain({"model.moved": "1" * 16}))
    moved = (_tensor(home, "model.moved", [1.0, 2.0]),)
    planted.checkpoint(
        home, made.run, 9, contents.content(home.objects, world=2, tensors=moved, fingerprints=fingerprints)
    )
    found = m5("checkpoint", "diff", f"{made.run}@6", made.run, "--json").document
    changes = {change["name"]: (change["a"], change["b"]) for change in found["tensors"]}
    assert changes["model.fixed"] == (f"float32 [2, 200000], {'0' * 16}", None)
    assert changes["model.moved"][1] == f"float32 [2, 1], {'1' * 16}"
    assert any("state of single ranks is not compared" in note for note in found["notes"])


def test_a_checkpoint_without_fingerprints_is_an_error(
    m5: M5, two: tuple[str, str], made: Made, home: Repository
) -> None:
    common = planted.whole(home.objects, codec.encode_plain({"step": 9}))
    planted.checkpoint(home, made.run, 9, Content(format="dcp/1", world=1, common=common))
    done = m5("checkpoint", "diff", f"{made.run}@6", made.run)
    assert done.status == 3 and "fingerprints" in done.err


def test_a_dry_run_writes_nothing(m5: M5, two: tuple[str, str], made: Made, tmp_path: Path) -> None:
    target = tmp_path / "out"
    done = m5("checkpoint", "export", made.run, "--format", "hf", target, "--dry-run")
    assert done.status == 0 and "would be written" in done.out and "model.safetensors  1.53 MiB" in done.out
    assert not target.exists()
    planned = m5("checkpoint", "export", made.run, "--format", "hf", target, "--json").document
    assert planned["written"] is True and sorted(planned["files"]) == sorted(os.listdir(target))
    assert any("config.json" in line for line in planned["left_out"])


def test_safetensors_of_a_torch_checkpoint_need_no_torch(two: tuple[str, str], made: Made, place: Path) -> None:
    blind = "import sys; sys.modules['torch'] = None; from m5ws.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ("-C", str(place), "checkpoint", "export", made.run, "--format", "safetensors", str(place / "safetensors"))
    subprocess.run([sys.executable, "-c", blind, *words], capture_output=True, check=True)
    data = (place / "safetensors" / "checkpoint.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["model.moved"]["shape"] == [2, 200]
