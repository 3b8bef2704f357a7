"""`--set`: only the named keys change, comments and layout stay, and errors name the reason."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from m5ws.config.flatten import flatten, parse
from m5ws.errors import UsageError
from m5ws.records.run import LaunchSpec
from m5ws.repository.files import trees
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.config import overrides
from tests.support.records import planted

_SPEC = LaunchSpec(command=("train.py",))
CONFIG = b"""\
# What is trained.
seed: 7   # the seed
optimizer:
  name: 'adamw'
  lr: 3.0e-4  # peak
  betas: [0.9, 0.95]
data:
    - path: a.txt
      weight: 1
    - path: b.txt
      weight: 2
"""


def _set(data: bytes, *texts: str, name: str = "config.yaml") -> bytes:
    return overrides.changed({name: data}, _SPEC, [overrides.parse(text) for text in texts])[0][name]


@pytest.mark.parametrize(
    ("override", "line", "becomes"),
    [
        ("seed=8", b"seed: 7   # the seed", b"seed: 8   # the seed"),
        ("optimizer.lr=1e-5", b"  lr: 3.0e-4  # peak", b"  lr: 1.0e-05 # peak"),
        ("optimizer.name=sgd", b"  name: 'adamw'", b"  name: 'sgd'"),
        ("optimizer.betas=[0.8, 0.9]", b"  betas: [0.9, 0.95]", b"  betas: [0.8, 0.9]"),
        ("optimizer.betas.1=0.999", b"  betas: [0.9, 0.95]", b"  betas: [0.9, 0.999]"),
        ("seed=null", b"seed: 7   # the seed", b"seed:     # the seed"),
        ("optimizer.name=on", b"  name: 'adamw'", b'  name: "on"'),
    ],
)
def test_an_override_changes_only_one_line_of_yaml(override: str, line: bytes, becomes: bytes) -> None:
    flat = CONFIG.replace(b"    - path", b"  - path").replace(b"      weight", b"    weight")
    assert _set(flat, override) == flat.replace(line, becomes)


def test_unquoted_text_does_not_replace_a_number_or_boolean() -> None:
    for text in ("optimizer.lr=abc", "optimizer.betas.0=fast", "seed=1e-"):
        with pytest.raises(UsageError, match="number"):
            _set(CONFIG, text)
    with pytest.raises(UsageError, match="boolean"):
        _set(b"flag: true\n", "flag=yes")
    assert _set(b"lr: 1\n", 'lr="abc"') == b"lr: abc\n"
    assert _set(b"lr: 1\n", "lr=${optimizer.lr}") == b"lr: ${optimizer.lr}\n"
    assert _set(b"lr: 1\n", "lr=null") == b"lr:\n"


def test_an_override_keeps_the_layout_of_lists() -> None:
    text = b"a:\n    - 1\n    - 2\nb: 3\n"
    assert _set(text, "b=4") == b"a:\n    - 1\n    - 2\nb: 4\n"


def test_the_same_value_changes_no_byte() -> None:
    odd = b"a:   1\nb: {c:  2}\n"
    assert _set(odd, "a=1") == odd


def test_an_override_keeps_the_indentation_of_json() -> None:
    data = b'{\n    "lr": 0.1,\n    "nested": {\n        "deep": [1, 2]\n    }\n}\n'
    assert _set(data, "nested.deep.0=5", name="c.json") == data.replace(
        b"[1, 2]", b"[\n            5,\n            2\n        ]"
    )
    assert json.loads(_set(b'{"lr": 0.1}', "lr=0.2", name="c.json")) == {"lr": 0.2}


def test_an_override_keeps_the_comments_of_toml() -> None:
    data = b"# top\n[optimizer]\nlr = 0.1 # peak\n"
    changed = _set(data, "optimizer.lr=0.2", name="c.toml")
    assert changed == b"# top\n[optimizer]\nlr = 0.2 # peak\n"
    assert tomllib.loads(_set(changed, "+optimizer.eps=1e-8", name="c.toml").decode())["optimizer"]["eps"] == 1e-8


def test_null_is_refused_in_toml() -> None:
    with pytest.raises(UsageError, match="null"):
        _set(b"a = 1\n", "a=null", name="c.toml")


def test_the_error_of_an_unknown_key_suggests_similar_keys() -> None:
    with pytest.raises(UsageError, match=r"optimizer\.lrr\b.* optimizer\.lr\b"):
        _set(CONFIG, "optimizer.lrr=1")
    with pytest.raises(UsageError, match=r"optimizer\.lr\b"):
        _set(CONFIG, "lr=1")


def test_a_new_key_needs_a_plus_and_an_existing_key_refuses_a_plus() -> None:
    assert flatten("config.yaml", _set(CONFIG, "+model.depth.count=3"))["model.depth.count"] == "3"  # type: ignore[index]
    with pytest.raises(UsageError, match="already"):
        _set(CONFIG, "+seed=1")


def test_a_key_in_two_files_needs_the_name_of_the_file() -> None:
    files = {"a.yaml": b"lr: 1\n", "sub/b.yaml": b"lr: 2\n"}
    with pytest.raises(UsageError, match=r"a\.yaml .*sub/b\.yaml"):
        overrides.changed(files, _SPEC, [overrides.parse("lr=3")])
    changed, *_ = overrides.changed(files, _SPEC, [overrides.parse("sub/b.yaml:lr=3"), overrides.parse("a.yaml:lr=4")])
    assert changed == {"a.yaml": b"lr: 4\n", "sub/b.yaml": b"lr: 3\n"}


def test_an_override_that_changes_a_yaml_alias_is_refused() -> None:
    text = b"base: &b\n  lr: 1\nother: *b\n"
    with pytest.raises(UsageError, match=r"other\.lr"):
        _set(text, "base.lr=2")


def test_keys_may_contain_dots() -> None:
    assert _set(b"a.b:\n  c: 1\n", "a.b.c=2") == b"a.b:\n  c: 2\n"


@pytest.mark.parametrize("text", ["seed", "=1", "seed=[1"])
def test_an_invalid_override_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        _set(CONFIG, text)


@given(
    st.one_of(
        st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.text("abcyno1e.", max_size=6)
    )
)
def test_any_value_survives_the_round_trip(value: object) -> None:
    text = json.dumps(value)
    for name, data in (("c.yaml", b"key: old\n"), ("c.json", b'{"key": "old"}'), ("c.toml", b'key = "old"\n')):
        result = _set(data, f"key={text}", name=name)
        assert flatten(name, result) == {"key": json.dumps(YAML(typ="safe", pure=True).load(text))}


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        ("yes", "false", "false"),
        ("yes", '"no"', '"no"'),
        ("no", '"no"', '"no"'),
        ("3e-4", "1e-4", "0.0001"),
        ("1", "0777", "777"),
        ("[0.9, 0.95]", "[1e-4, 1e-3]", "[0.0001, 0.001]"),
        ("adamw", "no", '"no"'),
        ("adamw", "12:30", '"12:30"'),
        ("auto", "32", "32"),
        ("null", "text", "text"),
    ],
)
def test_readers_of_yaml_1_1_and_1_2_see_the_typed_value(old: str, value: str, new: str) -> None:
    assert _set(f"key: {old}\n".encode(), f"key={value}").decode() == f"key: {new}\n"


def test_a_key_that_pyyaml_reads_as_true_can_be_set() -> None:
    assert _set(b"on:\n  push: 1\n", "on.push=2") == b"on:\n  push: 2\n"


@pytest.mark.parametrize(
    ("old", "value", "spelling"),
    [
        ("yes", "maybe", "--set 'key=\"maybe\"'"),
        ("true", "no", "Booleans are true and false"),
        ("[yes, no]", "[no, no]", "Booleans are true and false"),
    ],
)
def test_text_that_would_replace_a_boolean_is_refused_with_its_spelling(old: str, value: str, spelling: str) -> None:
    with pytest.raises(UsageError) as refused:
        _set(f"key: {old}\n".encode(), f"key={value}")
    assert spelling in refused.value.hint


@given(st.from_regex(r"[-+.\dexob_:]{1,6}|yes|no|on|off|y|n|~|null", fullmatch=True))
def test_the_reader_of_yaml_1_1_agrees_with_pyyaml(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    try:
        expected = yaml.safe_load(f"key: {text}")
    except (yaml.YAMLError, ValueError):
        return
    assert repr(parse("c.yaml", f"key: {text}".encode(), "1.1")) == repr(expected)


@settings(max_examples=20)
@given(st.sampled_from(["yes", "on", "off", "1e5", "12:30", "n", "1_000", "0x1f", "~", "1.5e3"]))
def test_old_yaml_readers_read_the_same_value(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    written = YAML(typ="safe", pure=True).load(text)
    assert yaml.safe_load(_set(b"key: old\n", f"key={text}"))["key"] == written


def _publish(repo: Repository, folder: Path) -> str:
    empty = trees.write_tree(repo.objects, []).digest
    config = planted.tree(repo, folder, {"config.yaml": CONFIG, "model/size.yaml": b"depth: 2\n"})
    return planted.publish(repo, planted.snapshot(empty, config=config), author="a", branch="main", message="base")


def _derive(repo: Repository, base: str, *texts: str) -> str:
    return overrides.change(repo, base, _SPEC, texts)[0]


def test_a_derived_snapshot_is_annotated_with_its_base(repo: Repository, tmp_path: Path) -> None:
    base = _publish(repo, tmp_path / "w")
    derived = _derive(repo, base, "depth=3", "optimizer.lr=0.5")
    (annotation,) = snapshots.annotations(repo, derived)
    assert (annotation.derived_from, annotation.overrides) == (base, ("depth=3", "optimizer.lr=0.5"))
    assert (annotation.author, annotation.branch, annotation.message) == ("a", "main", None)
    tree = trees.load(repo.objects, snapshots.load(repo, derived).config)
    contents = {entry.name: trees.read_file(repo.objects, entry) for entry in tree.entries}
    assert contents["model/size.yaml"] == b"depth: 3\n"
    assert b"lr: 0.5 " in contents["config.yaml"]
    assert _derive(repo, base, "depth=3", "optimizer.lr=0.5") == derived


def test_an_override_changes_the_config_or_command_with_the_key(repo: Repository, tmp_path: Path) -> None:
    base = _publish(repo, tmp_path / "w")
    spec = LaunchSpec(command=("train.py", "--batch-size", "8", "optimizer.lr=1", "--betas", "1", "2", "--fast"))
    snapshot, changed = overrides.change(repo, base, spec, ["batch_size=16", "command:optimizer.lr=[1"])
    assert (snapshot, changed.command[2], changed.command[3]) == (base, "16", "optimizer.lr=[1")
    snapshot, changed = overrides.change(repo, base, spec, ["config.yaml:optimizer.lr=2", "depth=3", "seed=8"])
    assert changed == spec
    assert snapshots.annotations(repo, snapshot)[0].overrides == ("config.yaml:optimizer.lr=2", "depth=3", "seed=8")
    mixed, _ = overrides.change(repo, base, spec, ["batch_size=16", "depth=4"])
    assert snapshots.annotations(repo, mixed)[0].overrides == ("depth=4",)
    config = overrides.config_files(repo, snapshots.load(repo, snapshot).config)
    assert b"lr: 2 " in config["config.yaml"] and config["model/size.yaml"] == b"depth: 3\n"
    assert b"seed: 8 " in config["config.yaml"]
    for text in ("betas=3", "fast=false"):
        with pytest.raises(UsageError, match="one value"):
            overrides.change(repo, base, spec, [text])
    with pytest.raises(UsageError, match=r"command and config\.yaml can have the key"):
        overrides.change(repo, base, spec, ["optimizer.lr=3"])
    with pytest.raises(UsageError, match="did you mean batch_size"):
        overrides.change(repo, base, spec, ["batchsize=3"])


def test_a_seed_without_a_config_key_changes_the_launch_seed(repo: Repository) -> None:
    empty = trees.write_tree(repo.objects, []).digest
    base = planted.publish(repo, planted.snapshot(empty, config=empty))
    assert overrides.change(repo, base, LaunchSpec(command=("train.py",)), ["seed=3"])[1].seed == 3
    for text in ("seed=x", "lr=1"):
        with pytest.raises(UsageError):
            overrides.change(repo, base, LaunchSpec(command=("train.py",)), [text])


def test_an_override_back_to_the_original_value_gives_the_base_snapshot(repo: Repository, tmp_path: Path) -> None:
    base = _publish(repo, tmp_path / "w")
    assert _derive(repo, _derive(repo, base, "depth=3"), "depth=2") == base


def test_overrides_that_change_nothing_publish_nothing(repo: Repository, tmp_path: Path) -> None:
    base = _publish(repo, tmp_path / "w")
    assert _derive(repo, base, "seed=7") == base
    assert len(snapshots.annotations(repo, base)) == 1
