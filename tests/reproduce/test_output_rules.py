"""The rules for delivered results, over all places of a value, statuses and declarations.

A verdict is diverged only if a judged value differs, and reproduced only if none does. Each file, artifact, parameter
and metric has exactly one status.
"""

import functools
import hashlib
import io
import itertools
import json
import pickle
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config import result_patterns
from m5ws.records.reasons import ResultsHint
from m5ws.reproduce.outputs import output_files
from m5ws.reproduce.outputs.content import Content
from m5ws.reproduce.outputs.output_files import OutputReport, OutputRules, Results

Status = Literal["equal", "differs", "only original", "only replay"]
_STATUSES: tuple[Status, ...] = ("equal", "differs", "only original", "only replay")


def _saved(value: object, *, is_zip: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


def _npz(value: float) -> bytes:
    file = io.BytesIO()
    np.savez(file, other=np.ones(3), w=np.full(3, value))
    return file.getvalue()


def _npy(value: float) -> bytes:
    file = io.BytesIO()
    np.save(file, np.full(3, value))
    return file.getvalue()


class _Place(msgspec.Struct, frozen=True):
    """A place of one value: `pattern` names it; `part` is the begin of its key in the item.

    `decides`: "tensor", or "weights" of an unknown format, or "all" where all files and metrics are judged.
    """

    kind: Literal["files", "artifacts", "parameters", "metrics"]
    name: str
    write: Callable[[float], object]
    decides: Literal["tensor", "weights", "all", "never"]
    pattern: str | None
    part: str | None = None


def _keep(value: float) -> object:
    return value


_PLACES = (
    _Place("files", "out/a.json", lambda x: json.dumps({"k": 1, "a": {"b": x}}).encode(), "all", "out/a.json:a", "a.b"),
    _Place("files", "out/a.yaml", lambda x: f"k: 1\na: {x}\n".encode(), "all", "**/a.yaml:a", "a"),
    _Place("files", "out/a.csv", lambda x: f"id,a\n1,2\n2,{x}\n".encode(), "all", "out/*.csv:a", "2.a"),
    _Place("files", "out/train_runtime.log", lambda x: f"00:00\nduration {x}\n".encode(), "all", "out/*.log", "line 2"),
    _Place("files", "out/2026-11-27/a.tar", lambda x: b"\0\xff" + bytes([int(x)]) * 9, "all", "out/*/a.tar"),
    _Place("files", "out/a.npz", _npz, "tensor", "out/a.npz", "tensor w.npy"),
    _Place("files", "out/a.npy", _npy, "tensor", "out/a.npy", "tensor array"),
    _Place(
        "files", "out/a", lambda x: safetensors.torch.save({"w": torch.full((3,), x)}), "tensor", "out/a", "tensor w"
    ),
    _Place("files", "out/a.pth.tar", lambda x: _saved({"w": torch.full((3,), x)}), "tensor", "*.pth.tar", "tensor w"),
    _Place(
        "files", "out/old.pt", lambda x: _saved({"w": torch.tensor(x)}, is_zip=False), "tensor", "**/old.pt", "tensor w"
    ),
    _Place("files", "out/a.pkl", lambda x: pickle.dumps({"w": torch.tensor(x)}), "tensor", "out/a.pkl", "tensor w"),
    _Place("files", "out/value.pkl", lambda x: pickle.dumps({"date": x}), "all", "out/value.pkl", "date"),
    _Place("files", "out/a.gguf", lambda x: b"GGUF" + bytes([int(x)]), "weights", "out/a.gguf"),
    _Place("artifacts", "model/w.npy", _npy, "tensor", None, "tensor array"),
    _Place("artifacts", "eval.json", lambda x: json.dumps({"a": x}).encode(), "never", None, "a"),
    _Place("parameters", "best_k", _keep, "never", None),
    _Place("metrics", "eval/train_runtime", _keep, "all", "metric:eval/train_runtime", "step 3"),
)


class _Case(msgspec.Struct, frozen=True):
    place: _Place
    status: Status
    is_named: bool


def _content(data: bytes) -> dict[str, Content]:
    digest = hashlib.sha256(data).hexdigest()
    content = Content(digest=digest, size_bytes=len(data), head=lambda: data[:28], open=lambda: io.BytesIO(data))
    return {digest: content}


@functools.cache
def _written(place: _Place, value: float) -> object:
    """Return the same bytes for a value each time: pickles of tensors have addresses in memory."""
    return place.write(value)


def _side(cases: Iterable[_Case], *, is_original: bool) -> Results:
    """Return the results of one run."""
    kinds: dict[str, dict[str, object]] = {kind: {} for kind in ("files", "artifacts", "parameters", "metrics")}
    for case in cases:
        if case.status == ("only replay" if is_original else "only original"):
            continue
        written = _written(case.place, 2.0 if case.status == "differs" and not is_original else 1.0)
        value = _content(written) if isinstance(written, bytes) else frozenset({(1, "0.5"), (3, str(written))})
        kinds[case.place.kind][case.place.name] = value
    return Results(**kinds)  # type: ignore[arg-type]


def _compare(cases: tuple[_Case, ...], *, has_steps: bool, strict: bool) -> OutputReport:
    patterns = [result_patterns.parse(case.place.pattern or "") for case in cases if case.is_named]
    sides = _side(cases, is_original=True), _side(cases, is_original=False)
    return output_files.compare(sides, OutputRules(results=tuple(patterns), strict=strict), has_steps=has_steps)


def _decides(case: _Case, cases: tuple[_Case, ...], *, has_steps: bool, strict: bool) -> str:
    """Return the effect of a case by the rules of the documentation: diverged, sampled, evidence or listed."""
    place, is_lone = case.place, case.status.startswith("only")
    found = any(each.place.decides == "tensor" for each in cases)
    is_all = not (has_steps or found or any(each.is_named for each in cases))
    in_full = case.is_named or (strict and place.kind == "files")
    judged = in_full or place.decides == "tensor" or (is_all and place.decides in ("all", "weights") and not is_lone)
    if case.status == "equal":
        return "evidence" if judged else "listed"
    if is_lone and not in_full:
        return "sampled" if place.decides in ("tensor", "weights") else "listed"
    return "diverged" if judged else "sampled" if place.decides == "weights" else "listed"


def _check(cases: tuple[_Case, ...], *, has_steps: bool, strict: bool) -> None:
    report = _compare(cases, has_steps=has_steps, strict=strict)
    effects = [_decides(case, cases, has_steps=has_steps, strict=strict) for case in cases]
    assert (report.first is not None) == ("diverged" in effects), effects
    assert bool(report.unsure) == ("sampled" in effects), effects
    assert bool(report.evidence) == ("evidence" in effects), effects
    wanted = sorted((case.place.kind.removesuffix("s"), case.place.name) for case in cases)
    assert sorted((item.kind, item.name) for item in report.items if item.kind != "result") == wanted
    for case in cases:
        (item,) = (item for item in report.items if (item.kind + "s", item.name) == (case.place.kind, case.place.name))
        differs = case.status == "differs" or (case.status != "equal" and item.judged and item.status == "differs")
        assert item.status in ("differs", "not compared") if differs else item.status != "differs"
        assert (item.status == "equal") == (case.status == "equal")
        assert case.status != "differs" or (item.place or "").startswith(case.place.part or ""), item
        assert item.status != "not compared" or item.reason


def _cases(place: _Place) -> Iterable[_Case]:
    for status, is_named in itertools.product(_STATUSES, (False, True) if place.pattern else (False,)):
        yield _Case(place, status, is_named)


@pytest.mark.parametrize("place", _PLACES, ids=lambda place: place.name)
def test_each_result_place_decides_by_its_output_rule(place: _Place) -> None:
    for case, has_steps, strict in itertools.product(_cases(place), (False, True), (False, True)):
        _check((case,), has_steps=has_steps, strict=strict)


@given(
    st.lists(
        st.sampled_from([case for place in _PLACES for case in _cases(place)]), unique_by=lambda case: case.place.name
    ),
    st.booleans(),
    st.booleans(),
)
def test_several_result_places_decide_by_their_output_rules(cases: list[_Case], has_steps: bool, strict: bool) -> None:
    _check(tuple(cases), has_steps=has_steps, strict=strict)


def _files(**files: bytes) -> Results:
    return Results(files={name: _content(data) for name, data in files.items()})


def _rules(*patterns: str) -> OutputRules:
    return OutputRules(results=tuple(map(result_patterns.parse, patterns)))


def test_a_value_beside_tensors_in_a_file_is_listed_and_does_not_decide() -> None:
    sides = [_files(**{"m.pt": _saved({"w": torch.ones(3), "refit_time_": time})}) for time in (0.25, 0.5)]
    report = output_files.compare((sides[0], sides[1]), OutputRules(), has_steps=False)
    (item,) = report.items
    assert (item.status, item.judged, item.place) == ("differs", False, "refit_time_")
    assert report.first is None and not report.unsure and report.has_tensors


def test_tensors_under_other_keys_are_equal_and_their_keys_are_listed() -> None:
    """A framework puts the path of a checkpoint into keys of the file."""
    old, same, other = (
        _files(m=_saved({"best": {f"/work/{run}/a.ckpt": torch.tensor(value)}, "w": torch.ones(3)}))
        for run, value in ((1, 0.5), (2, 0.5), (2, 0.75))
    )
    assert output_files.compare((old, same), OutputRules(), has_steps=False).first is None
    assert output_files.compare((old, other), OutputRules(), has_steps=False).first is not None


def test_a_pattern_pairs_one_file_of_each_side_with_different_names() -> None:
    names = ("out/2026-11-24/18-22-30/m.pt", "out/2026-11-25/09-00-00/m.pt")
    data = [_saved({"w": torch.full((3,), value)}) for value in (1.0, 2.0)]
    for new, status in zip(data, ("equal", "differs"), strict=True):
        sides = _files(**{names[0]: data[0]}), _files(**{names[1]: new})
        unpaired = output_files.compare(sides, OutputRules(), has_steps=True)
        assert len(unpaired.unsure) == 2 and unpaired.hint == ResultsHint(purpose="pair", patterns=("**/m.pt",))
        (item,) = output_files.compare(sides, _rules("**/m.pt"), has_steps=True).items
        assert (item.name, item.replayed_as, item.status, item.judged) == (*names, status, True)


def test_a_pattern_that_matches_several_files_pairs_equal_names() -> None:
    old, new = _files(**{"a/x.txt": b"1", "b/x.txt": b"2"}), _files(**{"a/x.txt": b"1", "c/x.txt": b"2"})
    items = output_files.compare((old, new), _rules("*/x.txt"), has_steps=True).items
    assert {item.name: item.status for item in items} == {
        "a/x.txt": "equal",
        "b/x.txt": "differs",
        "c/x.txt": "differs",
    }


@pytest.mark.parametrize("pattern", ["out/none.json", "out/none.json:a", "metric:none", "a.json:none"])
def test_a_named_result_that_both_runs_lack_is_named_and_no_evidence(pattern: str) -> None:
    side = _files(**{"a.json": b'{"a": 1}'})
    report = output_files.compare((side, side), _rules(pattern), has_steps=False)
    (item,) = report.unsure
    assert item.name == pattern and not report.evidence and report.first is None


def test_a_named_key_counts_by_its_value_and_another_key_does_not_decide() -> None:
    old, new = _files(**{"a.json": b'{"a": 0.5, "t": 1}'}), _files(**{"a.json": b'{"a": 0.50, "t": 2}'})
    report = output_files.compare((old, new), _rules("a.json:a"), has_steps=False)
    assert report.first is None and report.evidence == {"results": 1}
    assert [(item.kind, item.place) for item in report.items if item.status == "differs"] == [("file", "t")]


def test_all_files_and_metrics_are_narrowed_by_the_hint() -> None:
    old, new = (_files(**{"a.txt": b"1", "b.json": b'{"t": %d}' % number}) for number in (1, 2))
    report = output_files.compare((old, new), OutputRules(), has_steps=False)
    assert report.first is not None and report.hint == ResultsHint(purpose="narrow", patterns=("a.txt", "b.json:KEY"))
    assert output_files.compare((old, old), OutputRules(), has_steps=False).hint is None


def test_contents_of_one_artifact_in_several_tracked_runs_have_no_order() -> None:
    def side(*values: float) -> Results:
        contents = [_content(_saved({"w": torch.tensor(value)}, is_zip=False)) for value in values]
        return Results(artifacts={"m.pt": {digest: each for content in contents for digest, each in content.items()}})

    assert output_files.compare((side(1, 2), side(2, 1)), OutputRules(), has_steps=True).first is None
    assert output_files.compare((side(1, 2), side(2, 3)), OutputRules(), has_steps=True).first is not None


def test_results_of_a_run_that_did_not_end_are_listed_with_the_reason() -> None:
    cases = tuple(_Case(place, status, is_named=False) for place, status in zip(_PLACES, itertools.cycle(_STATUSES)))
    sides = _side(cases, is_original=True), _side(cases, is_original=False)
    report = output_files.list_uncompared(sides, "the replay did not end by itself")
    assert len(report.items) == len(_PLACES) and {item.status for item in report.items} == {"not compared"}
    assert report.first is None and not report.unsure and not report.evidence


@pytest.mark.parametrize("text", ["", "metric:", "/abs", "../up", "out/a.json:", "out/model.pt:w", "~/a"])
def test_an_invalid_result_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is|has|names"):
        result_patterns.parse(text)
    assert repr(text) in (result_patterns.describe_fault([text]) or "")


@pytest.mark.parametrize("text", ["out/a.json", "./out/a.json", "out//a.json", "out/./a.json:key", "**/./a.json"])
def test_all_spellings_of_a_path_name_the_same_file(text: str) -> None:
    assert result_patterns.parse(text).find(["out/a.json", "out/b.json"]) == ["out/a.json"]


_HOSTILE = {
    "a.yaml": b"a: &a [x, x]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (n, n) for n in range(30)),
    "deep.json": b"[" * 200_000,
    "long.html": b'<img src="data:image/png;base64,' + b"A" * 2**21 + b'">',
    "wide.csv": b"," * 2**20,
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_text_that_is_costly_to_parse_is_compared_by_lines(name: str) -> None:
    sides = _files(**{name: _HOSTILE[name] + b" 1\n"}), _files(**{name: _HOSTILE[name] + b" 2\n"})
    (item,) = output_files.compare(sides, OutputRules(), has_steps=False).items
    assert item.status == "differs" and (item.place or "").startswith(("line", "columns"))
