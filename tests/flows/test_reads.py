"""A run reads a tokenizer from a shared folder that nobody pinned, and the folder changes."""

from pathlib import Path

from tests.support.workspace.workspaces import Workspace, make_workspace


def _make(tmp_path: Path) -> tuple[Workspace, Path]:
    """Return a workspace whose script reads a tokenizer outside it, and the tokenizer's folder."""
    shared = tmp_path / "shared" / "tok"
    shared.mkdir(parents=True)
    (shared / "tokenizer.json").write_text('{"a": 1, "b": 2}')
    (shared / "words.txt").write_text("a b")
    workspace = make_workspace(tmp_path / "w", "shared.py", nproc=1, run='outputs = ["out"]\nresults = ["out/*.json"]')
    workspace.edit("m5ws.toml", "train.py", f'train.py", "{shared}')
    return workspace, shared


def test_an_unpinned_tokenizer_is_listed_named_before_a_replay_and_adopted(tmp_path: Path) -> None:
    workspace, shared = _make(tmp_path)
    done = workspace.m5ws("run", "--no-progress")
    run = done.stdout.strip()
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("not-pinned")]
    assert f"{shared}/tokenizer.json, {shared}/words.txt (`m5ws adopt {run}` pins files)" in line
    (shown,) = workspace.json("show", run)["state"]["attempts"]
    assert [notice["kind"] for notice in shown["notices"] if notice["kind"] == "not-pinned"] == ["not-pinned"]
    paths = [read for event in shown["reads"] for read in event["paths"]]
    assert {read["path"]: read["size_bytes"] for read in paths} == {
        f"{shared}/tokenizer.json": 16,
        f"{shared}/words.txt": 3,
    }

    old = (shared / "tokenizer.json").read_text()
    (shared / "tokenizer.json").write_text('{"a": 1, "b": 3}')
    verdict = workspace.json("reproduce", run, expect=2)
    assert verdict["outcome"] == "not comparable"
    assert [(change["part"], change["name"]) for change in verdict["changes"]] == [("read", f"{shared}/tokenizer.json")]
    assert not (workspace.root / ".m5ws" / "runs" / verdict["replay"]).joinpath("0001").exists(), "a launch"
    warned = workspace.json("reproduce", run, "--env", "warn")
    assert [change["name"] for change in warned["changes"]] == [f"{shared}/tokenizer.json"]
    assert any("words.txt" in gap["sentence"] for gap in warned["not_compared"])

    workspace.m5ws("adopt", run, "--yes", expect=2)
    (shared / "tokenizer.json").write_text(old)
    before = (workspace.root / "m5ws.toml").read_text()
    plan = workspace.json("adopt", run, "--dry-run")["plan"]
    assert [(each["name"], each["target"], each["section"]) for each in plan["adoptions"]] == [
        ("tok", str(shared), "data")
    ]
    assert (workspace.root / "m5ws.toml").read_text() == before
    workspace.m5ws("adopt", run, "--yes")
    workspace.edit("m5ws.toml", f'"{shared}"', '"tok"')
    pinned = workspace.m5ws("run", "--no-progress")
    assert "not-pinned" not in pinned.stderr
    (shared / "tokenizer.json").unlink()
    assert workspace.json("reproduce", pinned.stdout.strip())["outcome"] == "reproduced"


def test_equal_content_in_the_snapshot_is_not_listed_and_its_change_is_named(tmp_path: Path) -> None:
    workspace, shared = _make(tmp_path)
    for file in shared.iterdir():
        (workspace.root / "data" / file.name).write_bytes(file.read_bytes())
    done = workspace.m5ws("run", "--no-progress")
    assert "not-pinned" not in done.stderr
    (shared / "words.txt").write_text("b a")
    verdict = workspace.json("reproduce", done.stdout.strip(), expect=2)
    assert [change["name"] for change in verdict["changes"]] == [f"{shared}/words.txt"]
