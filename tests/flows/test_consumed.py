"""Samples that a run consumed: recorded in each step, found again, and left out by a fork."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from m5ws.data.order import SourceOrder, sources_of
from m5ws.records.ledger import Step
from m5ws.records.sample_ids import parse_ranges
from tests.support.records.samples import samples_at
from tests.support.workspace.checkouts import commit_all
from tests.support.workspace.workspaces import Workspace, make_workspace

_FILES, _ROWS, _BATCH, _STEPS = 6, 4, 4, 8


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, list[str]]:
    """A workspace with two runs that read documents in different orders."""
    root = tmp_path_factory.mktemp("consumed") / "workspace"
    workspace = make_workspace(root, "reading.py", trainer="python", nproc=1)
    (root / "data" / "docs").mkdir()
    for file in range(_FILES):
        lines = [json.dumps({"value": file * _ROWS + row}) for row in range(_ROWS)]
        (root / "data" / "docs" / f"part-{file}.jsonl").write_text("\n".join(lines) + "\n")
    # The same document under another name: as a link that a snapshot follows, or as a copy.
    copied = workspace.root / "data" / "again" / "copy.jsonl"
    copied.parent.mkdir()
    copied.write_bytes((workspace.root / "data" / "docs" / "part-2.jsonl").read_bytes())
    return workspace, [workspace.train("--seed", str(seed), "--checkpoint-every", "1") for seed in (5, 6)]


def _source(workspace: Workspace, run: str) -> SourceOrder:
    (order,) = workspace.history(run).orders.values()
    return sources_of(order.description, order.indexes.__getitem__)["docs"]


def _samples(workspace: Workspace, run: str) -> dict[int, list[tuple[int, str, int]]]:
    """Return the samples of each step of a run, in order."""
    source, steps = _source(workspace, run), workspace.history(run).steps[0]
    return {number: samples_at(source, step.samples["docs"]) for number, step in steps.items()}


def _steps_of(found: Any) -> dict[int, int]:
    return {step: each["epoch"] for each in found["steps"] for step in range(each["first"], each["last"] + 1)}


def test_each_step_records_its_samples_and_they_are_found_again(trained: tuple[Workspace, list[str]]) -> None:
    workspace, runs = trained
    assert _samples(workspace, runs[0]) != _samples(workspace, runs[1])
    for run in runs:
        samples = _samples(workspace, run)
        assert [len(each) for each in samples.values()] == [_BATCH] * _STEPS
        epoch = [sample for each in samples.values() for sample in each if sample[0] == 0]
        assert len(epoch) == len(set(epoch)) == _FILES * _ROWS
        for path, row in (("part-2.jsonl", 3), ("part-5.jsonl", 0)):
            one = workspace.json("consumed", run, "--sample", f"data/docs/{path}#{row}")
            expected = {step: each[0] for step, known in samples.items() for each in known if each[1:] == (path, row)}
            assert _steps_of(one) == expected
            whole = workspace.json("consumed", run, "--file", f"data/docs/{path}")
            counts = sum(each[1] == path for known in samples.values() for each in known)
            assert sum(each["samples"] for each in whole["steps"]) == counts and not whole["unknown"]
    every = workspace.json("consumed", runs[0], "--file", "data/docs")
    assert sum(each["samples"] for each in every["steps"]) == _STEPS * _BATCH
    for wrong in ("--file=data/none", f"--file={workspace.root}/data/docs", f"--sample=data/docs/part-2.jsonl#{_ROWS}",
                  "--match=md5:00"):  # fmt: skip
        assert "has " + wrong.partition("=")[2] in workspace.m5ws("consumed", runs[0], wrong, expect=3).stderr
    assert "data/none" in workspace.m5ws("consumed", "--everywhere", "data/none", expect=3).stderr
    assert workspace.json("consumed", runs[0], "--file", ".")["steps"] == every["steps"]
    known = workspace.history(runs[0]).steps[0][3]
    assert known.batch is not None
    assert _steps_of(workspace.json("consumed", runs[0], "--match", known.batch)) == {3: None}
    named = workspace.json("consumed", runs[0], "--file", "data/docs/part-2.jsonl")
    content = (workspace.root / "data" / "docs" / "part-2.jsonl").read_bytes()
    assert workspace.json("consumed", runs[0], "--match", blake3(content).hexdigest())["steps"] == named["steps"]
    assert workspace.json("consumed", runs[0], "--file", "data/again/copy.jsonl")["steps"] == named["steps"]
    assert workspace.json("consumed", runs[0], "--file", "data/again")["steps"] == named["steps"]


def test_a_fork_without_a_file_that_does_not_exist_is_refused(trained: tuple[Workspace, list[str]]) -> None:
    workspace, runs = trained
    refused = workspace.m5ws("fork", f"{runs[0]}@3", "--without", "data/docs/part-77.jsonl", expect=3)
    assert "data/docs/part-77.jsonl: the snapshot has no file there" in refused.stderr


def test_a_recalled_document_is_found_in_all_runs_and_a_fork_as_printed_never_reads_it(
    trained: tuple[Workspace, list[str]],
) -> None:
    workspace, runs = trained
    samples = {run: _samples(workspace, run) for run in runs}
    first = {
        path: [min(step for step, each in samples[run].items() if path in {one[1] for one in each}) for run in runs]
        for path in (f"part-{file}.jsonl" for file in range(_FILES))
    }
    recalled = next(path for path, steps in first.items() if min(steps) > 1)
    path = f"data/docs/{recalled}"
    found = {each["run"]: each for each in workspace.json("consumed", "--everywhere", path)["consumed"]}
    assert sorted(found) == sorted(runs)
    for run, step in zip(runs, first[recalled], strict=True):
        assert found[run]["command"] == f"m5ws fork {run}@{step - 1} --without {path}"
        assert [int(name[:10]) for name in found[run]["seen_by"]] == list(range(step, _STEPS + 1))

    printed = workspace.m5ws("consumed", "--everywhere", path).stdout
    command = found[runs[0]]["command"]
    assert f"without it: {command}" in printed
    print(printed)
    workspace.m5ws(*shlex.split(command)[1:], "--name", "without")
    fork = workspace.json("show", "without")["run"]
    assert fork["spec"]["without"] == [path, *["data/again/copy.jsonl"] * (recalled == "part-2.jsonl")]
    forked = [sample for each in _samples(workspace, fork["id"]).values() for sample in each]
    assert recalled not in {sample[1] for sample in forked}
    # The order of all other samples is the original's.
    begin = first[recalled][0]
    original = [sample for step, each in samples[runs[0]].items() if step >= begin for sample in each]
    kept = [sample for sample in original if sample[1] != recalled]
    assert len(kept) < len(original) and forked[: len(kept)] == kept
    shown = workspace.m5ws("consumed", fork["id"], "--file", path, expect=1).stdout
    assert "no step consumed it from the loader of the session" in shown
    again = workspace.json("consumed", "--everywhere", path)
    assert fork["id"] in again["not_consumed"] and len(again["consumed"]) == 2
    # A fork inherits the steps of its parent up to the fork.
    other = next(one for one in samples[runs[0]][1])
    inherited = workspace.json("consumed", fork["id"], "--sample", f"data/docs/{other[1]}#{other[2]}")
    assert inherited["steps"][0]["run"] == runs[0] and inherited["steps"][0]["first"] == 1
    changes = workspace.json("diff", runs[0], fork["id"])["changes"]
    assert ("launch", "without") in {(change["part"], change["name"]) for change in changes}
    workspace.m5ws("reproduce", fork["id"])


def test_a_step_records_its_samples_in_less_than_100_bytes(trained: tuple[Workspace, list[str]]) -> None:
    from m5ws.records import codec

    def size(samples: dict[str, str]) -> int:
        step = Step(step=10**6, quantities={"loss": "0x1p+0"}, samples=samples)
        return len(codec.encode_plain(step)) - len(codec.encode_plain(Step(step=10**6, quantities={"loss": "0x1p+0"})))

    workspace, runs = trained
    assert max(size(step.samples) for step in workspace.history(runs[0]).steps[0].values()) < 100
    mixture = dict.fromkeys(("web", "code", "books"), "3:9876543210-9876543722")
    assert size(mixture) < 100 and parse_ranges(mixture["web"]) == [(3, 9876543210, 9876543722)]


def test_copies_of_a_file_that_git_tracks_are_one_document_for_match_and_without(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "reading.py", trainer="python", nproc=1)
    workspace.edit("train.py", 'dataset="data/docs"', 'dataset="corpus"')
    (workspace.root / "corpus").mkdir()
    for file in range(_FILES):
        lines = [json.dumps({"value": file * _ROWS + row}) for row in range(_ROWS)]
        (workspace.root / "corpus" / f"part-{file}.jsonl").write_text("\n".join(lines) + "\n")
    twins = [workspace.root / "corpus" / f"part-{file}.jsonl" for file in (1, 4)]
    twins[1].write_bytes(twins[0].read_bytes())
    commit_all(workspace.root)
    # The order of this seed begins with other files.
    run = workspace.train("--seed", "5", "--checkpoint-every", "1")
    (order,) = workspace.history(run).orders.values()
    source = sources_of(order.description, order.indexes.__getitem__)["corpus"]

    def paths(run: str) -> dict[int, set[str]]:
        steps = workspace.history(run).steps[0]
        return {
            number: {one[1] for one in samples_at(source, step.samples["corpus"])} for number, step in steps.items()
        }

    copies = {path.name for path in twins}
    expected = {step for step, read in paths(run).items() if read & copies}
    assert expected and min(expected) > 1
    digest = blake3(twins[0].read_bytes()).hexdigest()
    for query in (f"--match={digest}", "--file=corpus/part-1.jsonl", "--file=corpus/part-4.jsonl"):
        assert _steps_of(workspace.json("consumed", run, query)).keys() == expected
    (found,) = workspace.json("consumed", "--everywhere", "corpus/part-4.jsonl")["consumed"]
    workspace.m5ws(*shlex.split(found["command"])[1:], "--name", "without")
    assert workspace.json("show", "without")["run"]["spec"]["without"] == ["corpus/part-4.jsonl", "corpus/part-1.jsonl"]
    assert not copies.intersection(*map(set, paths(workspace.json("show", "without")["run"]["id"]).values()))


_OWN_ORDER = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
"""


@pytest.mark.parametrize("parts", ["", ", rank=0, world=1"])
def test_datasets_of_single_ranks_are_not_known(parts: str, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "reading.py", nproc=2)
    text = (workspace.root / "train.py").read_text().replace("import m5ws\n", f"import m5ws\n{_OWN_ORDER}", 1)
    text = text.replace('"data/docs"', 'f"data/docs-{dist.get_rank()}", name="docs"')
    text = text.replace("collate=collate", f"collate=collate{parts}")
    (workspace.root / "train.py").write_text(text)
    for rank in range(2):
        folder = workspace.root / "data" / f"docs-{rank}"
        folder.mkdir()
        (folder / "part.jsonl").write_text("".join(f'{{"value": {rank}.{row}}}\n' for row in range(9)))
    run = workspace.train()
    assert not workspace.json("consumed", run, "--file", "data/docs-0")["unknown"]
    (line,) = workspace.json("consumed", run, "--file", "data/docs-1", expect=1)["unknown"]
    assert "reads data/docs-1 by another loader" in line


def test_samples_of_a_script_with_two_sessions_are_not_known(trained: tuple[Workspace, list[str]]) -> None:
    workspace, _ = trained
    begin, loop = (workspace.root / "train.py").read_text().split("session = ")
    second = loop.replace("loader=loader", "loader=again").replace("total_steps=8", "total_steps=9")
    again = 'again = m5ws.data.Loader(m5ws.data.Source(dataset="data/again"), batch_size=4, collate=collate)\n'
    (workspace.root / "two.py").write_text(f"{begin}session = {loop}{again}session = {second}")
    workspace.m5ws("run", "--name", "two", "--checkpoint-every", "100", "--trainer", "python", "two.py")
    (line,) = workspace.json("consumed", "two", "--file", "data/docs/part-1.jsonl", expect=1)["unknown"]
    assert "by another loader" in line
    workspace.m5ws("rm", "two")


def test_steps_without_a_record_before_a_checkpoint_are_not_known(
    trained: tuple[Workspace, list[str]], tmp_path: Path
) -> None:
    shutil.copytree(trained[0].root, tmp_path / "w")
    workspace, run = Workspace(tmp_path / "w"), trained[1][0]
    saved = workspace.root / ".m5ws" / "store" / "runs" / run / "checkpoints"
    # The ledger of a lost node ends before a checkpoint that its ranks have published.
    shutil.copy(saved / f"{_STEPS:010}-0001", saved / f"{_STEPS + 3:010}-0001")
    found = workspace.json("consumed", run, "--file", "config.yaml", expect=1)
    assert found["unknown"] == [f"3 of steps 1-{_STEPS + 3} of run {run} have no record"]


_UNRELATED = """
import torch, m5ws
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [{"sample_ids": ["s3://b//doc#1", f"./x#{step}"], "x": torch.ones(2, 1)} for step in range(3)]
for step in m5ws.session(model, optimizer, loader=IDS, total_steps=3).steps():
    loss = model(step.next_batch()["x"]).sum()
    loss.backward()
    optimizer.step()
    step.record(loss=loss)
"""


def test_a_file_is_not_known_in_steps_with_ids_of_other_kinds(trained: tuple[Workspace, list[str]]) -> None:
    workspace, _ = trained
    digest = blake3((workspace.root / "data" / "docs" / "part-2.jsonl").read_bytes()).hexdigest()
    for name, loader in (("ids", "batches"), ("no-ids", '[{"x": each["x"]} for each in batches]')):
        (workspace.root / f"{name}.py").write_text(_UNRELATED.replace("IDS", loader))
        workspace.m5ws("run", "--name", name, "--trainer", "python", f"{name}.py")
        for query in ("--file=data/docs/part-2.jsonl", f"--match={digest}"):
            found = json.loads(workspace.m5ws("consumed", name, query, "--json", expect=1).stdout)
            assert not found["steps"] and "steps 1-3" in found["unknown"][0]
    assert _steps_of(workspace.json("consumed", "ids", "--sample", "./x#1")) == {2: None}
    assert _steps_of(workspace.json("consumed", "ids", "--sample", "s3://b//doc#1")) == {1: None, 2: None, 3: None}
    workspace.m5ws("rm", "ids")
    unknown = workspace.json("consumed", "--everywhere", "data/docs/part-2.jsonl")["unknown"]
    assert any("was removed" in each["why"][0] for each in unknown)
