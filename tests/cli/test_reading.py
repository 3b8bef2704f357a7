"""The verbs that read: ls, show, diff, logs, checkout, fsck."""

import shutil
import stat
from pathlib import Path
from typing import Any

from m5ws.logs.parts import LogParts
from m5ws.records.run import LaunchSpec, Sweep
from m5ws.repository.repository import Repository
from tests.support.records import planted
from tests.support.workspace.checkouts import git


def test_ls_lists_the_newest_runs_first_and_replays_below_their_originals(m5: Any, made: Any) -> None:
    done = m5("ls")
    assert done.status == 0
    rows = done.out.splitlines()
    assert [row.split()[0] for row in rows if row] == [
        "SNAPSHOT", *sorted((made.snapshot[:12], made.changed[:12])), "RUN", made.run, made.replay
    ]  # fmt: skip
    assert "finished" in done.out and "3/3" in done.out and "trial" in done.out
    assert f"reproduces {made.run}: reproduced" in done.out
    assert "aaaaaaaaaa+" in done.out
    assert rows[-1].startswith(f"  {made.replay}") and "0.666667" in rows[-1]


def test_ls_has_a_limit_and_names_the_hidden_kinds(m5: Any, made: Any) -> None:
    done = m5("ls", "--limit", "1")
    assert made.replay in done.out and f"\n{made.run}" not in done.out
    assert "older snapshots and runs are not listed" in done.err
    assert m5("ls", "--limit", "1", "--json").document["more"] == {"snapshots": True, "runs": True}
    assert m5("ls", "--limit", "0").err == m5("ls").err == ""


def test_ls_can_list_only_snapshots_or_only_runs(m5: Any, made: Any) -> None:
    assert "SNAPSHOT  " in m5("ls", "--snapshots").out and "RUN" not in m5("ls", "--snapshots").out
    assert m5("ls", "--runs", "--json").document["snapshots"] == []


def test_ls_lists_the_runs_that_meet_a_condition(m5: Any, made: Any) -> None:
    assert made.replay not in m5("ls", "--where", "name = 'trial'").out
    rows = m5("ls", "--json", "--where", "lr = 0.1 and loss < 1", "--limit", "1").document
    assert [row["id"] for row in rows["runs"]] == [made.replay] and rows["more"]["runs"] is True
    assert rows["snapshots"] == [] and rows["runs"][0]["changes"] == {}
    assert m5("ls", "--where", "loss > 1").err == "no run meets the condition\n"
    refused = m5("ls", "--where", "los > 1")
    assert refused.status == 2 and "no such column: los" in refused.err and '"loss"' in refused.err


def test_ls_lists_each_value_of_a_sweep_once(m5: Any, home: Repository, tmp_path: Path) -> None:
    code = planted.tree(home, tmp_path / "code", {"train.py": "print('trained')\n"})
    for number, value in enumerate(("1e-4", "0.5")):
        config = planted.tree(home, tmp_path / str(number), {"config.yaml": f"optimizer:\n  lr: {float(value)}\n"})
        snapshot = planted.publish(home, planted.snapshot(code, config=config))
        spec = LaunchSpec(command=("train.py", "--batch-size", str(number)))
        sweep = Sweep(id="5e77d0a1c3b9", snapshot=snapshot, axes=())
        name = f"optimizer.lr={value} batch-size={number}"
        planted.run(home, f"7c1d0000000{number}", snapshot, spec=spec, sweep=sweep, name=name)
    for row in m5("ls", "--runs").out.splitlines()[1:]:
        assert row.count("lr=") == row.count("batch-size=") + row.count("batch_size=") == 1


def test_ls_of_an_empty_store_prints_a_hint(m5: Any, home: Repository) -> None:
    done = m5("ls")
    assert (done.status, done.out) == (0, "")
    assert "m5ws snapshot" in done.err


def test_a_damaged_snapshot_without_an_index_hides_no_other_snapshot(
    m5: Any, made: Any, home: Repository, place: Path
) -> None:
    for listed in [*home.store.list("index/snapshots/")]:
        home.store.delete(listed.key)
    _object(place, made.changed).unlink()
    done = m5("ls", "--json")
    problems = {row["id"]: row["problem"] for row in done.document["snapshots"]}
    assert problems[made.snapshot] is None
    assert "not in the store" in problems[made.changed]


def test_show_prints_a_snapshot_and_its_environment_on_request(m5: Any, made: Any) -> None:
    done = m5("show", made.snapshot[:9])
    assert done.status == 0
    for expected in (f"snapshot {made.snapshot}", "a" * 40, "the first", "Ada", "code", "config", "wanted nccl  2.27",
                     made.run):  # fmt: skip
        assert expected in done.out
    environment = ("click", "absent: nccl", "python  3.11.2")
    assert not [line for line in environment if line in done.out]
    whole = m5("show", made.snapshot, "--environment").out
    assert [line for line in environment if line in whole] == [*environment]


def test_show_prints_the_attempts_checkpoints_and_notices_of_a_run(m5: Any, made: Any) -> None:
    done = m5("show", made.run)
    assert done.status == 0
    for expected in ("finished, step 3 of 3", "attempt 1: finished after 1m 05s", "loss 0.666667", "node",
                     "0000000003-0001", "input-modified at step 3: data was changed", made.replay, "seed"):  # fmt: skip
        assert expected in done.out


def test_diff_names_the_config_key(m5: Any, made: Any) -> None:
    done = m5("diff", made.snapshot, made.changed)
    assert done.status == 0
    assert "config\n  lr: 0.1 → 0.2" in done.out
    assert "code" not in done.out
    (change,) = m5("diff", made.snapshot, made.changed, "--json").document["changes"]
    assert (change["part"], change["name"], change["old"], change["new"]) == ("config", "lr", "0.1", "0.2")


def test_show_and_diff_read_the_git_history(m5: Any, home: Repository, place: Path, tmp_path: Path) -> None:
    first = git(place, "rev-parse", "HEAD")
    git(place, "commit", "-q", "--allow-empty", "-m", "Warm up longer\n\nIt diverged.")
    second = git(place, "rev-parse", "HEAD")
    code = planted.tree(home, tmp_path / "code", {"train.py": "print('trained')\n"})
    one, two = (planted.publish(home, planted.snapshot(code, commit=commit)) for commit in (first, second))
    run = planted.run(home, "7c1d00000009", two)
    for name in (two, run.id):
        shown = m5("show", name)
        assert second in shown.out
    changed = m5("diff", one, two).out
    assert f"    + {second[:10]} " in changed and "Ada: Warm up longer" in changed
    assert "Ada: Warm up longer" not in m5("diff", one, two, "--brief").out


def test_diff_works_without_the_commit_of_a_snapshot(m5: Any, made: Any, home: Repository, tmp_path: Path) -> None:
    code = planted.tree(home, tmp_path / "code", {"train.py": "print('trained')\n"})
    found = m5("diff", made.snapshot, planted.publish(home, planted.snapshot(code, commit="b" * 40)))
    assert found.status == 0 and "the history between the commits is unavailable: the repository does not" in found.out


def test_diff_of_equal_runs_prints_no_difference(m5: Any, made: Any) -> None:
    assert m5("diff", made.run, made.replay).out == "no difference\n"
    assert m5("diff", made.run, made.snapshot).out == "no difference\n"


def test_logs_of_all_ranks_name_the_rank(m5: Any, made: Any) -> None:
    assert m5("logs", made.run).out == "[0] zero\n[0] end of zero\n[1] one\n"


def test_logs_prints_the_log_of_one_rank(m5: Any, made: Any) -> None:
    assert m5("logs", made.run, "--rank", "1").out == "one\n"
    assert m5("logs", made.run, "--rank", "launcher").out == "launched\n"
    assert m5("logs", made.run, "--json").document["logs"]["0"] == "zero\nend of zero"


def test_an_empty_log_is_reported(m5: Any, made: Any, place: Path) -> None:
    for log in (place / ".m5ws" / "runs" / made.run).rglob("*.log"):
        log.write_text("")
    alone, every = m5("logs", made.run, "--rank", "1"), m5("logs", made.run)
    assert (alone.status, alone.out, alone.err) == (0, "", "the log of rank 1 is empty\n")
    assert (every.status, every.out, every.err) == (0, "", "the log of all ranks is empty\n")


def test_logs_of_a_run_on_another_machine_come_from_the_store(
    m5: Any, made: Any, home: Repository, place: Path
) -> None:
    folder = place / ".m5ws" / "runs" / made.run / "0001" / "logs"
    logs = LogParts(home, made.run, 1, 0, folder)
    logs.store(last=True)
    (folder / "rank-1.log").write_text("one\nmore\n")
    logs.store(last=True)
    shutil.rmtree(folder)
    every = "[0] zero\n[0] end of zero\n[1] one\n[1] more\n"
    assert m5("logs", made.run).out == m5("logs", made.run, "--follow").out == every
    assert m5("logs", made.run, "--rank", "1").out == "one\nmore\n"
    stored = {"0": "zero\nend of zero\n", "1": "one\nmore\n"}
    assert m5("logs", made.run, "--json").document["logs"] == stored
    absent = m5("logs", made.run, "--rank", "2")
    assert absent.status == 3 and "no log of rank 2" in absent.err and "It has 0, 1." in absent.err
    nothing = m5("logs", made.replay)
    assert nothing.status == 3 and "and none in the store" in nothing.err


def test_logs_prints_only_matching_lines(m5: Any, made: Any) -> None:
    assert m5("logs", made.run, "--grep", "o$").out == "[0] zero\n[0] end of zero\n"
    assert m5("logs", made.run, "--grep", "(?i)^ONE", "--rank", "1").out == "one\n"
    assert m5("logs", made.run, "--grep", "^zero", "--json").document["logs"] == {"0": "zero\n", "1": ""}
    absent = m5("logs", made.run, "--grep", "absent")
    assert (absent.status, absent.out, absent.err) == (1, "", "the log of all ranks has no line that matches\n")
    wrong = m5("logs", made.run, "--grep", "(")
    assert wrong.status == 2 and "--grep ( is no regular expression" in wrong.err


def test_logs_of_this_node_are_local_and_of_other_nodes_from_the_store(
    m5: Any, made: Any, home: Repository, place: Path, tmp_path: Path
) -> None:
    planted.begin(home, made.run, 2, nodes=2)
    folder, other = place / ".m5ws" / "runs" / made.run / "0002" / "logs", tmp_path / "other"
    for node, (logs, rank) in enumerate(((folder, "0"), (other, "1"))):
        logs.mkdir(parents=True)
        (logs / f"rank-{rank}.log").write_text(f"of rank {rank}\n")
        LogParts(home, made.run, 2, node, logs).store(last=True)
    (folder / "rank-0.log").write_text("of rank 0\nnot yet stored\n")
    assert m5("logs", made.run).out == "[0] of rank 0\n[0] not yet stored\n[1] of rank 1\n"
    assert m5("logs", made.run, "--grep", "yet|1").out == "[0] not yet stored\n[1] of rank 1\n"


def test_checkout_writes_all_files_as_writable_files(m5: Any, made: Any, tmp_path: Path) -> None:
    target = tmp_path / "out"
    done = m5("checkout", made.run, target)
    assert done.status == 0 and "2 files" in done.out
    assert (target / "config.yaml").read_text() == "lr: 0.1\n"
    assert stat.S_IMODE((target / "train.py").stat().st_mode) & 0o200
    document = m5("checkout", made.snapshot, tmp_path / "again", "--json").document
    assert document["files"] == 2 and document["snapshot"] == made.snapshot


def test_fsck_reports_a_whole_store_as_clean(m5: Any, made: Any) -> None:
    done = m5("fsck")
    assert done.status == 0
    assert "no damage" in done.out
    report = m5("fsck", "--json").document
    assert report["clean"] and report["damage"] == [] and report["vouched"] == []
    assert report["read_objects"] == report["objects"] > 0 and report["read_bytes"] == report["size_bytes"]
    assert m5("fsck", "--read-data", "--json").document == report


def test_fsck_names_the_damage_and_the_harmed_snapshot(m5: Any, made: Any, place: Path) -> None:
    target = _object(place, made.changed)
    target.chmod(0o644)
    data = target.read_bytes()
    target.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = m5("fsck")
    assert done.status == 1
    assert f"corrupt: objects/{made.changed[:2]}/{made.changed}" in done.out
    assert f"affects snapshot {made.changed}" in done.out
    again = m5("fsck", "--json")
    assert again.status == 1 and not again.document["clean"]
    assert again.document["damage"][0]["kind"] == "corrupt"


def _object(place: Path, digest: str) -> Path:
    return place / ".m5ws" / "store" / "objects" / digest[:2] / digest
