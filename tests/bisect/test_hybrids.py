"""Differences between two runs, and the snapshots and launches of hybrids, in a real store."""

from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from m5ws.bisect import differences, hybrids
from m5ws.records.environment import Declared, Determinism
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.snapshot import Annotation, Code, Dataset, Snapshot, Tokenizer
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.materialise import materialise
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.config.merge import MergeConflict

_GOOD = {
    "code": {"train.py": "good", "gone.py": "good", "same.py": "same"},
    "config": {"config.yaml": "lr: 0.1  # rate\nlayers: 2\nsame: 1\n"},
    "tokenizer": {"tokenizer.json": "good"},
    "data": {"data/a": "good"},
}
_BAD = {
    "code": {"train.py": "bad", "come.py": "bad", "same.py": "same"},
    "config": {"config.yaml": "lr: 0.2\nlayers: 2\nsame: 1\nadded: true\n"},
    "tokenizer": {"tokenizer.json": "bad"},
    "data": {"data/a": "bad"},
}


def _run(repo: Repository, folder: Path, files: dict[str, dict[str, str]], name: str, **launch: object) -> Run:
    def tree(part: str) -> str:
        sources = []
        for path, text in files[part].items():
            location = folder / name / part / path
            location.parent.mkdir(parents=True, exist_ok=True)
            location.write_text(text)
            sources.append(SourceFile(path=path.encode(), location=location))
        return trees.write_tree(repo.objects, sources).digest

    record = Snapshot(
        code=Code(commit=name * 10, dirty=False, tree=tree("code")),
        config=tree("config"),
        tokenizer=Tokenizer(tree=tree("tokenizer"), probe_ids=(len(name),)),
        datasets=(Dataset(name="data", kind="files", tree=tree("data"), size_bytes=4),),
        declared=Declared(wanted={"nccl": name}),
        determinism=Determinism(threads=len(name)),
    )
    spec = LaunchSpec(command=("train.py",), **launch)  # type: ignore[arg-type]
    return Run(id=name, snapshot=snapshots.publish(repo, record, Annotation(created_s=1.0)), spec=spec)


@pytest.fixture
def pair(repo: Repository, tmp_path: Path) -> tuple[Run, Run]:
    good = _run(repo, tmp_path, _GOOD, "good", seed=1, environment={"A": "1", "B": "1"}, fingerprint_every=1)
    return good, _run(repo, tmp_path, _BAD, "bad", seed=2, environment={"A": "2", "C": "1"}, fingerprint_every=2)


def test_each_difference_is_one_element_and_untried_differences_are_listed(
    repo: Repository, pair: tuple[Run, Run]
) -> None:
    elements, untried = differences.list_differences(repo, *pair)
    assert [element.name for element in elements] == [
        "config lr",
        "config added",
        "code come.py",
        "code gone.py",
        "code train.py",
        "tokenizer files",
        "data data",
        "launch seed",
        "launch environment.A",
        "launch environment.B",
        "launch environment.C",
        "determinism threads",
    ]
    assert [excluded.change.name for excluded in untried] == ["fingerprint_every", "wanted nccl", "config.yaml (text)"]


def test_a_hybrid_without_elements_is_good_and_with_all_elements_is_bad(
    repo: Repository, pair: tuple[Run, Run]
) -> None:
    good, bad = pair
    elements, _ = differences.list_differences(repo, *pair)
    nothing = hybrids.make(repo, good, bad, elements, ())
    assert nothing == hybrids.Hybrid(snapshot=snapshots.load(repo, good.snapshot), spec=good.spec, parent=None)
    everything = hybrids.make(repo, good, bad, elements, elements)
    old, new = snapshots.load(repo, good.snapshot), snapshots.load(repo, bad.snapshot)
    assert everything.snapshot == msgspec.structs.replace(new, declared=old.declared)
    assert everything.spec == msgspec.structs.replace(bad.spec, fingerprint_every=1)


def test_a_hybrid_takes_its_elements_from_bad_and_the_rest_from_good(
    repo: Repository, pair: tuple[Run, Run], tmp_path: Path
) -> None:
    good, bad = pair
    elements, _ = differences.list_differences(repo, *pair)
    for number, chosen in enumerate(combinations(elements, 2)):
        hybrid = hybrids.make(repo, good, bad, elements, chosen)
        published = hybrids.publish(repo, hybrid, good, bad, "two")
        assert snapshots.load(repo, published) == hybrid.snapshot
        parts = [trees.load(repo.objects, tree) for tree in hybrid.snapshot.trees.values()]
        materialise(repo.objects, parts, tmp_path / str(number))
        again = [
            SourceFile(path=entry.path, location=tmp_path / str(number) / entry.name) for entry in parts[0].entries
        ]
        assert trees.write_tree(repo.objects, again).digest == hybrid.snapshot.code.tree
        _check(tmp_path / str(number), hybrid, {element.name for element in chosen})


def _check(work: Path, hybrid: hybrids.Hybrid, taken: set[str]) -> None:
    def side(name: str) -> str:
        return "bad" if name in taken else "good"

    assert (work / "train.py").read_text() == side("code train.py")
    assert (work / "come.py").exists() == ("code come.py" in taken)
    assert (work / "gone.py").exists() == ("code gone.py" not in taken)
    assert (work / "same.py").read_text() == "same"
    config = (work / "config.yaml").read_text()
    assert ("lr: 0.2" in config) == ("config lr" in taken) and ("added: true" in config) == ("config added" in taken)
    assert "layers: 2\nsame: 1" in config
    assert (work / "tokenizer.json").read_text() == side("tokenizer files")
    assert (work / "data" / "a").read_text() == side("data data")
    assert hybrid.spec.seed == (2 if "launch seed" in taken else 1)
    variables = hybrid.spec.environment
    assert variables["A"] == ("2" if "launch environment.A" in taken else "1")
    assert ("B" in variables, "C" in variables) == (
        "launch environment.B" not in taken,
        "launch environment.C" in taken,
    )
    assert hybrid.snapshot.determinism.threads == (3 if "determinism threads" in taken else 4)


def test_a_file_that_moved_between_parts_is_in_a_hybrid_only_once(repo: Repository, tmp_path: Path) -> None:
    moved = {**_GOOD, "code": {"train.py": "good"}, "data": {"data/a": "good", "same.py": "same"}}
    good, bad = _run(repo, tmp_path, _GOOD, "good"), _run(repo, tmp_path, moved, "gone")
    elements, _ = differences.list_differences(repo, good, bad)
    by_name = {element.name: element for element in elements}
    with pytest.raises(MergeConflict, match="twice"):
        hybrids.make(repo, good, bad, elements, [by_name["data data"]])
    both = hybrids.make(repo, good, bad, elements, [by_name["data data"], by_name["code same.py"]])
    assert [entry.path for entry in trees.load(repo.objects, both.snapshot.code.tree).entries] == [
        b"gone.py",
        b"train.py",
    ]
