"""Output files as frameworks write them: a run's own time and place are not judged, everything else is."""

import datetime as dt
import gzip
import hashlib
import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
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

from m5ws.repository.repository import Repository
from m5ws.reproduce.outputs import output_files, tensor_files
from m5ws.reproduce.outputs.output_files import OutputReport
from m5ws.reproduce.outputs.surroundings import Surroundings
from tests.support.records.output_sides import ONE, OTHER, Files, Side, compare, saved, stored_content
from tests.support.stores.memory_store import MemoryStore


class _Arguments:
    """Stands for `TrainingArguments`, an object that is pickled whole."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)


def _trainer(side: Side) -> Files:
    """Write the files of Hugging Face's Trainer, which pickles the folder of its logs (version 4 too)."""
    logs = f"out/runs/{side.moment():%b%d_%H-%M-%S}_{side.host}"
    history = [{"loss": side.loss, "step": 2}, {"eval_runtime": side.began_s % 7, "eval_samples_per_second": 1 / 3}]
    model = {"w": torch.full((3,), side.loss)}
    return {
        "out/checkpoint-4/training_args.bin": saved(_Arguments(logging_dir=logs, output_dir="out", rate=side.loss)),
        "out/checkpoint-4/trainer_state.json": json.dumps({"log_history": history}).encode(),
        "out/checkpoint-10/pytorch_model.bin": saved(model),
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
        "out/checkpoints/epoch=0-step=4.ckpt": saved(state),
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
        f"{folder}/model.pt": saved({"w": torch.full((3,), side.loss), "settings": settings}),
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


@pytest.mark.parametrize("write", _WRITERS)
def test_two_runs_that_differ_in_time_and_place_alone_have_equal_results(
    repo: Repository, tmp_path: Path, write: Callable[[Side], Files]
) -> None:
    report = compare(repo, tmp_path, (ONE, OTHER), (write(ONE), write(OTHER)))
    assert report.differences == () and report.equal
    listed = "\n".join([*report.unjudged, *report.not_compared])
    assert all(
        ONE.place.plain(name).rpartition("/")[2] in listed
        for name, data in write(ONE).items()
        if data != write(OTHER).get(name)
    )


@pytest.mark.parametrize("write", _WRITERS)
def test_a_result_that_differs_is_named_beside_any_time_and_place(
    repo: Repository, tmp_path: Path, write: Callable[[Side], Files]
) -> None:
    different = msgspec.structs.replace(OTHER, loss=0.5)
    results = [name for name in write(ONE) if not name.endswith(("tfevents", ".log", "hydra.yaml", ".0"))]
    for name in results:
        plain = ONE.place.plain(name)
        changed = {given: data for given, data in write(different).items() if different.place.plain(given) == plain}
        same = {given: data for given, data in write(OTHER).items() if OTHER.place.plain(given) != plain}
        report = compare(repo, tmp_path, (ONE, different), (write(ONE), same | changed))
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
    same_time = msgspec.structs.replace(OTHER, began_s=ONE.began_s - 10 * 86400, host="node-3")
    files = ({"out/a.txt": before.encode()}, {"out/a.txt": after.encode()})
    report = compare(repo, tmp_path, (ONE, same_time), files)
    assert [difference.name for difference in report.differences] == ["out/a.txt:line 1"]


def test_folders_of_dates_are_compared_in_their_order_and_one_that_is_too_many_is_a_difference(
    repo: Repository, tmp_path: Path
) -> None:
    def jobs(side: Side, *losses: float) -> Files:
        return {
            f"multirun/{side.moment(after_s):%Y-%m-%d_%H-%M-%S}/loss.txt": str(loss).encode()
            for after_s, loss in zip((1, 60, 120), losses, strict=False)
        }

    sides = (ONE, OTHER)
    assert not compare(repo, tmp_path, sides, (jobs(ONE, 1, 2), jobs(OTHER, 1, 2))).differences
    assert len(compare(repo, tmp_path, sides, (jobs(ONE, 1, 2), jobs(OTHER, 2, 1))).differences) == 2
    assert len(compare(repo, tmp_path, sides, (jobs(ONE, 1, 2, 3), jobs(OTHER, 1, 2))).differences) == 5
    resumed = msgspec.structs.replace(ONE, attempts=2)
    two = jobs(ONE, 1, 2)
    report = compare(repo, tmp_path, (resumed, OTHER), (two, jobs(OTHER, 2)), earlier=[min(two)])
    assert not report.differences and report.equal["files"] == 1
    assert "files of earlier attempts" in report.not_compared[0]
    # The last attempt made both.
    assert len(compare(repo, tmp_path, (resumed, OTHER), (two, jobs(OTHER, 2))).differences) == 3


def test_what_is_not_of_the_kind_that_its_name_has_is_compared_by_lines(repo: Repository, tmp_path: Path) -> None:
    def files(loss: float) -> Files:
        text = f"{{ no JSON, no table\nloss {loss}\n"
        return {f"out/a.{suffix}": text.encode() for suffix in ("json", "jsonl", "yaml", "csv")}

    report = compare(repo, tmp_path, (ONE, OTHER), (files(1), files(2)))
    assert sorted(difference.name for difference in report.differences) == [
        f"out/a.{suffix}:line 2" for suffix in ("csv", "json", "jsonl", "yaml")
    ]
    long = {"out/a.txt": b"x" * 100_000 + b"1"}, {"out/a.txt": b"x" * 100_000 + b"2"}
    (difference,) = compare(repo, tmp_path, (ONE, OTHER), long).differences
    assert difference.original != difference.replayed and len(difference.original or "") < 300


def test_named_numbers_in_a_line_are_compared_by_their_names(repo: Repository, tmp_path: Path) -> None:
    def log(side: Side, loss: float) -> Files:
        speed = f"tokens_per_second_per_gpu:{side.began_s % 977} step_time={side.began_s % 7}"
        return {f"out/log_{int(side.began_s)}.txt": f"Step 1 | loss:{loss} {speed} norm:1e-3 \n".encode()}

    report = compare(repo, tmp_path, (ONE, OTHER), (log(ONE, 5.5), log(OTHER, 5.5)))
    assert not report.differences and report.clocks == ("out/log_TIME.txt",) and report.equal["output values"] == 3
    (difference,) = compare(repo, tmp_path, (ONE, OTHER), (log(ONE, 5.5), log(OTHER, 5.25))).differences
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
    (difference,) = compare(repo, tmp_path, (ONE, OTHER), files).differences
    assert difference.name == "out/a.txt:line 1"


def test_a_pickle_is_compared_to_its_end(repo: Repository, tmp_path: Path) -> None:
    data = pickle.dumps({"loss": 1})
    files = {"out/a.pkl": data + b"1"}, {"out/a.pkl": data + b"2"}
    assert len(compare(repo, tmp_path, (ONE, OTHER), files).differences) == 1


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

    report = compare(repo, tmp_path, (ONE, OTHER), (files(ONE), files(OTHER)))
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
    same_day = msgspec.structs.replace(ONE, run=OTHER.run)
    old, new = (line.format(at=ONE.moment(), count=count).encode() for count in ("1234", "2039"))
    report = compare(repo, tmp_path, (ONE, same_day), ({"out/a.txt": old}, {"out/a.txt": new}))
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
            f"{folder}/checkpoints/{name}": saved({"w": weights, "path": f"{folder}/checkpoints/{name}"}),
            f"{folder}/metrics.csv": f"step,loss\n{earlier_rows}9,{last}\n".encode(),
            f"{folder}/hparams.yaml": b"{}\n",
            "out/all_results.json": json.dumps(results).encode(),
            **({"out/trainer_state.json": b"{}"} if changed != "no Trainer" else {}),
        }

    earlier = {
        "lightning_logs/version_0/checkpoints/epoch=1-step=4.ckpt": saved({"w": torch.zeros(2)}),
        "lightning_logs/version_0/metrics.csv": b"step,loss\n1,3.0\n",
        "lightning_logs/version_0/hparams.yaml": b"{}\n",
    }
    sides = earlier | files(1, mean=2.0), files(0, mean=1.0)
    resumed = msgspec.structs.replace(ONE, attempts=2)
    assert bool(compare(repo, tmp_path, (resumed, OTHER), sides).differences) == bool(changed)
    (tmp_path / "swapped").mkdir()
    assert bool(compare(repo, tmp_path / "swapped", (OTHER, resumed), sides[::-1]).differences) == bool(changed)
    (tmp_path / "not resumed").mkdir()
    assert compare(repo, tmp_path / "not resumed", (ONE, OTHER), sides).differences


def test_the_counts_of_lightnings_validations_are_not_judged_in_a_resumed_run(repo: Repository, tmp_path: Path) -> None:
    def file(batches: int, steps: int) -> Files:
        progress = {"current": {"completed": batches}}
        loops = {"fit_loop": {"epoch_loop": {"val_loop": {"batch_progress": progress}, "step": steps}}}
        return {"out/a.ckpt": saved({"loops": loops, "w": torch.ones(2)})}

    resumed = msgspec.structs.replace(ONE, attempts=2)
    assert not compare(repo, tmp_path, (resumed, OTHER), (file(6, 1), file(12, 1))).differences
    for number, sides in enumerate([(resumed, OTHER), (ONE, OTHER)]):
        (tmp_path / str(number)).mkdir()
        other = file(12, 1) if number else file(6, 2)
        assert compare(repo, tmp_path / str(number), sides, (file(6, 1), other)).differences


@pytest.mark.parametrize(
    "name", ["duration_loss", "elapsed_error", "durations", "elapsed_head", "loss_over_time", "loss_at_time"]
)
def test_a_result_whose_name_begins_as_one_of_a_time_is_judged(repo: Repository, tmp_path: Path, name: str) -> None:
    def files(loss: float) -> Files:
        return {"out/a.json": json.dumps({name: {"loss": loss}, f"{name}_2": loss, "duration": loss}).encode()}

    (difference,) = compare(repo, tmp_path, (ONE, OTHER), (files(1), files(2))).differences
    assert difference.name.startswith(f"out/a.json:{name}")


def test_a_tensor_that_is_read_conjugated_is_another(repo: Repository, tmp_path: Path) -> None:
    plain = torch.full((3,), 1 + 2j)
    files = {"out/a.pt": saved({"w": plain})}, {"out/a.pt": saved({"w": plain.conj()})}
    (difference,) = compare(repo, tmp_path, (ONE, OTHER), files).differences
    assert difference.name == "out/a.pt:w" and difference.tensor


@pytest.mark.parametrize(("one", "other"), [("3.141592653589793238", "3.141592653589793239"), ("1e400", "1e401")])
@pytest.mark.parametrize("name", ["out/a.json", "out/a.jsonl"])
def test_digits_that_no_float_has_are_judged(repo: Repository, tmp_path: Path, name: str, one: str, other: str) -> None:
    files = {name: f'{{"pi": {one}}}'.encode()}, {name: f'{{"pi": {other}}}'.encode()}
    assert len(compare(repo, tmp_path, (ONE, OTHER), files).differences) == 1
    same = {name: f'{{"pi": {one}, "loss": 0.10}}'.encode()}, {name: f'{{"pi": {one}, "loss": 0.1}}'.encode()}
    assert not compare(repo, tmp_path, (ONE, OTHER), same).differences


_STEPS = st.sets(st.integers(1, 6), min_size=1)


@settings(max_examples=100, deadline=None)
@given(_STEPS, st.lists(_STEPS, min_size=2, max_size=4), st.sampled_from([None, 1, 2, 3, 4, 5, 6]))
def test_checkpoints_in_a_folder_of_each_attempt_are_compared_together(
    whole: set[int], attempts: list[set[int]], changed: int | None
) -> None:
    """Each attempt has a numbered folder, and saves some steps. The newest file of a step is compared."""

    def files(version: int, steps: set[int], is_changed: bool) -> Files:
        return {
            f"lightning_logs/version_{version}/checkpoints/step={step}.ckpt": saved(
                {"w": torch.full((2,), float(-step if is_changed and step == changed else step))}
            )
            for step in steps
        }

    newest = {step: number for number, steps in enumerate(attempts) for step in steps}
    original: Files = {}
    for number, steps in enumerate(attempts):
        original |= files(number, steps, is_changed=changed in newest and number == newest[changed])
    resumed = msgspec.structs.replace(ONE, attempts=len(attempts))
    with TemporaryDirectory() as folder:
        repo = Repository.create(MemoryStore())
        report = compare(repo, Path(folder), (resumed, OTHER), (original, files(0, whole, is_changed=False)))
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
        contents = stored_content(repo, tmp_path, files(ONE, 1.0)), stored_content(repo, tmp_path, files(OTHER, new))
        return output_files.compare(repo, contents, (ONE.place, OTHER.place), ignore)

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
    sides = msgspec.structs.replace(ONE, attempts=attempts), OTHER
    report = compare(repo, tmp_path, sides, (_tracked(ONE, *weights[0]), _tracked(OTHER, *weights[1])))
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
            written[f"{folder}/w.pt"] = saved({"loss": number, "folder": folder})
        return written

    report = compare(repo, tmp_path, (ONE, OTHER), (files(ONE), files(OTHER)))
    assert report.differences == () and len(report.unpaired) == unpaired


def test_files_in_numbered_folders_of_times_keep_the_rules_of_their_names(repo: Repository, tmp_path: Path) -> None:
    def sweep(side: Side, *losses: float) -> Files:
        jobs: Files = {}
        for number, loss in enumerate(losses):
            folder = f"multirun/{side.moment(60 * number):%Y-%m-%d_%H-%M-%S}"
            jobs[f"{folder}/m.pt"] = saved({"w": torch.tensor(loss)})
            jobs[f"{folder}/train.log"] = f"{side.run} {folder}".encode()
        return jobs

    report = compare(repo, tmp_path, (ONE, OTHER), (sweep(ONE, 1, 2), sweep(OTHER, 1, 3)))
    (difference,) = report.differences
    assert difference.name == "multirun/TIME (2)/m.pt:w" and difference.tensor


def test_files_that_are_compared_as_bytes_are_named_as_such(repo: Repository, tmp_path: Path) -> None:
    def files(side: Side, *, missing: bool = False) -> Files:
        return {"out/a.h5": b"\xff" + side.run.encode()} | ({"out/b.h5": b"\xff"} if missing else {})

    report = compare(repo, tmp_path, (ONE, OTHER), (files(ONE), files(OTHER)))
    assert report.first is not None and report.first.as_bytes
    assert "as bytes" in report.unjudged[0] and '[run] ignore = ["out/a.h5"]' in report.unjudged[0]
    assert not compare(repo, tmp_path, (ONE, OTHER), (files(ONE), files(OTHER, missing=True))).unjudged


def test_files_with_equal_judged_values_are_named_and_those_of_weights_are_known(
    repo: Repository, tmp_path: Path
) -> None:
    def files(side: Side) -> Files:
        times = json.dumps({"seconds": side.began_s % 5, "loss": 1}).encode()
        return {"out/a.json": b"{}", "out/b.json": times, "out/c.json": json.dumps(side.loss).encode()}

    other = msgspec.structs.replace(OTHER, loss=0.5)
    report = compare(repo, tmp_path, (ONE, other), (files(ONE), files(other)))
    assert report.same == ("out/a.json", "out/b.json") and not report.has_tensors
    for name in ("out/m.onnx", "out/__0_0.distcp"):
        assert compare(repo, tmp_path, (ONE, OTHER), ({name: b"1"}, {name: b"1"})).has_tensors


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
        ("out/training_args.bin", saved(_SETTINGS), False),
        ("out/args.pkl", pickle.dumps({"lr": 0.1}), False),
        ("out/rng_state.pth", saved({"cpu": torch.get_rng_state()}), False),
        ("out/order.npy", _array([3, 1, 2]), False),
        ("out/order.npz", _array([3], order=np.array([3, 1])), False),
        ("out/tokens.safetensors", safetensors.torch.save({"ids": torch.tensor([3])}), False),
        *(
            (f"out/model.{end}", saved({"w": torch.ones(3, dtype=kind)}), True)
            for end in ("pt", "bin")
            for kind in _FLOATS
        ),
        ("out/model.pkl", pickle.dumps({"w": torch.ones(3)}), True),
        ("out/model.npy", _array([3.5]), True),
        ("out/model.npz", _array([3], w=np.array([3.5], dtype=np.float16)), True),
        ("out/model.safetensors", safetensors.torch.save({"w": torch.ones(3, dtype=torch.bfloat16)}), True),
        ("out/train.bin", b"token ids", False),
        ("out/tokens.pt", saved({"ids": torch.ones(3, dtype=torch.uint16)}), False),
        ("out/rate.pt", saved({"lr": torch.tensor(0.1)}), False),
        ("out/args.pkl.gz", gzip.compress(pickle.dumps({"lr": 0.1}), mtime=0), False),
        ("out/order.npy.gz", gzip.compress(_array([3, 1]), mtime=0), False),
        ("out/model.npy.gz", gzip.compress(_array([3.5]), mtime=0), True),
        ("out/model.zip", _zipped("w.pt", saved({"w": torch.ones(3)})), True),
        ("out/texts.zip", _zipped("a.txt", b"a"), False),
        ("out/arrays.zip", _zipped("w.npy", _array([3.5])), True),
        ("out/order.zip", _zipped("order.npy", _array([3])), False),
        ("out/lr.npy", _array(0.1), False),
    ],
)
def test_an_equal_file_proves_weights_if_it_has_floating_point_numbers(
    repo: Repository, tmp_path: Path, name: str, content: bytes, has_weights: bool
) -> None:
    report = compare(repo, tmp_path, (ONE, OTHER), ({name: content}, {name: content}))
    assert report.same == (name,) and report.has_tensors == has_weights


@pytest.mark.parametrize(
    ("name", "content", "has_weights"),
    [
        ("out/model.bin", saved({"w": torch.ones(3)}), True),
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
    report = compare(repo, tmp_path, (ONE, OTHER), ({name: content}, {name: content}))
    assert report.has_tensors == has_weights


def test_equal_tensors_of_integers_in_a_file_with_a_time_prove_no_weights(repo: Repository, tmp_path: Path) -> None:
    def files(side: Side, kind: torch.dtype) -> Files:
        return {"out/split.pt": saved({"ids": torch.ones(3, dtype=kind), "created_at": side.moment()})}

    for number, kind in enumerate([torch.int64, torch.float32]):
        (tmp_path / str(number)).mkdir()
        report = compare(repo, tmp_path / str(number), (ONE, OTHER), (files(ONE, kind), files(OTHER, kind)))
        assert report.has_tensors == kind.is_floating_point and not report.differences


@pytest.mark.parametrize(
    "kind", [float, np.float64, np.float32, lambda s: [np.float64(s)], lambda s: dt.timedelta(seconds=s), Fraction]
)
def test_a_time_in_a_pickle_is_not_judged_in_any_type(
    repo: Repository, tmp_path: Path, kind: Callable[[float], object]
) -> None:
    def files(seconds: float, loss: float) -> Files:
        value = {"epoch_time": kind(seconds), "loss": kind(loss)}
        return {"out/a.pkl": pickle.dumps(value), "out/b.pt": saved(value)}

    assert not compare(repo, tmp_path, (ONE, OTHER), (files(1.5, 3.5), files(2.5, 3.5))).differences
    (tmp_path / "other").mkdir()
    differences = compare(repo, tmp_path / "other", (ONE, OTHER), (files(1.5, 3.5), files(2.5, 4.5))).differences
    assert [":loss" in difference.name for difference in differences] == [True, True]
