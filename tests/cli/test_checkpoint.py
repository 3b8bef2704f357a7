"""`m5ws checkpoint`: lists, details, comparisons, exports, and errors."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from m5ws.errors import MissingExtra
from m5ws.records import codec
from m5ws.records.checkpoint import Content, Shard, Tensor
from m5ws.repository.buffers import write_parts
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made
from tests.support.records import planted

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
    content = Content(
        format="dcp/1",
        world=1,
        tensors=(_tensor(repo, "model.fixed", _BASE), _tensor(repo, "model.moved", moved)),
        common=planted.whole(repo.objects, codec.encode_plain({"step": 0, "scheduler": {"last_epoch": 3}})),
        ranks=(planted.whole(repo.objects, codec.encode_plain(state)),),
    )
    return planted.checkpoint(repo, made.run, step, content, attempt=attempt, ledger={"0": "a" * 64})


@pytest.fixture
def two(home: Repository, made: Made) -> tuple[str, str]:
    """Checkpoints after steps 4 and 6 that differ in three elements and a generator; `made` has an empty one at 3."""
    moved = [0.5, 0.0, *([1.0] * 398)]
    later = [*moved]
    later[1], later[250], later[399] = -0.0, 3.0, 1.5
    state = {**_PLAIN, "generators": {"torch": b"deed" * 100}}
    return _publish(home, made, 4, moved, _PLAIN), _publish(home, made, 6, later, state)


def test_ls_says_what_each_added_to_the_store(m5: M5, two: tuple[str, str], made: Made) -> None:
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


def test_one_that_does_not_count_is_listed_so_and_nothing_uses_it(
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


def test_damage_hides_no_other(m5: M5, two: tuple[str, str], made: Made, place: Path) -> None:
    (place / ".m5ws" / "store" / "objects" / two[0][:2] / two[0]).unlink()
    rows = {row["step"]: row["problem"] for row in m5("checkpoint", "ls", made.run, "--json").document["checkpoints"]}
    assert rows[6] is None and "not in the store" in rows[4]


def test_show_says_who_made_it_and_what_is_in_it(m5: M5, two: tuple[str, str], made: Made) -> None:
    done = m5("checkpoint", "show", f"{made.run}@6")
    assert done.status == 0
    for expected in (made.snapshot, two[1], "dcp/1, 1 ranks", "model.moved  float32  2×200", "1.53 MiB", "a" * 64,
                     "generators.torch", "400 bytes", "feed.loader.given", "scheduler.last_epoch"):  # fmt: skip
        assert expected in done.out
    shown = m5("checkpoint", "show", two[1], "--json").document
    assert (shown["run"], shown["step"], shown["attempt"], shown["ledger"]) == (made.run, 6, 1, {"0": "a" * 64})
    assert [row["shape"] for row in shown["tensors"]] == [[2, 200_000], [2, 200]]
    assert {"where": "rank 0", "path": "feed.loader.given", "value": "7"} in shown["state"]


def test_show_shortens_a_long_state_unless_asked(m5: M5, made: Made, home: Repository) -> None:
    _publish(home, made, 8, _BASE[:4], {"feed": {f"value{number:03d}": number for number in range(100)}})
    assert "76 more (--state lists them)" in m5("checkpoint", "show", made.run).out
    assert "value099" in m5("checkpoint", "show", made.run, "--state").out


def test_state_that_m5ws_never_wrote_is_an_error_and_no_bug(m5: M5, made: Made, home: Repository) -> None:
    _publish(home, made, 8, _BASE[:4], {"feed": {"!": "tuple"}, "state.own": {"!": "int"}})
    done = m5("checkpoint", "show", made.run)
    assert done.status == 3 and "plain state" in done.err


def test_diff_says_how_much_and_where(m5: M5, two: tuple[str, str], made: Made) -> None:
    done = m5("checkpoint", "diff", f"{made.run}@4", f"{made.run}@6")
    assert done.status == 1
    assert "3 of 400 elements, by at most 2, relatively 0.666667, 1 in the sign of zero" in done.out
    assert "first at [0, 1]: 0.0 (0x00000000) → -0.0 (0x80000000)" in done.out
    assert "model.fixed" not in done.out and "1 tensors differ, 1 are equal" in done.out
    assert "state of rank 0\n  generators.torch: 400 bytes" in done.out
    found = m5("checkpoint", "diff", f"{made.run}@4", f"{made.run}@6", "--json").document
    (change,) = found["tensors"]
    assert (change["name"], change["kind"], change["first_index"]) == ("model.moved", "bits", [0, 1])
    assert change["elements"]["max_absolute"] == (2.0).hex()
    assert (found["equal"], found["bytes_read"], found["bytes_unread"]) == (False, 1600, 1_600_000)
    assert [(one["where"], one["path"]) for one in found["state"]] == [("rank 0", "generators.torch")]


def test_diff_of_equal_ones_is_status_0(m5: M5, two: tuple[str, str], made: Made, home: Repository) -> None:
    done = m5("checkpoint", "diff", two[0], f"{made.run}@4")
    assert done.status == 0 and "no difference: 2 tensors" in done.out


def test_a_brief_diff_reads_no_tensor(
    m5: M5, two: tuple[str, str], made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise MissingExtra("this", "train")

    monkeypatch.setattr("m5ws.workspace.compare_bits", refuse)
    done = m5("checkpoint", "diff", *two, "--brief")
    assert done.status == 1 and "model.moved  float32 [2, 200]\n  bits differ" in done.out
    assert m5("checkpoint", "diff", *two).status == 3


def test_a_tensor_that_one_lacks_or_has_in_another_shape_is_said(
    m5: M5, two: tuple[str, str], made: Made, home: Repository
) -> None:
    content = Content(format="dcp/1", world=2, tensors=(_tensor(home, "model.moved", [1.0, 2.0]),))
    planted.checkpoint(home, made.run, 9, content)
    found = m5("checkpoint", "diff", f"{made.run}@6", made.run, "--json").document
    assert {change["name"]: change["kind"] for change in found["tensors"]} == {
        "model.fixed": "only in a", "model.moved": "shape"
    }  # fmt: skip
    assert any("state of single ranks is not compared" in note for note in found["notes"])


def test_a_dry_run_writes_nothing(m5: M5, two: tuple[str, str], made: Made, tmp_path: Path) -> None:
    target = tmp_path / "out"
    done = m5("checkpoint", "export", made.run, "--format", "hf", target, "--dry-run")
    assert done.status == 0 and "would be written" in done.out and "model.safetensors  1.53 MiB" in done.out
    assert not target.exists()
    planned = m5("checkpoint", "export", made.run, "--format", "hf", target, "--json").document
    assert planned["written"] is True and sorted(planned["files"]) == sorted(os.listdir(target))
    assert any("config.json" in line for line in planned["left_out"])


def test_safetensors_need_no_torch_and_other_formats_name_the_extra(
    two: tuple[str, str], made: Made, place: Path
) -> None:
    blind = "import sys; sys.modules['torch'] = None; from m5ws.cli import main; sys.exit(main(sys.argv[1:]))"

    def export(form: str) -> "subprocess.CompletedProcess[str]":
        words = ("-C", str(place), "checkpoint", "export", made.run, "--format", form, str(place / form))
        return subprocess.run([sys.executable, "-c", blind, *words], capture_output=True, text=True)

    assert export("safetensors").returncode == 0
    data = (place / "safetensors" / "checkpoint.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["model.moved"]["shape"] == [2, 200]
    refused = export("dcp")
    assert refused.returncode == 3 and "m5ws[train]" in refused.stderr
    assert not (place / "dcp").exists()
