"""Output files as frameworks write them: a run's own time and place are not judged, everything else is."""

import datetime as dt
import gzip
import hashlib
import io
import json
import pickle
import re
import tempfile
import zipfile
from collections.abc import Callable, Collection
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta

from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.reproduce.outputs import output_files, tensor_files
from m5ws.reproduce.outputs.output_files import OutputReport
from m5ws.reproduce.outputs.surroundings import Surroundings
from tests.support.stores.memory_store import MemoryStore

Files = dict[str, bytes]
_NUMBERED = re.compile(r"(.*/version_)(\d+)/")


class Side(msgspec.Struct, frozen=True):
    """A run's time and place, and the one result of its training."""

    run: str
    host: str
    began_s: float
    loss: float = 0.25
    attempts: int = 1

    @property
    def place(self) -> Surroundings:
        ended_s = self.began_s + 200
        return Surroundings(
            run=self.run, hosts=(self.host,), began_s=self.began_s, ended_s=ended_s, attempts=self.attempts
        )

    @property
    def work(self) -> str:
        return f"/home/ada/project/.m5ws/runs/{self.run}/0001/work"

    def moment(self, after_s: float = 7.5) -> dt.datetime:
        # Frameworks write local time, and runs may be in any zone.
        zone = dt.timezone(dt.timedelta(hours=-9))
        return dt.datetime.fromtimestamp(self.began_s + after_s, zone)


_ONE = Side("a1b2c3d4e5f6", "node-1", dt.datetime(2026, 11, 24, 20, 44, 45, tzinfo=dt.UTC).timestamp())
_OTHER = Side("0f1e2d3c4b5a", "gpu7.example.org", dt.datetime(2027, 1, 2, 8, 59, 58, tzinfo=dt.UTC).timestamp())


class _Arguments:
    """Stands for `TrainingArguments`, an object that is pickled whole."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)


def _saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _trainer(side: Side) -> Files:
    """Write the files of Hugging Face's Trainer, which pickles the folder of its logs (version 4 too)."""
    logs = f"out/runs/{side.moment():%b%d_%H-%M-%S}_{side.host}"
    history = [{"loss": side.loss, "step": 2}, {"eval_runtime": side.began_s % 7, "eval_samples_per_second": 1 / 3}]
    model = {"w": torch.full((3,), side.loss)}
    return {
        "out/checkpoint-4/training_args.bin": _saved(_Arguments(logging_dir=logs, output_dir="out", rate=side.loss)),
        "out/checkpoint-4/trainer_state.json": json.dumps({"log_history": history}).encode(),
        "out/checkpoint-10/pytorch_model.bin": _saved(model),
        f"{logs}/events.out.tfevents.{int(side.began_s)}.{side.host}.4711.0": str(side).encode(),
        "out/README.md": f"# out\n- Loss: {side.loss}\n- Date: {side.moment():%A, %B %d, %Y}\n".encode(),
    }


def _lightning(side: Side) -> Files:
    path = f"{side.work}/out/checkpoints/epoch=0-step=4.ckpt"
    callback = {
        "dirpath": f"{side.work}/out/checkpoints",
        "best_k_models": {path: torch.tensor(side.loss)},
        "best_model_path": path,
    }
    timer = {"time_elapsed": {"train": side.began_s % 9}}
    state = {
        "state_dict": {"layer.weight": torch.full((2, 2), side.loss)},
        "callbacks": {"ModelCheckpoint{'mode': 'min'}": callback, "Timer": timer},
        "saved": side.began_s + 100,
    }
    rows = f"step,loss,lr-AdamW/pg1,epoch_time\n2,{side.loss},0.05,{side.began_s % 11}\n"
    return {
        "out/checkpoints/epoch=0-step=4.ckpt": _saved(state),
        "out/lightning_logs/version_0/metrics.csv": rows.encode(),
        "out/lightning_logs/version_0/hparams.yaml": f"out: {side.work}/out\nlearning_rate: {side.loss}\n".encode(),
    }


def _hydra(side: Side) -> Files:
    folder = f"outputs/{side.moment():%Y-%m-%d/%H-%M-%S}"
    settings = {"out": f"{side.work}/{folder}", "started": f"{side.moment():%Y-%m-%d %H:%M}", "rate": side.loss}
    metrics = {
        "loss": side.loss,
        "seconds": side.began_s % 5,
        "at": int(side.began_s + 9),
        "when": side.moment().ctime(),
    }
    return {
        f"{folder}/.hydra/config.yaml": "".join(f"{key}: {value}\n" for key, value in settings.items()).encode(),
        f"{folder}/.hydra/hydra.yaml": f"hydra:\n  runtime:\n    output_dir: {side.work}/{folder}\n".encode(),
        f"{folder}/train.log": f"{side.moment()} loss {side.loss}".encode(),
        f"{folder}/model.pt": _saved({"w": torch.full((3,), side.loss), "settings": settings}),
        f"{folder}/metrics.json": json.dumps(metrics).encode(),
        f"{folder}/notes.txt": f"[{side.moment():%H:%M:%S}] on {side.host}, loss {side.loss}\n".encode(),
    }


def _sharded(side: Side) -> Files:
    """Write a torch.distributed.checkpoint, whose metadata has a number drawn at random."""
    index = MetadataIndex(f"model.{side.loss}")
    storage = StorageMeta(checkpoint_id=Path(f"{side.work}/out/step-4"), save_id=f"drawn-by-{side.run}")
    metadata = Metadata(state_dict_metadata={}, storage_data={index: "__0_0.distcp"}, storage_meta=storage)
    return {"out/step-4/.metadata": pickle.dumps(metadata), "out/step-4/note.pkl": pickle.dumps({"loss": side.loss})}


_WRITERS: list[Callable[[Side], Files]] = [_trainer, _lightning, _hydra, _sharded]


def _content(repo: Repository, folder: Path, files: Files) -> Digest:
    sources = []
    for number, (name, data) in enumerate(files.items()):
        path = folder / f"{len(list(folder.iterdir()))}-{number}"
        path.write_bytes(data)
        sources.append(SourceFile(path=name.encode(), location=path))
    written = trees.write_tree(repo.objects, repo.locations, sources)
    return repo.objects.put_record(Content(format="files/1", world=1, tree=written.digest, packing=written.packing))


def _compare(
    repo: Repository,
    folder: Path,
    sides: tuple[Side, Side],
    files: tuple[Files, Files],
    earlier: Collection[str] | None = None,
) -> OutputReport:
    """By default, a resumed run's files in numbered folders, but for the last number of each, are of earlier attempts.

    `earlier` names them otherwise.
    """
    contents = _content(repo, folder, files[0]), _content(repo, folder, files[1])
    places = []
    for side, content in zip(sides, contents, strict=True):
        numbered = {
            (match[1], int(match[2])) for match in map(_NUMBERED.search, output_files._entries(repo, content)) if match
        }
        last = {stem: max(number for other, number in numbered if other == stem) for stem, _ in numbered}
        left = {
            (name, entry.digest)
            for name, entry in output_files._entries(repo, content).items()
            if side.attempts > 1 and (match := _NUMBERED.search(name)) and int(match[2]) < last[match[1]]
        }
        if earlier is not None and side.attempts > 1:
            entries = output_files._entries(repo, content).items()
            left = {(name, entry.digest) for name, entry in entries if name in earlier}
        places.append(msgspec.structs.replace(side.place, earlier=frozenset(left)))
    return output_files.compare(repo, contents, (places[0], places[1]))


@pytest.mark.parametrize("write", _WRITERS)
def test_two_runs_that_differ_in_time_and_place_alone_have_equal_results(
    repo: Repository, tmp_path: Path, write: Callable[[Side], Files]
) -> None:
    report = _compare(repo, tmp_path, (_ONE, _OTHER), (write(_ONE), write(_OTHER)))
    assert report.differences == () and report.equal
    listed = "\n".join([*report.unjudged, *report.not_compared])
    assert all(
        _ONE.place.plain(name).rpartition("/")[2] in listed
        for name, data in write(_ONE).items()
        if data != write(_OTHER).get(name)
    )


@pytest.mark.parametrize("write", _WRITERS)
def test_a_result_that_differs_is_named_beside_any_time_and_place(
    repo: Repository, tmp_path: Path, write: Callable[[Side], Files]
) -> None:
    different = msgspec.structs.replace(_OTHER, loss=0.5)
    results = [name for name in write(_ONE) if not name.endswith(("tfevents", ".log", "hydra.yaml", ".0"))]
    for name in results:
        plain = _ONE.place.plain(name)
        changed = {given: data for given, data in write(different).items() if different.place.plain(given) == plain}
        same = {given: data for given, data in write(_OTHER).items() if _OTHER.place.plain(given) != plain}
        report = _compare(repo, tmp_path, (_ONE, different), (write(_ONE), same | changed))
        assert {difference.name.partition(":")[0] for difference in report.differences} == {plain}, name
        weights = any(text in name for text in ("model", ".ckpt"))
        assert report.first is not None and report.first.tensor == weights
        assert weights == ("no tensor differs" not in "".join(report.unjudged))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2021-03-04", "2021-05-06"),
        ("born 4 Mar 2021", "born 6 May 2021"),
        ("1600000000", "1600000009"),
        ("step 20261124", "step 20261125"),
        ("version 12:34:56:78", "version 12:34:57:78"),
        ("node-1", "node-2"),
        ("took 20:45:30", "took 20:46:31"),
        ("09:45:30", "09:52:31"),
        ("/data/a1b2/x", "/data/a1b3/x"),
    ],
)
def test_a_date_or_a_place_that_is_not_the_runs_own_is_a_result(
    repo: Repository, tmp_path: Path, before: str, after: str
) -> None:
    same_time = msgspec.structs.replace(_OTHER, began_s=_ONE.began_s - 10 * 86400, host="node-3")
    files = ({"out/a.txt": before.encode()}, {"out/a.txt": after.encode()})
    report = _compare(repo, tmp_path, (_ONE, same_time), files)
    assert [difference.name for difference in report.differences] == ["out/a.txt:line 1"]


def test_folders_of_dates_are_compared_in_their_order_and_one_that_is_too_many_is_a_difference(
    repo: Repository, tmp_path: Path
) -> None:
    def jobs(side: Side, *losses: float) -> Files:
        return {
            f"multirun/{side.moment(after_s):%Y-%m-%d_%H-%M-%S}/loss.txt": str(loss).encode()
            for after_s, loss in zip((1, 60, 120), losses, strict=False)
        }

    sides = (_ONE, _OTHER)
    assert not _compare(repo, tmp_path, sides, (jobs(_ONE, 1, 2), jobs(_OTHER, 1, 2))).differences
    assert len(_compare(repo, tmp_path, sides, (jobs(_ONE, 1, 2), jobs(_OTHER, 2, 1))).differences) == 2
    assert len(_compare(repo, tmp_path, sides, (jobs(_ONE, 1, 2, 3), jobs(_OTHER, 1, 2))).differences) == 5
    resumed = msgspec.structs.replace(_ONE, attempts=2)
    two = jobs(_ONE, 1, 2)
    report = _compare(repo, tmp_path, (resumed, _OTHER), (two, jobs(_OTHER, 2)), earlier=[min(two)])
    assert not report.differences and report.equal["files"] == 1
    assert "files of earlier attempts" in report.not_compared[0]
    # The last attempt made both.
    assert len(_compare(repo, tmp_path, (resumed, _OTHER), (two, jobs(_OTHER, 2))).differences) == 3


def test_what_is_not_of_the_kind_that_its_name_has_is_compared_by_lines(repo: Repository, tmp_path: Path) -> None:
    def files(loss: float) -> Files:
        text = f"{{ no JSON, no table\nloss {loss}\n"
        return {f"out/a.{suffix}": text.encode() for suffix in ("json", "jsonl", "yaml", "csv")}

    report = _compare(repo, tmp_path, (_ONE, _OTHER), (files(1), files(2)))
    assert sorted(difference.name for difference in report.differences) == [
        f"out/a.{suffix}:line 2" for suffix in ("csv", "json", "jsonl", "yaml")
    ]
    long = {"out/a.txt": b"x" * 100_000 + b"1"}, {"out/a.txt": b"x" * 100_000 + b"2"}
    (difference,) = _compare(repo, tmp_path, (_ONE, _OTHER), long).differences
    assert difference.original != difference.replayed and len(difference.original or "") < 300


def test_named_numbers_in_a_line_are_compared_by_their_names(repo: Repository, tmp_path: Path) -> None:
    def log(side: Side, loss: float) -> Files:
        speed = f"tokens_per_second_per_gpu:{side.began_s % 977} step_time={side.began_s % 7}"
        return {f"out/log_{int(side.began_s)}.txt": f"Step 1 | loss:{loss} {speed} norm:1e-3 \n".encode()}

    report = _compare(repo, tmp_path, (_ONE, _OTHER), (log(_ONE, 5.5), log(_OTHER, 5.5)))
    assert not report.differences and report.clocks == ("out/log_TIME.txt",) and report.equal["output values"] == 3
    (difference,) = _compare(repo, tmp_path, (_ONE, _OTHER), (log(_ONE, 5.5), log(_OTHER, 5.25))).differences
    assert (difference.name, difference.original, difference.replayed) == (
        "out/log_TIME.txt:line 1.loss",
        "5.5",
        "5.25",
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("step 3 seconds:1.5 lost", "step 4 seconds:2.5 lost"),
        ("seconds:1.5 seconds:2.5", "seconds:1.5 seconds:3.5"),
        ("seconds:1.5%", "seconds:2.5%"),
        ("seconds:1.5", "second:1.5"),
    ],
)
def test_a_line_is_compared_apart_from_its_named_numbers(
    repo: Repository, tmp_path: Path, before: str, after: str
) -> None:
    files = {"out/a.txt": before.encode()}, {"out/a.txt": after.encode()}
    (difference,) = _compare(repo, tmp_path, (_ONE, _OTHER), files).differences
    assert difference.name == "out/a.txt:line 1"


def test_a_pickle_is_compared_to_its_end(repo: Repository, tmp_path: Path) -> None:
    data = pickle.dumps({"loss": 1})
    files = {"out/a.pkl": data + b"1"}, {"out/a.pkl": data + b"2"}
    assert len(_compare(repo, tmp_path, (_ONE, _OTHER), files).differences) == 1


def test_all_days_of_a_long_run_are_its_own() -> None:
    days = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=number) for number in range(300)]
    place = Surroundings(run="a" * 12, began_s=days[0].timestamp(), ended_s=days[-1].timestamp())
    assert {place.plain(f"at {day:%Y-%m-%d}") for day in days} == {"at TIME"}


_NAMES = ("%m%d_%H%M%S", "%y%m%d-%H%M%S", "%m-%d_%H-%M", "%d %B %Y %H:%M", "%Y%m%d%H%M%S", "%s", "run.%s", "model_%s")


@pytest.mark.parametrize("form", _NAMES)
def test_a_file_that_is_named_by_its_time_is_the_same_file(repo: Repository, tmp_path: Path, form: str) -> None:
    def files(side: Side) -> Files:
        moment = side.moment()
        return {f"out/{moment.strftime(form.replace('%s', str(int(moment.timestamp()))))}.txt": b"1"}

    report = _compare(repo, tmp_path, (_ONE, _OTHER), (files(_ONE), files(_OTHER)))
    assert report.differences == () and report.equal["files"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "{at:%Y-%m-%d %H:%M:%S},{count}",
        "{at:%Y-%m-%d %H:%M:%S},{count},0.5",
        "{at:%H:%M:%S},{count}",
        "{at:%Y-%m-%d} {count}34 correct",
        "{at:%Y-%m-%d},{count}34",
        "{at:%m%d} {count}34",
        "2021-{at:%m-%d} 11:{count:.2}:00",
        "{at:%m%d}{count}34",
    ],
)
def test_a_number_beside_a_time_is_a_result(repo: Repository, tmp_path: Path, line: str) -> None:
    same_day = msgspec.structs.replace(_ONE, run=_OTHER.run)
    old, new = (line.format(at=_ONE.moment(), count=count).encode() for count in ("1234", "2039"))
    report = _compare(repo, tmp_path, (_ONE, same_day), ({"out/a.txt": old}, {"out/a.txt": new}))
    assert [difference.name for difference in report.differences] == ["out/a.txt:line 1"]


@pytest.mark.parametrize("changed", ["", "weights", "loss", "step", "row", "no Trainer"])
def test_values_that_begin_again_with_an_attempt_are_not_judged_in_a_resumed_run(
    repo: Repository, tmp_path: Path, changed: str
) -> None:
    """Lightning begins a folder in each attempt, and the Trainer a mean over its steps."""

    def files(version: int, mean: float) -> Files:
        folder, is_changed = f"lightning_logs/version_{version}", version > 0
        last = 2.0 if is_changed and changed == "row" else 1.0
        earlier_rows = "" if version else "1,3.0\n4,2.0\n"
        weights = torch.full((2,), 2.0 if is_changed and changed == "weights" else 1.0)
        results = {"train_loss": mean, "eval_loss": 2.0 if is_changed and changed == "loss" else 1.0}
        name = "epoch=3-step=8.ckpt" if is_changed and changed == "step" else "epoch=4-step=10.ckpt"
        return {
            f"{folder}/checkpoints/{name}": _saved({"w": weights, "path": f"{folder}/checkpoints/{name}"}),
            f"{folder}/metrics.csv": f"step,loss\n{earlier_rows}9,{last}\n".encode(),
            f"{folder}/hparams.yaml": b"{}\n",
            "out/all_results.json": json.dumps(results).encode(),
            **({"out/trainer_state.json": b"{}"} if changed != "no Trainer" else {}),
        }

    earlier = {
        "lightning_logs/version_0/checkpoints/epoch=1-step=4.ckpt": _saved({"w": torch.zeros(2)}),
        "lightning_logs/version_0/metrics.csv": b"step,loss\n1,3.0\n",
        "lightning_logs/version_0/hparams.yaml": b"{}\n",
    }
    sides = earlier | files(1, mean=2.0), files(0, mean=1.0)
    resumed = msgspec.structs.replace(_ONE, attempts=2)
    assert bool(_compare(repo, tmp_path, (resumed, _OTHER), sides).differences) == bool(changed)
    (tmp_path / "swapped").mkdir()
    assert bool(_compare(repo, tmp_path / "swapped", (_OTHER, resumed), sides[::-1]).differences) == bool(changed)
    (tmp_path / "not resumed").mkdir()
    assert _compare(repo, tmp_path / "not resumed", (_ONE, _OTHER), sides).differences


@pytest.mark.parametrize(
    ("whole", "resumed", "is_continued"),
    [
        ("epoch,loss,step,val\n0,1.0,3,\n0,,5,2.0\n1,0.5,6,\n", "epoch,loss,step\n1,0.5,6\n", True),
        ("epoch,loss,step,val\n0,1.0,3,\n1,0.5,6,\n1,,6,2.0\n", "epoch,loss,step\n1,0.5,6\n", False),
        ("epoch,loss,step,val\n0,1.0,3,\n1,0.5,6,\n", "epoch,loss,step\n1,0.6,6\n", False),
        ("epoch,loss\n0,1.0\n1,0.5\n", "epoch,accuracy\n1,0.5\n", False),
        ("epoch,loss\n0,1.0\n1,0.5\n", "epoch,loss\n", False),
        # The mean of the epoch in which the attempt began, and that of a later one.
        ("epoch,a_epoch,a_step\n0,1.0,3\n1,0.5,4\n", "epoch,a_epoch,a_step\n0,1.5,3\n1,0.5,4\n", True),
        ("epoch,a_epoch,a_step\n0,1.0,3\n1,0.5,4\n", "epoch,a_epoch\n0,1.5\n", False),
        ("epoch,a_epoch,a_step\n0,1.0,3\n1,0.5,4\n", "epoch,a_epoch,a_step\n0,1.0,3\n1,0.6,4\n", False),
        # Not of values that are logged at each step too: a script's own.
        ("epoch,a_epoch\n0,1.0\n1,0.5\n", "epoch,a_epoch\n0,1.5\n1,0.5\n", False),
        # Times are not judged. Tables that cannot be read by their columns are compared by their lines.
        ("epoch,a,fit_time\n0,1.0,3\n1,0.5,4\n", "epoch,a,fit_time\n1,0.5,6\n", True),
        ("epoch,a,a\n0,1.0,3\n1,0.5,4\n", "epoch,a,a\n1,0.6,4\n", False),
        (f"epoch,a\n0,1.0\n1,{'5' * 200_000}\n", f"epoch,a\n1,{'5' * 200_000}\n", False),
        ("epoch,loss_step\n0,1.0\n1,0.5\n", "epoch,loss_step\n0,1.5\n1,0.5\n", False),
    ],
)
@pytest.mark.parametrize("folder", ["lightning_logs", "out/named"])
def test_a_resumed_table_of_lightning_has_the_last_rows_whatever_its_columns(
    repo: Repository, tmp_path: Path, folder: str, whole: str, resumed: str, is_continued: bool
) -> None:
    sides = (
        {f"{folder}/version_{number}/metrics.csv": rows.encode() for number, rows in enumerate(("epoch\n", resumed))},
        {f"{folder}/version_0/metrics.csv": whole.encode()},
    )
    report = _compare(repo, tmp_path, (msgspec.structs.replace(_ONE, attempts=2), _OTHER), sides)
    assert (not report.differences) == is_continued


def test_the_first_cell_that_differs_in_the_last_rows_is_named(repo: Repository, tmp_path: Path) -> None:
    whole, resumed = "step,loss\n1,3.0\n2,2.0\n3,1.0\n", "step,loss\n2,2.0\n3,9.0\n"
    sides = (
        {"logs/version_0/metrics.csv": whole.encode()},
        {f"logs/version_{number}/metrics.csv": rows.encode() for number, rows in enumerate(("step\n", resumed))},
    )
    report = _compare(repo, tmp_path, (_OTHER, msgspec.structs.replace(_ONE, attempts=2)), sides)
    (difference,) = report.differences
    assert difference.name == "logs/version_N/metrics.csv:3.loss"
    assert (difference.original, difference.replayed) == ("1.0", "9.0")


@pytest.mark.parametrize("loss", [1.0, 2.0])
def test_logs_of_several_trainings_in_numbered_folders_are_not_paired_in_a_resumed_run(
    repo: Repository, tmp_path: Path, loss: float
) -> None:
    """The resumed run did the first training in two attempts, and so has three folders."""

    def files(*rows: str) -> Files:
        logs = {f"out/logs/version_{n}/metrics.csv": f"step,loss\n{row}".encode() for n, row in enumerate(rows)}
        return logs | {
            "out/fold0.pt": _saved({"w": torch.ones(2)}),
            "out/fold1.pt": _saved({"w": torch.full((2,), loss)}),
        }

    sides = files("1,1.0\n", "2,1.0\n", "1,5.0\n2,6.0\n"), files("1,1.0\n2,1.0\n", "1,5.0\n2,6.0\n")
    sides[1]["out/fold1.pt"] = _saved({"w": torch.ones(2)})
    report = _compare(repo, tmp_path, (msgspec.structs.replace(_ONE, attempts=2), _OTHER), sides)
    assert [difference.name for difference in report.differences] == (["out/fold1.pt:w"] if loss > 1 else [])
    assert report.unpaired and all(name.startswith("out/logs/version_") for name in report.unpaired)


def test_the_numbered_folders_of_several_ranks_are_compared_in_their_order(repo: Repository, tmp_path: Path) -> None:
    """Each rank has a folder in each attempt, and rank 0 alone has the table."""

    def files(first: int, rows: str) -> Files:
        folders = [f"out/logs/version_{number}" for number in (first, first + 1)]
        settings = {f"{folder}/hparams.yaml": f"root: {folder}\n".encode() for folder in folders}
        return settings | {f"{folders[0]}/metrics.csv": f"step,loss\n{rows}".encode()}

    resumed = msgspec.structs.replace(_ONE, attempts=2)
    whole, first, sides = files(0, "1,5.0\n2,6.0\n"), files(0, "1,5.0\n"), (resumed, _OTHER)
    report = _compare(repo, tmp_path, sides, (first | files(2, "2,6.0\n"), whole), earlier=first)
    assert not report.differences and not report.unpaired
    report = _compare(repo, tmp_path, sides, (first | files(2, "2,7.0\n"), whole), earlier=first)
    assert not report.differences and report.unpaired


def _training(number: int, *, of: int) -> Files:
    folder = f"logs/version_{number}"
    table, weights = f"epoch,a_epoch,a_step\n0,{of}.5,{of}.0\n".encode(), _saved({"w": torch.full((2,), float(of))})
    return {f"{folder}/hparams.yaml": b"{}\n", f"{folder}/metrics.csv": table, f"{folder}/checkpoints/a.ckpt": weights}


@pytest.mark.parametrize("lost", range(3))
def test_a_training_that_the_replay_lacks_is_a_difference(repo: Repository, tmp_path: Path, lost: int) -> None:
    """Three trainings with numbers of their own, of which the first was done in an earlier attempt."""
    resumed = msgspec.structs.replace(_ONE, attempts=2)
    every = [_training(number, of=number) for number in (1, 2, 3)]
    mine = every[0] | every[1] | every[2]
    theirs = {name: data for number, files in enumerate(every) if number != lost for name, data in files.items()}
    report = _compare(repo, tmp_path, (resumed, _OTHER), (mine, theirs), earlier=every[0])
    assert report.differences or report.unpaired
    (tmp_path / "swapped").mkdir()
    report = _compare(repo, tmp_path / "swapped", (_OTHER, resumed), (theirs, mine), earlier=every[0])
    assert report.differences or report.unpaired


def test_the_table_of_a_training_that_an_earlier_attempt_did_is_judged_whole(repo: Repository, tmp_path: Path) -> None:
    resumed = msgspec.structs.replace(_ONE, attempts=2)
    first, second = _training(1, of=1), _training(2, of=2)
    changed = first | {"logs/version_1/metrics.csv": b"epoch,a_epoch,a_step\n0,9.5,1.0\n"}
    assert not _compare(repo, tmp_path, (resumed, _OTHER), (first | second, first | second), earlier=first).differences
    (tmp_path / "changed").mkdir()
    sides = first | second, changed | second
    report = _compare(repo, tmp_path / "changed", (resumed, _OTHER), sides, earlier=first)
    assert [difference.name for difference in report.differences] == ["logs/version_1/metrics.csv:1.a_epoch"]


def test_numbers_that_no_attempt_took_are_judged(repo: Repository, tmp_path: Path) -> None:
    """A value may name a folder of another run's logger, such as that of a pretrained model."""
    resumed = msgspec.structs.replace(_ONE, attempts=2)

    def files(*numbers: int, teacher: int) -> Files:
        own = f"base: logs/version_{numbers[-1]}\ninit: logs/version_{teacher}/a.ckpt\n".encode()
        return {f"logs/version_{number}/hparams.yaml": own for number in numbers} | {f"logs/version_{teacher}/r": b"1"}

    for number, (teacher, is_equal) in enumerate({3: True, 7: False}.items()):
        (tmp_path / str(number)).mkdir()
        first = files(0, teacher=3)
        sides = first | files(1, teacher=3), files(0, teacher=teacher)
        report = _compare(repo, tmp_path / str(number), (resumed, _OTHER), sides, earlier=first)
        assert (not report.differences) == is_equal


@pytest.mark.parametrize("best", [1, 2])
def test_the_training_that_was_chosen_is_judged(repo: Repository, tmp_path: Path, best: int) -> None:
    """The first attempt was killed in the first of two trainings."""
    resumed, first = msgspec.structs.replace(_ONE, attempts=2), {"logs/version_0/hparams.yaml": b"{}\n"}

    def files(one: int, two: int, best: int) -> Files:
        chosen = f'{{"best": "logs/version_{(one, two)[best - 1]}"}}'.encode()
        return _training(one, of=1) | _training(two, of=2) | {"out/best.json": chosen}

    report = _compare(repo, tmp_path, (resumed, _OTHER), (first | files(1, 2, best), files(0, 1, 1)), earlier=first)
    assert [difference.name for difference in report.differences] == ["out/best.json:best"] * (best == 2)


def test_a_result_of_an_earlier_attempt_that_the_replay_lacks_is_a_difference(repo: Repository, tmp_path: Path) -> None:
    resumed = msgspec.structs.replace(_ONE, attempts=2)
    first = {"logs/version_0/hparams.yaml": b"{}\n", "logs/version_0/results.json": b'{"accuracy": 0.9}'}
    sides = first | _training(1, of=0), _training(0, of=0)
    (difference,) = _compare(repo, tmp_path, (resumed, _OTHER), sides, earlier=first).differences
    assert difference.name.endswith("results.json")


def test_the_tables_of_attempts_in_folders_of_their_times_are_compared(repo: Repository, tmp_path: Path) -> None:
    resumed = msgspec.structs.replace(_ONE, attempts=2)

    def files(side: Side, after_s: float, rows: str) -> Files:
        folder = f"outputs/{side.moment(after_s):%Y-%m-%d/%H-%M-%S}/csv/version_0"
        return {f"{folder}/hparams.yaml": b"{}\n", f"{folder}/metrics.csv": f"step,loss\n{rows}".encode()}

    first = files(_ONE, 1, "1,3.0\n")
    for number, (last, is_equal) in enumerate({"2,2.0\n": True, "2,9.0\n": False}.items()):
        (tmp_path / str(number)).mkdir()
        sides = first | files(_ONE, 60, last), files(_OTHER, 1, "1,3.0\n2,2.0\n")
        report = _compare(repo, tmp_path / str(number), (resumed, _OTHER), sides, earlier=first)
        assert (not report.differences) == is_equal


def test_a_table_of_an_uninterrupted_run_that_lacks_rows_differs(repo: Repository, tmp_path: Path) -> None:
    whole, last = b"step,loss\n1,3.0\n2,2.0\n", b"step,loss\n2,2.0\n"
    resumed = msgspec.structs.replace(_ONE, attempts=2)

    def differ(mine: bytes, theirs: bytes) -> bool:
        sides = {"logs/version_1/metrics.csv": mine}, {"logs/version_0/metrics.csv": theirs}
        return bool(_compare(repo, tmp_path, (resumed, _OTHER), sides).differences)

    assert differ(whole, last) and not differ(last, whole)


def test_numbered_folders_that_no_logger_made_are_results(repo: Repository, tmp_path: Path) -> None:
    resumed = msgspec.structs.replace(_ONE, attempts=2)
    best = {"out/best/version_2/a.json": b"1"}, {"out/best/version_5/a.json": b"1"}
    assert _compare(repo, tmp_path, (resumed, _OTHER), best).differences
    chosen = {"out/a.json": b'{"best": "abl/version_2/a.pt"}'}, {"out/a.json": b'{"best": "abl/version_5/a.pt"}'}
    assert _compare(repo, tmp_path, (resumed, _OTHER), chosen).differences
    more = {f"out/abl/version_{number}/a.pt": _saved({"w": torch.full((2,), float(number))}) for number in (1, 2)}
    fewer = {"out/abl/version_2/a.pt": more["out/abl/version_2/a.pt"]}
    place = msgspec.structs.replace(resumed.place, earlier=frozenset())
    contents = _content(repo, tmp_path, more), _content(repo, tmp_path, fewer)
    assert output_files.compare(repo, contents, (place, _OTHER.place)).differences


@pytest.mark.parametrize(
    "changed", ["out/best.json", "out/logs/version_2/checkpoints/a.ckpt", "out/logs/version_best.pt"]
)
def test_numbers_that_both_runs_have_are_results(repo: Repository, tmp_path: Path, changed: str) -> None:
    """Such as a logger with a version for each seed. The numbers of attempts are left out, those of results are not."""

    def files(numbers: tuple[int, ...], is_changed: bool) -> Files:
        found: Files = {"out/best.json": json.dumps({"best": f"out/logs/version_{1 + is_changed}"}).encode()}
        found["out/logs/version_best.pt"] = _saved({"w": torch.full((2,), float(is_changed))})
        for number in numbers:
            found[f"out/logs/version_{number}/metrics.csv"] = f"step,loss\n{number},1.0\n".encode()
            weights = torch.full((2,), float(number + 5 * is_changed))
            found[f"out/logs/version_{number}/checkpoints/a.ckpt"] = _saved({"w": weights})
        return found

    resumed = msgspec.structs.replace(_ONE, attempts=2)
    whole = files((1, 2), is_changed=False)
    other = whole | {changed: files((1, 2), is_changed=True)[changed]}
    assert not _compare(repo, tmp_path, (resumed, _OTHER), (whole, whole)).differences
    (tmp_path / "a").mkdir()
    assert _compare(repo, tmp_path / "a", (resumed, _OTHER), (whole, other)).differences
    if changed == "out/logs/version_best.pt":
        # Here the folders of attempts are paired by a guess, and a file beside them is not.
        (tmp_path / "b").mkdir()
        more = files((1, 2, 3), is_changed=False)
        (difference,) = _compare(repo, tmp_path / "b", (resumed, _OTHER), (more, other)).differences
        assert difference.name == f"{changed}:w"


def test_a_table_of_the_last_attempt_with_a_fixed_number_has_the_last_rows(repo: Repository, tmp_path: Path) -> None:
    """A mean over an epoch is judged in rows without an epoch."""
    resumed = msgspec.structs.replace(_ONE, attempts=2)

    def differ(mine: str, theirs: str) -> bool:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        sides = tuple({"logs/version_0/metrics.csv": text.encode()} for text in (mine, theirs))
        return bool(_compare(repo, folder, (resumed, _OTHER), (sides[0], sides[1])).differences)

    assert not differ("epoch,step,loss\n1,2,2.0\n", "epoch,step,loss\n0,1,3.0\n1,2,2.0\n")
    assert not differ("epoch,a_epoch,a_step\n1,2.0,7\n", "epoch,a_epoch,a_step\n0,1.0,6\n1,3.0,7\n")
    assert differ("step,a_epoch,a_step\n1,2.0,7\n", "step,a_epoch,a_step\n0,1.0,6\n1,3.0,7\n")


def test_the_counts_of_lightnings_validations_are_not_judged_in_a_resumed_run(repo: Repository, tmp_path: Path) -> None:
    def file(batches: int, steps: int) -> Files:
        progress = {"current": {"completed": batches}}
        loops = {"fit_loop": {"epoch_loop": {"val_loop": {"batch_progress": progress}, "step": steps}}}
        return {"out/a.ckpt": _saved({"loops": loops, "w": torch.ones(2)})}

    resumed = msgspec.structs.replace(_ONE, attempts=2)
    assert not _compare(repo, tmp_path, (resumed, _OTHER), (file(6, 1), file(12, 1))).differences
    for number, sides in enumerate([(resumed, _OTHER), (_ONE, _OTHER)]):
        (tmp_path / str(number)).mkdir()
        other = file(12, 1) if number else file(6, 2)
        assert _compare(repo, tmp_path / str(number), sides, (file(6, 1), other)).differences


@pytest.mark.parametrize(
    "name", ["duration_loss", "elapsed_error", "durations", "elapsed_head", "loss_over_time", "loss_at_time"]
)
def test_a_result_whose_name_begins_as_one_of_a_time_is_judged(repo: Repository, tmp_path: Path, name: str) -> None:
    def files(loss: float) -> Files:
        return {"out/a.json": json.dumps({name: {"loss": loss}, f"{name}_2": loss, "duration": loss}).encode()}

    (difference,) = _compare(repo, tmp_path, (_ONE, _OTHER), (files(1), files(2))).differences
    assert difference.name.startswith(f"out/a.json:{name}")


def test_a_tensor_that_is_read_conjugated_is_another(repo: Repository, tmp_path: Path) -> None:
    plain = torch.full((3,), 1 + 2j)
    files = {"out/a.pt": _saved({"w": plain})}, {"out/a.pt": _saved({"w": plain.conj()})}
    (difference,) = _compare(repo, tmp_path, (_ONE, _OTHER), files).differences
    assert difference.name == "out/a.pt:w" and difference.tensor


@pytest.mark.parametrize(("one", "other"), [("3.141592653589793238", "3.141592653589793239"), ("1e400", "1e401")])
@pytest.mark.parametrize("name", ["out/a.json", "out/a.jsonl"])
def test_digits_that_no_float_has_are_judged(repo: Repository, tmp_path: Path, name: str, one: str, other: str) -> None:
    files = {name: f'{{"pi": {one}}}'.encode()}, {name: f'{{"pi": {other}}}'.encode()}
    assert len(_compare(repo, tmp_path, (_ONE, _OTHER), files).differences) == 1
    same = {name: f'{{"pi": {one}, "loss": 0.10}}'.encode()}, {name: f'{{"pi": {one}, "loss": 0.1}}'.encode()}
    assert not _compare(repo, tmp_path, (_ONE, _OTHER), same).differences


_STEPS = st.sets(st.integers(1, 6), min_size=1)


@settings(max_examples=100, deadline=None)
@given(_STEPS, st.lists(_STEPS, min_size=2, max_size=4), st.sampled_from([None, 1, 2, 3, 4, 5, 6]))
def test_checkpoints_in_a_folder_of_each_attempt_are_compared_together(
    whole: set[int], attempts: list[set[int]], changed: int | None
) -> None:
    """Each attempt has a numbered folder, and saves some steps. The newest file of a step is compared."""

    def files(version: int, steps: set[int], is_changed: bool) -> Files:
        return {
            f"lightning_logs/version_{version}/checkpoints/step={step}.ckpt": _saved(
                {"w": torch.full((2,), float(-step if is_changed and step == changed else step))}
            )
            for step in steps
        }

    newest = {step: number for number, steps in enumerate(attempts) for step in steps}
    original: Files = {}
    for number, steps in enumerate(attempts):
        original |= files(number, steps, is_changed=changed in newest and number == newest[changed])
    resumed = msgspec.structs.replace(_ONE, attempts=len(attempts))
    with TemporaryDirectory() as folder:
        repo = Repository.create(MemoryStore())
        report = _compare(repo, Path(folder), (resumed, _OTHER), (original, files(0, whole, is_changed=False)))
    differ = {int(re.findall(r"step=(\d)", each.name)[0]) for each in report.differences}
    # A file that the last attempt alone wrote, and one that no attempt wrote, differ too.
    assert differ == (whole - newest.keys()) | (attempts[-1] - whole) | ({changed} & newest.keys() & whole)


def _random_id(seed: str) -> str:
    return hashlib.sha256(seed.encode()).hexdigest()[:32]


_FOLDERS = (
    "mlruns/0/abc/artifacts",
    "out/mlruns/123456789012345678/models/m-{id}/artifacts/data",
    "out/wandb/offline-run-{at:%Y%m%d_%H%M%S}-{id:.8}/files",
    "lightning_logs/version_0/checkpoints",
    "out/structured_logs",
)


@pytest.mark.parametrize("folder", _FOLDERS)
@pytest.mark.parametrize("suffix", [*tensor_files.SUFFIXES, ".distcp", ".onnx"])
def test_a_file_that_may_hold_weights_is_never_a_log_by_default(
    repo: Repository, tmp_path: Path, folder: str, suffix: str
) -> None:
    def files(side: Side, loss: float) -> Files:
        place = folder.format(id=_random_id(side.run), at=side.moment())
        return {f"{place}/m{suffix}": pickle.dumps({"loss": loss, "path": place}), f"{place}/a.log": side.run.encode()}

    def compare(new: float, *ignore: str) -> OutputReport:
        contents = _content(repo, tmp_path, files(_ONE, 1.0)), _content(repo, tmp_path, files(_OTHER, new))
        return output_files.compare(repo, contents, (_ONE.place, _OTHER.place), ignore)

    (difference,) = compare(2.0).differences
    assert f"m{suffix}" in difference.name and difference.original and difference.replayed
    if suffix in tensor_files.PICKLES:
        assert compare(1.0).differences == () and compare(1.0).equal
    report = compare(2.0, f"*m{suffix}")
    assert report.differences == () and f"m{suffix}" in report.not_compared[0] and "a.log" in report.not_compared[0]


def _tracked(side: Side, *weights: float) -> Files:
    """Write the weights of several MLflow runs, whose ids are drawn at random."""
    return {
        f"mlruns/0/{_random_id(f'{side.run} {number}')}/artifacts/w.npy": str(value).encode()
        for number, value in enumerate(weights)
    }


@pytest.mark.parametrize(
    ("weights", "attempts", "differing", "unpaired"),
    [
        (([1], [2]), 1, 1, 0),
        (([1, 2, 3], [2, 3, 1]), 1, 0, 0),
        (([1, 2, 3], [2, 4, 1]), 1, 1, 0),
        (([1, 2], [3, 4]), 1, 0, 4),
        (([1, 2], [1, 3, 4]), 1, 3, 0),
        (([1, 2], [2]), 2, 0, 0),
        (([1, 2], [1]), 2, 0, 0),
        (([1, 2], [3]), 2, 0, 3),
    ],
)
def test_files_in_folders_with_random_ids_are_paired_by_their_contents_or_not_at_all(
    repo: Repository,
    tmp_path: Path,
    weights: tuple[list[float], list[float]],
    attempts: int,
    differing: int,
    unpaired: int,
) -> None:
    sides = msgspec.structs.replace(_ONE, attempts=attempts), _OTHER
    report = _compare(repo, tmp_path, sides, (_tracked(_ONE, *weights[0]), _tracked(_OTHER, *weights[1])))
    assert (len(report.differences), len(report.unpaired)) == (differing, unpaired)
    assert bool(unpaired) == ("pairs are unknown" in "".join(report.not_compared))


@pytest.mark.parametrize(("seconds", "unpaired"), [(60, 0), (0, 4)])
def test_files_in_folders_with_times_and_random_ids_are_paired_by_the_times(
    repo: Repository, tmp_path: Path, seconds: int, unpaired: int
) -> None:
    def files(side: Side) -> Files:
        written: Files = {}
        for number in range(2):
            started = f"{side.moment(seconds * number):%Y%m%d_%H%M%S}"
            folder = f"wandb/run-{started}-{_random_id(f'{side.run} {number}'):.8}/files"
            written[f"{folder}/w.pt"] = _saved({"loss": number, "folder": folder})
        return written

    report = _compare(repo, tmp_path, (_ONE, _OTHER), (files(_ONE), files(_OTHER)))
    assert report.differences == () and len(report.unpaired) == unpaired


def test_files_in_numbered_folders_of_times_keep_the_rules_of_their_names(repo: Repository, tmp_path: Path) -> None:
    def sweep(side: Side, *losses: float) -> Files:
        jobs: Files = {}
        for number, loss in enumerate(losses):
            folder = f"multirun/{side.moment(60 * number):%Y-%m-%d_%H-%M-%S}"
            jobs[f"{folder}/m.pt"] = _saved({"w": torch.tensor(loss)})
            jobs[f"{folder}/train.log"] = f"{side.run} {folder}".encode()
        return jobs

    report = _compare(repo, tmp_path, (_ONE, _OTHER), (sweep(_ONE, 1, 2), sweep(_OTHER, 1, 3)))
    (difference,) = report.differences
    assert difference.name == "multirun/TIME (2)/m.pt:w" and difference.tensor


def test_files_that_are_compared_as_bytes_are_named_as_such(repo: Repository, tmp_path: Path) -> None:
    def files(side: Side, *, missing: bool = False) -> Files:
        return {"out/a.h5": b"\xff" + side.run.encode()} | ({"out/b.h5": b"\xff"} if missing else {})

    report = _compare(repo, tmp_path, (_ONE, _OTHER), (files(_ONE), files(_OTHER)))
    assert report.first is not None and report.first.as_bytes
    assert "as bytes" in report.unjudged[0] and '[run] ignore = ["out/a.h5"]' in report.unjudged[0]
    assert not _compare(repo, tmp_path, (_ONE, _OTHER), (files(_ONE), files(_OTHER, missing=True))).unjudged


def test_files_with_equal_judged_values_are_named_and_those_of_weights_are_known(
    repo: Repository, tmp_path: Path
) -> None:
    def files(side: Side) -> Files:
        times = json.dumps({"seconds": side.began_s % 5, "loss": 1}).encode()
        return {"out/a.json": b"{}", "out/b.json": times, "out/c.json": json.dumps(side.loss).encode()}

    other = msgspec.structs.replace(_OTHER, loss=0.5)
    report = _compare(repo, tmp_path, (_ONE, other), (files(_ONE), files(other)))
    assert report.same == ("out/a.json", "out/b.json") and not report.has_tensors
    for name in ("out/m.onnx", "out/__0_0.distcp"):
        assert _compare(repo, tmp_path, (_ONE, _OTHER), ({name: b"1"}, {name: b"1"})).has_tensors


def _array(value: object, **arguments: object) -> bytes:
    buffer = io.BytesIO()
    (np.savez if arguments else np.save)(buffer, np.array(value), **arguments)  # type: ignore[arg-type]
    return buffer.getvalue()


def _zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


_FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn]
_SETTINGS = {"lr": 0.1, "epochs": 5, "betas": (0.9, 0.99), "seed": torch.tensor(3), "mask": torch.tensor([True])}


@pytest.mark.parametrize(
    ("name", "content", "has_weights"),
    [
        ("out/training_args.bin", _saved(_SETTINGS), False),
        ("out/args.pkl", pickle.dumps({"lr": 0.1}), False),
        ("out/rng_state.pth", _saved({"cpu": torch.get_rng_state()}), False),
        ("out/order.npy", _array([3, 1, 2]), False),
        ("out/order.npz", _array([3], order=np.array([3, 1])), False),
        ("out/tokens.safetensors", safetensors.torch.save({"ids": torch.tensor([3])}), False),
        *(
            (f"out/model.{end}", _saved({"w": torch.ones(3, dtype=kind)}), True)
            for end in ("pt", "bin")
            for kind in _FLOATS
        ),
        ("out/model.pkl", pickle.dumps({"w": torch.ones(3)}), True),
        ("out/model.npy", _array([3.5]), True),
        ("out/model.npz", _array([3], w=np.array([3.5], dtype=np.float16)), True),
        ("out/model.safetensors", safetensors.torch.save({"w": torch.ones(3, dtype=torch.bfloat16)}), True),
        ("out/train.bin", b"token ids", False),
        ("out/tokens.pt", _saved({"ids": torch.ones(3, dtype=torch.uint16)}), False),
        ("out/rate.pt", _saved({"lr": torch.tensor(0.1)}), False),
        ("out/args.pkl.gz", gzip.compress(pickle.dumps({"lr": 0.1}), mtime=0), False),
        ("out/order.npy.gz", gzip.compress(_array([3, 1]), mtime=0), False),
        ("out/model.npy.gz", gzip.compress(_array([3.5]), mtime=0), True),
        ("out/model.zip", _zipped("w.pt", _saved({"w": torch.ones(3)})), True),
        ("out/texts.zip", _zipped("a.txt", b"a"), False),
        ("out/arrays.zip", _zipped("w.npy", _array([3.5])), True),
        ("out/order.zip", _zipped("order.npy", _array([3])), False),
        ("out/lr.npy", _array(0.1), False),
    ],
)
def test_an_equal_file_proves_weights_if_it_has_floating_point_numbers(
    repo: Repository, tmp_path: Path, name: str, content: bytes, has_weights: bool
) -> None:
    report = _compare(repo, tmp_path, (_ONE, _OTHER), ({name: content}, {name: content}))
    assert report.same == (name,) and report.has_tensors == has_weights


@pytest.mark.parametrize(
    ("name", "content", "has_weights"),
    [
        ("out/model.bin", _saved({"w": torch.ones(3)}), True),
        ("out/model.pkl", pickle.dumps([1]), True),
        ("out/model.npy", _array([3.5]), True),
        ("out/order.npy", _array([3]), False),
        ("out/train.bin", b"token ids", False),
    ],
)
def test_a_file_that_is_too_large_to_be_read_counts_by_its_first_bytes(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, has_weights: bool
) -> None:
    monkeypatch.setattr(output_files, "_UNKNOWN_BYTES", 0)
    report = _compare(repo, tmp_path, (_ONE, _OTHER), ({name: content}, {name: content}))
    assert report.has_tensors == has_weights


def test_equal_tensors_of_integers_in_a_file_with_a_time_prove_no_weights(repo: Repository, tmp_path: Path) -> None:
    def files(side: Side, kind: torch.dtype) -> Files:
        return {"out/split.pt": _saved({"ids": torch.ones(3, dtype=kind), "created_at": side.moment()})}

    for number, kind in enumerate([torch.int64, torch.float32]):
        (tmp_path / str(number)).mkdir()
        report = _compare(repo, tmp_path / str(number), (_ONE, _OTHER), (files(_ONE, kind), files(_OTHER, kind)))
        assert report.has_tensors == kind.is_floating_point and not report.differences


@pytest.mark.parametrize(
    "kind", [float, np.float64, np.float32, lambda s: [np.float64(s)], lambda s: dt.timedelta(seconds=s), Fraction]
)
def test_a_time_in_a_pickle_is_not_judged_in_any_type(
    repo: Repository, tmp_path: Path, kind: Callable[[float], object]
) -> None:
    def files(seconds: float, loss: float) -> Files:
        value = {"epoch_time": kind(seconds), "loss": kind(loss)}
        return {"out/a.pkl": pickle.dumps(value), "out/b.pt": _saved(value)}

    assert not _compare(repo, tmp_path, (_ONE, _OTHER), (files(1.5, 3.5), files(2.5, 3.5))).differences
    (tmp_path / "other").mkdir()
    differences = _compare(repo, tmp_path / "other", (_ONE, _OTHER), (files(1.5, 3.5), files(2.5, 4.5))).differences
    assert [":loss" in difference.name for difference in differences] == [True, True]
