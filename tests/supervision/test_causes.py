"""Rules of causes: each is precise, a healthy log matches none, and an effect on other ranks never wins."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.errors import ConfigError
from m5ws.logs import log_lines
from m5ws.records.cause import Level, Rule
from m5ws.supervision import causes

RULES = causes.builtin()
CLASSIFIER = causes.Classifier(RULES)
HEALTHY = (Path(__file__).parents[1] / "data" / "causes" / "healthy.txt").read_text("utf-8")


def _named(level: Level | None = None) -> Mapping[str, Rule]:
    """Return the rules of a level, each of which matches the name of its class alone."""
    return {
        kind: msgspec.structs.replace(rule, patterns=(f"^{kind}$",))
        for kind, rule in RULES.items()
        if level in {None, rule.level}
    }


NAMED = causes.Classifier(_named())


def test_rules_have_each_pattern_once_and_none_matches_an_empty_line() -> None:
    patterns = [pattern for rule in RULES.values() for pattern in rule.patterns]
    assert len(RULES) >= 50
    assert len(set(patterns)) == len(patterns)
    assert CLASSIFIER.match([""]) is None
    assert {rule.level for rule in RULES.values()} == {"cascade", "script", "root"}


@pytest.mark.parametrize("line", HEALTHY.splitlines())
def test_a_line_of_a_healthy_log_has_no_class(line: str) -> None:
    match = CLASSIFIER.match([line])
    assert match is None or line.startswith("  "), match


def test_a_healthy_log_has_no_cause() -> None:
    assert CLASSIFIER.find({"0": HEALTHY.splitlines(), "launcher": HEALTHY.splitlines()}, {}) is None


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_source_lines_of_a_traceback_have_no_class(prefix: str) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in load  # PermissionError: [Errno 13]',
        '    raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")',
        "    ^^^^^^^^^^^^^^^^^^",
        "KeyError: 'labels'",
    ]
    cause = CLASSIFIER.find({"1": [prefix + line for line in lines]}, {})
    assert cause is not None
    assert (cause.kind, cause.line) == ("script-error", 5)


def test_an_exception_that_training_survived_is_no_cause() -> None:
    survived = ["Traceback (most recent call last):", "FileNotFoundError: [Errno 2] No such file or directory: 'cache'"]
    steps = [f"step {step}: loss {1 / (step + 1)}" for step in range(1000)]
    assert CLASSIFIER.find({"0": survived + steps}, {}) is None


def test_the_first_of_chained_exceptions_is_the_cause() -> None:
    lines = ["OSError: [Errno 28] No space left on device", "During handling of it:", "PermissionError: [Errno 13] x"]
    cause = CLASSIFIER.find({"0": lines}, {})
    assert cause is not None
    assert (cause.kind, cause.line, cause.evidence) == ("disk-full", 1, tuple(lines))


def test_only_the_last_state_of_a_progress_bar_counts() -> None:
    assert CLASSIFIER.match(["KeyError: 'x'\rstep 3\r"]) is None
    assert CLASSIFIER.match(["step 3\rKeyError: 'x'"]) is not None


def test_a_launcher_and_a_later_rank_repeat_the_failure_of_the_first_rank() -> None:
    lines = ["KeyError: 'labels'"]
    cause = CLASSIFIER.find({"launcher": lines, "0": lines, "10": lines, "2": lines}, {"0": 8.0, "10": 7.0, "2": 9.0})
    assert cause is not None
    assert (cause.rank, cause.others) == ("10", dict.fromkeys(("launcher", "0", "2"), "script-error"))


def test_a_signal_in_the_log_of_the_launcher_wins_against_its_effects() -> None:
    effect = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"
    logs = {"0": [effect], "1": [], "launcher": ["  exitcode  : -11 (pid: 7)"]}
    cause = CLASSIFIER.find(logs, {"0": 1.0})
    assert cause is not None
    assert (cause.kind, cause.rank, cause.others) == ("segmentation-fault", "launcher", {"0": "gloo-connection"})


PAIRS = list(itertools.product(_named("cascade"), [*_named("root"), *_named("script")]))


@given(st.data(), st.integers(2, 16))
def test_an_effect_never_wins_against_a_failure_of_another_rank(data: st.DataObject, world: int) -> None:
    effects = {str(rank): data.draw(st.sampled_from([*_named("cascade"), "", None])) for rank in range(world)}
    ended_s = {rank: data.draw(st.floats(0, 10)) for rank in data.draw(st.sets(st.sampled_from(sorted(effects))))}
    rank = data.draw(st.sampled_from(sorted(effects)))
    order = data.draw(st.permutations(sorted(effects)))
    for _, failure in PAIRS if world == 2 else [data.draw(st.sampled_from(PAIRS))]:
        lines = effects | {rank: failure}
        logs = {name: [text] for name in order if (text := lines[name]) is not None}
        cause = NAMED.find(logs, ended_s)
        assert cause is not None
        assert (cause.kind, cause.rank) == (failure, rank)


@pytest.mark.parametrize(("effect", "failure"), PAIRS)
def test_an_effect_with_an_earlier_time_does_not_win(effect: str, failure: str) -> None:
    for logs in ({"0": [effect], "1": [failure]}, {"1": [failure], "0": [effect]}):
        cause = NAMED.find(logs, {"0": 1.0, "1": 2.0})
        assert cause is not None
        assert (cause.kind, cause.rank, cause.others) == (failure, "1", {"0": effect})


@given(st.lists(st.text(max_size=60), max_size=20))
def test_any_text_has_a_class_or_none(lines: list[str]) -> None:
    match = CLASSIFIER.match(lines)
    assert match is None or (match.kind in RULES and 0 <= match.line < len(lines))


def test_long_lines_and_control_bytes_take_no_long_time() -> None:
    lines = ["Xid (" * 100_000, "\0" * 1_000_000, "NCCL WARN " * 100_000, "\x1b[31m" * 100_000, "a: b: " * 100_000]
    assert CLASSIFIER.match(lines * 4) is None


@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from([b"\n", b"\r", b"\x1b[2K", b"KeyError: "]))))
def test_any_bytes_of_a_log_have_a_class_or_none(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    log = tmp_path_factory.getbasetemp() / "log"
    log.write_bytes(b"".join(pieces))
    _, lines = log_lines.read_end(log, causes.END_LINES)
    cause = CLASSIFIER.find({"0": lines, "launcher": lines}, {})
    assert cause is None or cause.kind in RULES


def test_a_slow_rule_is_left_out_alone_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(causes, "_SEARCH_S", 0.2)
    slow = msgspec.structs.replace(RULES["disk-full"], patterns=("(?:.*?,){25}P",))
    lines = ["1," * 60] * (causes.END_LINES - 1) + ["KeyError: 'x'"]
    cause = causes.Classifier({**RULES, "own-rule": slow}).find({"0": lines, "1": lines}, {})
    assert cause is not None
    assert cause.kind == "script-error"
    assert caplog.text.count("causes.own-rule is left out") == 1


def test_a_secret_of_many_lines_is_masked_in_the_evidence() -> None:
    key = ["-----BEGIN RSA PRIVATE KEY-----", *["MIIEowIBAAKCAQEA7bq"] * 20]
    cause = CLASSIFIER.find({"0": [*key, "OSError: [Errno 28] No space left on device", "end"]}, {})
    assert cause is not None
    assert cause.evidence[-2:] == ("OSError: [Errno 28] No space left on device", "end")
    assert "MIIE" not in "".join(cause.evidence)


def test_a_pattern_that_is_no_regular_expression_is_an_error() -> None:
    rule = msgspec.structs.replace(RULES["disk-full"], patterns=("(",))
    with pytest.raises(ConfigError):
        causes.Classifier({"disk-full": rule})


@pytest.mark.parametrize(
    ("name", "level", "kind"),
    [("scratch", "root", "scratch"), ("scratch", "script", "disk-full"), ("disk-full", "root", "disk-full")],
)
def test_a_rule_of_a_workspace_wins_on_its_level_and_replaces_a_rule_of_its_name(
    name: str, level: Level, kind: str
) -> None:
    own = Rule(title="x", patterns=("No space",), advice="y", owner="user", retry=True, level=level)
    cause = causes.Classifier(causes.with_own({name: own})).find({"0": ["OSError: [Errno 28] No space left"]}, {})
    assert cause is not None
    assert (cause.kind, cause.title == "x") == (kind, name == kind)
