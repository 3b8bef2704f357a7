"""Output files of resumed runs in the numbered folders of Lightning's loggers."""

import json
import tempfile
from pathlib import Path

import msgspec
import pytest
import torch

from m5ws.repository.repository import Repository
from m5ws.reproduce.outputs import output_files
from tests.support.records.output_sides import ONE, OTHER, Files, Side, compare, saved, stored_content


@pytest.mark.parametrize(
    ("whole", "resumed", "is_continued"),
    [
        ("epoch,loss,step,val\n0,1.0,3,\n0,,5,2.0\n1,0.5,6,\n", "epoch,loss,step\n1,0.5,6\n", True),
        ("epoch,loss,step,val\n0,1.0,3,\n1,0.5,6,\n1,,6,2.0\n", "epoch,loss,step\n1,0.5,6\n", False),
        ("epoch,loss,step,val\n0,1.0,3,\n1,0.5,6,\n", "epoch,loss,step\n1,0.6,6\n", False),
        ("epoch,loss\n0,1.0\n1,0.5\n", "epoch,accuracy\n1,0.5\n", False),
        ("epoch,loss\n0,1.0\n1,0.5\n", "epoch,loss\n", False),
        # The mean of the epoch in which the attempt began, and that of a later one.
        ("epoch,a_epoch,a_step\n0,,3\n0,1.0,\n1,0.5,\n", "epoch,a_epoch,a_step\n0,1.5,\n1,0.5,\n", True),
        ("epoch,a_epoch,a_step\n0,,3\n0,1.0,\n1,0.5,\n", "epoch,a_epoch,a_step\n0,1.0,\n1,0.6,\n", False),
        ("epoch,a_epoch,a_step\n0,,3\n0,1.0,\n1,0.5,\n", "epoch,a_epoch\n0,1.5\n", False),
        # Not of other values, as a script logs them.
        ("epoch,a_epoch\n0,1.0\n1,0.5\n", "epoch,a_epoch\n0,1.5\n1,0.5\n", False),
        ("epoch,a,a_step\n0,,3\n0,1.0,\n1,0.5,\n", "epoch,a,a_step\n0,1.5,\n1,0.5,\n", False),
        ("epoch,best_epoch,best_step\n0,0,3\n1,1,4\n", "epoch,best_epoch,best_step\n1,0,4\n", False),
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
    report = compare(repo, tmp_path, (msgspec.structs.replace(ONE, attempts=2), OTHER), sides)
    assert (not report.differences) == is_continued


def test_the_first_cell_that_differs_in_the_last_rows_is_named(repo: Repository, tmp_path: Path) -> None:
    whole, resumed = "step,loss\n1,3.0\n2,2.0\n3,1.0\n", "step,loss\n2,2.0\n3,9.0\n"
    sides = (
        {"logs/version_0/metrics.csv": whole.encode()},
        {f"logs/version_{number}/metrics.csv": rows.encode() for number, rows in enumerate(("step\n", resumed))},
    )
    report = compare(repo, tmp_path, (OTHER, msgspec.structs.replace(ONE, attempts=2)), sides)
    (difference,) = report.differences
    assert difference.name == "logs/version_N/metrics.csv:3.loss"
    assert (difference.original, difference.replayed) == ("1.0", "9.0")


@pytest.mark.parametrize("loss", [1.0, 2.0])
def test_logs_of_several_trainings_in_numbered_folders_are_not_paired_in_a_resumed_run(
    repo: Repository, tmp_path: Path, loss: float
) -> None:
    """The resumed run did the second training in two attempts, and so has three folders."""

    def files(*rows: str) -> Files:
        logs = {f"out/logs/version_{n}/metrics.csv": f"step,loss\n{row}".encode() for n, row in enumerate(rows)}
        return logs | {
            "out/fold0.pt": saved({"w": torch.ones(2)}),
            "out/fold1.pt": saved({"w": torch.full((2,), loss)}),
        }

    sides = files("1,5.0\n2,6.0\n", "1,1.0\n", "2,1.0\n"), files("1,5.0\n2,6.0\n", "1,1.0\n2,1.0\n")
    sides[1]["out/fold1.pt"] = saved({"w": torch.ones(2)})
    report = compare(repo, tmp_path, (msgspec.structs.replace(ONE, attempts=2), OTHER), sides)
    assert [difference.name for difference in report.differences] == (["out/fold1.pt:w"] if loss > 1 else [])
    assert report.unpaired and all(name.startswith("out/logs/version_") for name in report.unpaired)


def test_the_numbered_folders_of_several_ranks_are_compared_in_their_order(repo: Repository, tmp_path: Path) -> None:
    """Each rank has a folder in each attempt, and rank 0 alone has the table."""

    def files(first: int, rows: str) -> Files:
        folders = [f"out/logs/version_{number}" for number in (first, first + 1)]
        settings = {f"{folder}/hparams.yaml": f"root: {folder}\n".encode() for folder in folders}
        return settings | {f"{folders[0]}/metrics.csv": f"step,loss\n{rows}".encode()}

    resumed = msgspec.structs.replace(ONE, attempts=2)
    whole, first, sides = files(0, "1,5.0\n2,6.0\n"), files(0, "1,5.0\n"), (resumed, OTHER)
    report = compare(repo, tmp_path, sides, (first | files(2, "2,6.0\n"), whole), earlier=first)
    assert not report.differences and not report.unpaired
    report = compare(repo, tmp_path, sides, (first | files(2, "2,7.0\n"), whole), earlier=first)
    assert not report.differences and report.unpaired


def _training(number: int, *, of: int) -> Files:
    folder = f"logs/version_{number}"
    table, weights = f"epoch,a_epoch,a_step\n0,{of}.5,{of}.0\n".encode(), saved({"w": torch.full((2,), float(of))})
    return {f"{folder}/hparams.yaml": b"{}\n", f"{folder}/metrics.csv": table, f"{folder}/checkpoints/a.ckpt": weights}


@pytest.mark.parametrize("lost", range(3))
def test_a_training_that_the_replay_lacks_is_a_difference(repo: Repository, tmp_path: Path, lost: int) -> None:
    """Three trainings with numbers of their own, of which the first was done in an earlier attempt."""
    resumed = msgspec.structs.replace(ONE, attempts=2)
    every = [_training(number, of=number) for number in (1, 2, 3)]
    mine = every[0] | every[1] | every[2]
    theirs = {name: data for number, files in enumerate(every) if number != lost for name, data in files.items()}
    report = compare(repo, tmp_path, (resumed, OTHER), (mine, theirs), earlier=every[0])
    assert report.differences or report.unpaired
    (tmp_path / "swapped").mkdir()
    report = compare(repo, tmp_path / "swapped", (OTHER, resumed), (theirs, mine), earlier=every[0])
    assert report.differences or report.unpaired


def test_the_table_of_a_training_that_an_earlier_attempt_did_is_judged_whole(repo: Repository, tmp_path: Path) -> None:
    resumed = msgspec.structs.replace(ONE, attempts=2)
    first, second = _training(1, of=1), _training(2, of=2)
    changed = first | {"logs/version_1/metrics.csv": b"epoch,a_epoch,a_step\n0,9.5,1.0\n"}
    assert not compare(repo, tmp_path, (resumed, OTHER), (first | second, first | second), earlier=first).differences
    (tmp_path / "changed").mkdir()
    sides = first | second, changed | second
    report = compare(repo, tmp_path / "changed", (resumed, OTHER), sides, earlier=first)
    assert [difference.name for difference in report.differences] == ["logs/version_1/metrics.csv:1.a_epoch"]


def test_numbers_that_no_attempt_took_are_judged(repo: Repository, tmp_path: Path) -> None:
    """A value may name a folder of another run's logger, such as that of a pretrained model."""
    resumed = msgspec.structs.replace(ONE, attempts=2)

    def files(*numbers: int, teacher: int) -> Files:
        own = f"base: logs/version_{numbers[-1]}\ninit: logs/version_{teacher}/a.ckpt\n".encode()
        return {f"logs/version_{number}/hparams.yaml": own for number in numbers} | {f"logs/version_{teacher}/r": b"1"}

    for number, (teacher, is_equal) in enumerate({3: True, 7: False}.items()):
        (tmp_path / str(number)).mkdir()
        first = files(0, teacher=3)
        sides = first | files(1, teacher=3), files(0, teacher=teacher)
        report = compare(repo, tmp_path / str(number), (resumed, OTHER), sides, earlier=first)
        assert (not report.differences) == is_equal


@pytest.mark.parametrize("best", [1, 2])
def test_the_training_that_was_chosen_is_judged(repo: Repository, tmp_path: Path, best: int) -> None:
    """The first attempt was killed in the first of two trainings."""
    resumed, first = msgspec.structs.replace(ONE, attempts=2), {"logs/version_0/hparams.yaml": b"{}\n"}

    def files(one: int, two: int, best: int) -> Files:
        chosen = f'{{"best": "logs/version_{(one, two)[best - 1]}"}}'.encode()
        return _training(one, of=1) | _training(two, of=2) | {"out/best.json": chosen}

    report = compare(repo, tmp_path, (resumed, OTHER), (first | files(1, 2, best), files(0, 1, 1)), earlier=first)
    assert [difference.name for difference in report.differences] == ["out/best.json:best"] * (best == 2)


FORMS = {
    "value": lambda of: {"out/best.json": json.dumps({"best": of}).encode()},
    "part of a text": lambda of: {"out/best.md": f"The best one is in {of}.\n".encode()},
    "relative path": lambda of: {"out/best.json": json.dumps({"best": f"./{of}/a.ckpt"}).encode()},
    "key": lambda of: {"out/best.json": json.dumps({of: "chosen"}).encode()},
    "key in a mapping": lambda of: {"out/best.json": json.dumps({"a": {of: "chosen"}}).encode()},
    "file": lambda of: {f"{of}/CHOSEN": b"1"},
    "archive": lambda of: {f"{of}.zip": b"PK"},
}
"""The ways in which a script tells which of its trainings it chose, by the folder of its logger."""


@pytest.mark.parametrize("digits", [1, 3])
@pytest.mark.parametrize("best", [0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_the_chosen_one_of_two_trainings_is_judged_in_any_form(
    repo: Repository, tmp_path: Path, form: str, best: int, digits: int
) -> None:
    """The first attempt was killed as both had begun."""
    folders = [f"logs/version_{number:0{digits}d}" for number in range(4)]
    first = {f"{folder}/hparams.yaml": b"{}\n" for folder in folders[:2]}

    def files(two: list[str], best: int) -> Files:
        tables = {f"{folder}/metrics.csv": f"step,loss\n1,{n}.5\n".encode() for n, folder in enumerate(two)}
        return {f"{folder}/hparams.yaml": b"{}\n" for folder in two} | tables | FORMS[form](two[best])

    sides = first | files(folders[2:], best), files(folders[:2], 0)
    report = compare(repo, tmp_path, (msgspec.structs.replace(ONE, attempts=2), OTHER), sides, earlier=first)
    assert bool(report.differences or report.unpaired) is (best == 1)


@pytest.mark.parametrize("path", ["elsewhere/logs/version_", "/models/logs/version_", "../logs/version_"])
def test_the_number_of_a_folder_that_only_ends_like_one_of_a_logger_is_judged(
    repo: Repository, tmp_path: Path, path: str
) -> None:
    resumed = msgspec.structs.replace(ONE, attempts=2)
    first = {"logs/version_0/hparams.yaml": b"{}\n"}
    sides = (
        first | {"logs/version_1/hparams.yaml": f"a: {path}1\n".encode()},
        {"logs/version_0/hparams.yaml": f"a: {path}0\n".encode()},
    )
    assert compare(repo, tmp_path, (resumed, OTHER), sides, earlier=first).differences


@pytest.mark.parametrize("folder", ["logs/version_1", "logs/fold_1/version_0"])
@pytest.mark.parametrize("reason", ["no file of an earlier attempt", "the first step"])
def test_a_table_that_no_attempt_interrupted_is_judged_whole(
    repo: Repository, tmp_path: Path, folder: str, reason: str
) -> None:
    head = "epoch,a_epoch,a_step\n0,,1\n"
    other = folder.replace("version_1", "version_0")
    first = {"logs/fold_0/version_0/hparams.yaml": b"{}\n", "logs/fold_0/version_0/metrics.csv": head.encode()}
    is_anew = reason == "the first step"
    if is_anew:
        first |= {f"{other}/hparams.yaml": b"{}\n"}
    sides = (
        first | {f"{folder}/metrics.csv": f"{head}0,0.8,\n".encode(), f"{folder}/hparams.yaml": b"{}\n"},
        {**first, f"{other}/metrics.csv": f"{head}0,0.1,\n".encode(), f"{other}/hparams.yaml": b"{}\n"},
    )
    resumed = msgspec.structs.replace(ONE, attempts=2, begins_anew=is_anew)
    report = compare(repo, tmp_path, (resumed, OTHER), sides, earlier=first)
    assert [difference.name.rpartition(":")[2] for difference in report.differences] == ["2.a_epoch"]


def test_a_table_of_two_attempts_has_the_last_rows_if_the_last_attempt_had_none(
    repo: Repository, tmp_path: Path
) -> None:
    """Another attempt was killed after the training, or trained the same steps."""
    table = "epoch,step,loss\n"

    def files(number: int, rows: str) -> Files:
        settings = {f"logs/version_{number}/hparams.yaml": b"{}\n"}
        return settings | ({f"logs/version_{number}/metrics.csv": f"{table}{rows}".encode()} if rows else {})

    whole, resumed = files(0, "0,4,3.0\n1,8,2.0\n"), msgspec.structs.replace(ONE, attempts=3)
    earlier = files(0, "0,4,3.0\n") | files(1, "1,8,2.0\n")
    for number, (rows, is_equal) in enumerate({"": True, "1,8,2.0\n": True, "1,8,2.5\n": False}.items()):
        (tmp_path / str(number)).mkdir()
        sides = earlier | files(2, rows), whole
        report = compare(repo, tmp_path / str(number), (resumed, OTHER), sides, earlier=earlier)
        assert (not report.differences) is is_equal, rows


def test_the_folders_of_two_loggers_in_each_attempt_are_compared_in_their_order(
    repo: Repository, tmp_path: Path
) -> None:
    def files(first: int, rows: str) -> Files:
        logs = {f"logs/version_{first}/events.out.tfevents.{first}": rows.encode()}
        return logs | {f"logs/version_{first + 1}/metrics.csv": f"step,loss\n{rows}".encode()}

    resumed, earlier = msgspec.structs.replace(ONE, attempts=2), files(0, "1,3.0\n")
    for number, (rows, is_equal) in enumerate({"2,2.0\n": True, "2,9.0\n": False}.items()):
        (tmp_path / str(number)).mkdir()
        sides = earlier | files(2, rows), files(0, "1,3.0\n2,2.0\n")
        report = compare(repo, tmp_path / str(number), (resumed, OTHER), sides, earlier=earlier)
        assert not report.differences and (not report.unpaired) is is_equal


def test_of_folders_of_times_the_one_that_an_attempt_left_unfinished_is_not_compared(
    repo: Repository, tmp_path: Path
) -> None:
    """The first attempt did one task and was killed in another, which the second attempt did."""

    def file(side: Side, after_s: float, text: str) -> Files:
        return {f"outputs/{side.moment(after_s):%Y-%m-%d/%H-%M-%S}/result.json": text.encode()}

    resumed, first = msgspec.structs.replace(ONE, attempts=2), file(ONE, 1, '{"a": 1}') | file(ONE, 20, '{"b": 0}')
    for number, (text, is_equal) in enumerate({'{"b": 2}': True, '{"b": 3}': False}.items()):
        (tmp_path / str(number)).mkdir()
        sides = first | file(ONE, 60, text), file(OTHER, 1, '{"a": 1}') | file(OTHER, 40, '{"b": 2}')
        report = compare(repo, tmp_path / str(number), (resumed, OTHER), sides, earlier=first)
        assert (not report.differences) is is_equal


@pytest.mark.parametrize("best", [0, 1])
def test_two_trainings_in_folders_of_each_attempts_time_are_compared_in_their_order(
    repo: Repository, tmp_path: Path, best: int
) -> None:
    """The first attempt was killed as both had begun."""

    def files(side: Side, after_s: float, *, is_begun: bool = False) -> Files:
        folder = f"outputs/{side.moment(after_s):%Y-%m-%d/%H-%M-%S}/logs/version_"
        found: Files = {f"{folder}{number}/hparams.yaml": b"{}\n" for number in (0, 1)}
        for number in () if is_begun else (0, 1):
            found[f"{folder}{number}/metrics.csv"] = f"step,loss\n1,{number}.5\n".encode()
        return found | (
            {} if is_begun else {"best.json": json.dumps({"a": f"{folder}{best if side == ONE else 0}"}).encode()}
        )

    first, resumed = files(ONE, 1, is_begun=True), msgspec.structs.replace(ONE, attempts=2)
    report = compare(repo, tmp_path, (resumed, OTHER), (first | files(ONE, 60), files(OTHER, 1)), earlier=first)
    assert bool(report.differences or report.unpaired) is (best == 1)


@pytest.mark.parametrize(
    "folder",
    [
        "logs/version_0",
        "logs/exp (1)/version_0",
        f"logs/{ONE.moment():%Y-%m-%d}/version_0",
        f"logs/{ONE.host}/version_0",
    ],
)
@pytest.mark.parametrize("left", ["hparams.yaml", ""])
def test_a_table_of_a_fixed_number_has_the_last_rows_in_any_folder(
    repo: Repository, tmp_path: Path, folder: str, left: str
) -> None:
    """A logger may write its first file long after the first checkpoint, which is elsewhere."""
    checkpoint: Files = {"a.ckpt": b"1", f"{folder}/hparams.yaml": b"{}\n"}
    earlier = [f"{folder}/{left}", "a.ckpt"] if left else ["a.ckpt"]
    sides = tuple(
        checkpoint | {f"{folder}/metrics.csv": f"step,loss\n{rows}".encode()} for rows in ("2,2.0\n", "1,3.0\n2,2.0\n")
    )
    again = msgspec.structs.replace(ONE, run=OTHER.run)
    resumed = msgspec.structs.replace(ONE, attempts=2)
    assert not compare(repo, tmp_path, (resumed, again), (sides[0], sides[1]), earlier=earlier).differences


def test_a_file_beside_numbered_folders_that_is_named_like_them_is_judged(repo: Repository, tmp_path: Path) -> None:
    resumed, first = msgspec.structs.replace(ONE, attempts=2), {"logs/version_0/hparams.yaml": b"{}\n"}

    def files(one: int, two: int, data: bytes) -> Files:
        return _training(one, of=1) | _training(two, of=2) | {f"logs/version_{two}.onnx": data}

    sides = first | files(1, 2, b"1"), files(0, 1, b"2")
    report = compare(repo, tmp_path, (resumed, OTHER), sides, earlier=first)
    assert [difference.name.partition(":")[0] for difference in report.differences] == ["logs/version_N2.onnx"]


def test_a_row_with_too_many_cells_is_compared_as_a_line(repo: Repository, tmp_path: Path) -> None:
    resumed = msgspec.structs.replace(ONE, attempts=2)
    sides = tuple({"logs/version_0/metrics.csv": f"step,note\n1,a,{cell}\n".encode()} for cell in "bc")
    assert compare(repo, tmp_path, (resumed, OTHER), (sides[0], sides[1])).differences


def test_a_result_of_an_earlier_attempt_that_the_replay_lacks_is_a_difference(repo: Repository, tmp_path: Path) -> None:
    resumed = msgspec.structs.replace(ONE, attempts=2)
    first = {"logs/version_0/hparams.yaml": b"{}\n", "logs/version_0/results.json": b'{"accuracy": 0.9}'}
    sides = first | _training(1, of=0), _training(0, of=0)
    (difference,) = compare(repo, tmp_path, (resumed, OTHER), sides, earlier=first).differences
    assert difference.name.endswith("results.json")


def test_the_tables_of_attempts_in_folders_of_their_times_are_compared(repo: Repository, tmp_path: Path) -> None:
    resumed = msgspec.structs.replace(ONE, attempts=2)

    def files(side: Side, after_s: float, rows: str) -> Files:
        folder = f"outputs/{side.moment(after_s):%Y-%m-%d/%H-%M-%S}/csv/version_0"
        return {f"{folder}/hparams.yaml": b"{}\n", f"{folder}/metrics.csv": f"step,loss\n{rows}".encode()}

    first = files(ONE, 1, "1,3.0\n")
    for number, (last, is_equal) in enumerate({"2,2.0\n": True, "2,9.0\n": False}.items()):
        (tmp_path / str(number)).mkdir()
        sides = first | files(ONE, 60, last), files(OTHER, 1, "1,3.0\n2,2.0\n")
        report = compare(repo, tmp_path / str(number), (resumed, OTHER), sides, earlier=first)
        assert (not report.differences) == is_equal


def test_a_table_of_an_uninterrupted_run_that_lacks_rows_differs(repo: Repository, tmp_path: Path) -> None:
    whole, last = b"step,loss\n1,3.0\n2,2.0\n", b"step,loss\n2,2.0\n"
    resumed = msgspec.structs.replace(ONE, attempts=2)

    def differ(mine: bytes, theirs: bytes) -> bool:
        sides = {"logs/version_1/metrics.csv": mine}, {"logs/version_0/metrics.csv": theirs}
        return bool(compare(repo, tmp_path, (resumed, OTHER), sides).differences)

    assert differ(whole, last) and not differ(last, whole)


def test_numbered_folders_that_no_logger_made_are_results(repo: Repository, tmp_path: Path) -> None:
    resumed = msgspec.structs.replace(ONE, attempts=2)
    best = {"out/best/version_2/a.json": b"1"}, {"out/best/version_5/a.json": b"1"}
    assert compare(repo, tmp_path, (resumed, OTHER), best).differences
    chosen = {"out/a.json": b'{"best": "abl/version_2/a.pt"}'}, {"out/a.json": b'{"best": "abl/version_5/a.pt"}'}
    assert compare(repo, tmp_path, (resumed, OTHER), chosen).differences
    more = {f"out/abl/version_{number}/a.pt": saved({"w": torch.full((2,), float(number))}) for number in (1, 2)}
    fewer = {"out/abl/version_2/a.pt": more["out/abl/version_2/a.pt"]}
    place = msgspec.structs.replace(resumed.place, earlier=frozenset())
    contents = stored_content(repo, tmp_path, more), stored_content(repo, tmp_path, fewer)
    assert output_files.compare(repo, contents, (place, OTHER.place)).differences


@pytest.mark.parametrize(
    "changed", ["out/best.json", "out/logs/version_2/checkpoints/a.ckpt", "out/logs/version_best.pt"]
)
def test_numbers_that_both_runs_have_are_results(repo: Repository, tmp_path: Path, changed: str) -> None:
    """Such as a logger with a version for each seed. The numbers of attempts are left out, those of results are not."""

    def files(numbers: tuple[int, ...], is_changed: bool) -> Files:
        found: Files = {"out/best.json": json.dumps({"best": f"out/logs/version_{1 + is_changed}"}).encode()}
        found["out/logs/version_best.pt"] = saved({"w": torch.full((2,), float(is_changed))})
        for number in numbers:
            found[f"out/logs/version_{number}/metrics.csv"] = f"step,loss\n{number},1.0\n".encode()
            weights = torch.full((2,), float(number + 5 * is_changed))
            found[f"out/logs/version_{number}/checkpoints/a.ckpt"] = saved({"w": weights})
        return found

    resumed = msgspec.structs.replace(ONE, attempts=2)
    whole = files((1, 2), is_changed=False)
    other = whole | {changed: files((1, 2), is_changed=True)[changed]}
    assert not compare(repo, tmp_path, (resumed, OTHER), (whole, whole)).differences
    (tmp_path / "a").mkdir()
    assert compare(repo, tmp_path / "a", (resumed, OTHER), (whole, other)).differences
    if changed == "out/logs/version_best.pt":
        # Here the folders of attempts are paired by a guess, and a file beside them is not.
        (tmp_path / "b").mkdir()
        more = files((1, 2, 3), is_changed=False)
        (difference,) = compare(repo, tmp_path / "b", (resumed, OTHER), (more, other)).differences
        assert difference.name == f"{changed}:w"


def test_a_table_of_the_last_attempt_with_a_fixed_number_has_the_last_rows(repo: Repository, tmp_path: Path) -> None:
    """A mean over an epoch is judged in rows without an epoch."""
    resumed = msgspec.structs.replace(ONE, attempts=2)

    def differ(mine: str, theirs: str) -> bool:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        sides = tuple({"logs/version_0/metrics.csv": text.encode()} for text in (mine, theirs))
        return bool(compare(repo, folder, (resumed, OTHER), (sides[0], sides[1])).differences)

    assert not differ("epoch,step,loss\n1,2,2.0\n", "epoch,step,loss\n0,1,3.0\n1,2,2.0\n")
    assert not differ("epoch,a_epoch,a_step\n1,2.0,\n", "epoch,a_epoch,a_step\n0,,6\n1,3.0,\n")
    assert differ("step,a_epoch,a_step\n1,2.0,\n", "step,a_epoch,a_step\n0,,6\n1,3.0,\n")
