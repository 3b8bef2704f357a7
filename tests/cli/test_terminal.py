"""No text that a store, a script or another person wrote can control a terminal.

Every text field of every record is planted with escapes, by the types of the records, and every verb that reads prints
them.
"""

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import m5ws
from m5ws.cli import cli
from m5ws.control_characters import escaped
from m5ws.records import codec
from m5ws.records import ledger as events
from m5ws.records.environment import Observed
from m5ws.records.ledger import NODE
from m5ws.records.run import Run
from m5ws.records.snapshot import Annotation, Code, Dataset, Snapshot, Tokenizer
from m5ws.records.verdict import Verdict
from m5ws.repository.references import checkpoints, runs, snapshots
from m5ws.repository.repository import Repository
from tests.support.records import contents, planted

HOSTILE = "\x1b]0;P\x07\x1b[2J\x1b[8m\x9b31m\x08\r\x7f\u202e\u2066|\u2028\tend"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
OWN_STYLES = re.compile(r"\x1b\[(?:1|3[1-7]|0)m")
EXAMPLES = ("7c1d00000002", "0" * 64, "0000000003-0001")
"""Texts that match the patterns: the id of a run, a digest, the name of a checkpoint."""


def hostile(kind: type[Any], **given: object) -> Any:
    """Return a record of `kind` with all that it can have, and HOSTILE for each text that is not given."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    record = kind(**{field.name: given.get(field.name, _value(field.type)) for field in info.fields})
    assert codec.encode(record)
    return msgspec.json.decode(msgspec.json.encode(record), type=kind)


def _value(kind: msgspec.inspect.Type) -> object:
    info = msgspec.inspect
    match kind:
        case info.UnionType():
            return _value(next(one for one in kind.types if not isinstance(one, info.NoneType)))
        case info.StrType():
            pattern = kind.pattern
            return HOSTILE if pattern is None else next(text for text in EXAMPLES if re.search(pattern, text))
        case info.LiteralType():
            return kind.values[0]
        case info.StructType():
            return hostile(kind.cls)
        case info.VarTupleType():
            return (_value(kind.item_type),)
        case info.DictType():
            return {_value(kind.key_type): _value(kind.value_type)}
        case info.BytesType():
            return HOSTILE.encode()
        case info.BoolType():
            return False
        case info.IntType() | info.FloatType():
            return 1
    raise NotImplementedError(kind)


@pytest.fixture
def store(home: Repository, place: Path, tmp_path: Path) -> dict[str, str]:
    """A store in which every text is hostile: two snapshots, a run, a replay with verdicts, checkpoints, logs."""
    ids = {}
    observed = home.objects.put_record(hostile(Observed))
    for name in ("one", "two"):
        files = {f"{HOSTILE}{name}.py": f"x = '{HOSTILE}{name}'\n", "config.yaml": f"a: {name}\n"}
        code = planted.tree(home, tmp_path / name, files)
        inputs = Code(commit=HOSTILE, dirty=True, tree=code)
        datasets = (hostile(Dataset, tree=code),)
        record = hostile(Snapshot, code=inputs, config=code, tokenizer=hostile(Tokenizer, tree=code), datasets=datasets)
        said = hostile(Annotation, observed=observed, derived_from=None)
        ids[name] = snapshots.publish(home, record, said)
    for name, purpose, reproduces in (("run", "train", None), ("replay", "reproduce", "7c1d00000001")):
        run = hostile(
            Run, id=f"7c1d0000000{1 + (name == 'replay')}", snapshot=ids["one"], purpose=purpose,
            reproduces=reproduces, parent=None, segment=None,
        )  # fmt: skip
        ids[name] = run.id
        runs.publish(home, run)
        began = hostile(events.AttemptStarted, observed=observed, inherits=(), resume=None)
        content = contents.content(home.objects, world=1, blobs={HOSTILE: planted.whole(home.objects, name.encode())})
        digest = planted.checkpoint(home, run.id, 3, content)
        stored = home.objects.digest(codec.encode(content))
        point = events.CheckpointPublished(step=3, name=checkpoints.name(3, 1), checkpoint=digest, content=stored)
        of_rank = (events.RankStarted, events.Step, events.State, events.RankEnded)
        planted.append(home, run.id, 1, "0", *map(hostile, of_rank), point)
        ended = hostile(events.AttemptEnded, outcome="failed", heads={})
        planted.append(home, run.id, 1, NODE, began, hostile(events.Notice), ended)
        logs = place / ".m5ws" / "runs" / run.id / "0001" / "logs"
        logs.mkdir(parents=True)
        (logs / "rank-0.log").write_text(f"{HOSTILE}\n\x1b[31mred\x1b[0m\n")
    runs.publish_verdict(home, hostile(Verdict, run=ids["run"], replay=ids["replay"], outcome="diverged"))
    return ids


def test_reading_verbs_escape_terminal_control_characters(
    m5: Any, store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Repository, place: Path
) -> None:
    # As on a terminal. Otherwise click removes colours, and with them the planted text.
    monkeypatch.setitem(cli.context_settings, "color", True)
    one, two, run, replay = store.values()
    verbs: list[tuple[object, ...]] = [
        ("ls",), ("show", one, "--environment"), ("show", run), ("show", replay), ("diff", one, two),
        ("diff", run, replay), ("fsck",), ("fsck", "--read-data"), ("checkpoint", "ls", run),
        ("checkpoint", "show", f"{run}@3"),
        ("checkpoint", "show", f"{run}@3", "--all"), ("checkpoint", "diff", f"{run}@3", f"{replay}@3"),
        ("checkpoint", "export", f"{run}@3", tmp_path / "export"), ("logs", run), ("cause", run), ("watch", run),
        ("attest", run),
        ("reproduce", run, "--dry-run"), ("reproduce", run), ("bisect", run, replay, "--dry-run"),
        ("gc", "--dry-run"), ("push", tmp_path / "other", "--dry-run"), ("checkout", one, tmp_path / "out"),
        ("prefetch", run, "--dry-run"), ("fork", f"{run}@3", "--dry-run"),
    ]  # fmt: skip
    shown = ""
    for words in verbs:
        for more in ((), ("--json",)):
            done = m5(*words, *more)
            assert "bug in m5ws" not in done.err, done.err
            for text in (done.out, done.err):
                assert RAW.search(OWN_STYLES.sub("", text)) is None, (words, more, text)
            shown += done.out + done.err
    assert shown.count("\\x1b]0;P\\x07") > 50
    for harmed in (place / ".m5ws" / "store" / "objects").rglob("*"):
        if harmed.is_file() and harmed.name == one:
            harmed.unlink()
    for words in (("fsck",), ("ls",), ("show", one), ("show", HOSTILE), (HOSTILE,), ("diff", HOSTILE, one)):
        done = m5(*words)
        assert RAW.search(OWN_STYLES.sub("", done.out + done.err)) is None, words


def test_logs_print_no_colours_and_json_escapes_colours(m5: Any, store: dict[str, str]) -> None:
    done = m5("logs", store["run"])
    assert "red\n" in done.out and "\\x1b]0;P" in done.out
    assert m5("logs", store["run"], "--json").document["logs"]["0"].endswith("\x1b[31mred\x1b[0m\n")


def test_plain_text_is_printed_unchanged() -> None:
    text = "".join(map(chr, (*range(32, 127), *range(0xA1, 0x600), 0x200D, 0x1F600))) + "\n\t"
    assert escaped(text.replace("\u061c", "")) == text.replace("\u061c", "")


def test_only_the_output_module_prints() -> None:
    """`click.echo` is called in output.py, and where nothing but this package's own help is printed."""
    own = {"output.py", "reference.py"}
    calls = []
    for path in (Path(m5ws.__file__).parent / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"click.echo", "click.secho", "print"}:
                calls += [] if path.name in own else [f"{path.name}: {ast.unparse(node)}"]
    assert calls == ["__init__.py: click.echo(nothing.format_message())"]
