"""Progress is on stderr alone: a live line on a terminal, now and then a line elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.cli.terminal import output
from m5ws.cli.terminal.progress import Bar, name_silence
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.logs.log_lines import LogReader
from m5ws.records.ledger import AttemptEnded, Notice, Observation, RankStarted, Step

_LINE_ERASED = "\x1b[1A\x1b[2K"


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _step(number: int, *, time_s: float = 0.0, tokens: int = 100, total: int | None = 10) -> Step:
    quantities = {"loss": (1.0 / number).hex()}
    return Step(time_s=time_s, step=number, quantities=quantities, tokens=tokens, seconds=0.5, total=total)


def test_short_work_prints_no_progress_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar(terminal=False, clock=Clock()) as bar:
        bar("hashing", 1, 2)
        bar("hashing", 2, 2)
    assert capsys.readouterr() == ("", "")


def test_long_work_prints_progress_lines_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Bar(terminal=False, clock=clock) as bar:
        for done in range(1, 40):
            clock.now += 1.0
            bar("hashing", done, 1000)
        clock.now += 10.0
        bar("listing", 7, 0)
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == (
        "", ["hashing: 10 of 1,000", "hashing: 20 of 1,000", "hashing: 30 of 1,000", "listing: 7"]
    )  # fmt: skip


class Timers:
    """Timers whose functions the test calls."""

    def __init__(self) -> None:
        self.functions: list[Callable[[], None]] = []

    def __call__(self, delay_s: float, function: Callable[[], None]) -> None:
        assert delay_s > 0
        self.functions.append(function)

    def fire(self) -> None:
        waiting, self.functions = self.functions, []
        for function in waiting:
            function()


@pytest.fixture
def as_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the display take the captured stderr for a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("as_terminal")
def test_work_that_is_named_once_is_shown_on_a_terminal_after_a_moment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, timers = Clock(), Timers()
    monkeypatch.setattr("m5ws.cli.terminal.progress.start_timer", timers)
    with Bar(terminal=True, clock=clock) as bar:
        bar("hashing", 0, 0)
        bar("asking torch", 0, 0)
        assert len(timers.functions) == 1
        timers.fire()  # too early, so it waits again
        assert capsys.readouterr().err == "" and len(timers.functions) == 1
        clock.now += 1.0
        timers.fire()
        err = capsys.readouterr().err
        assert "asking torch" in err and "hashing" not in err
        bar("packing", 0, 0)
        bar.close()
        assert "packing" in capsys.readouterr().err
        bar("short work", 0, 0)
        bar.close()
        clock.now += 1.0
        timers.fire()
    assert "short work" not in capsys.readouterr().err


@pytest.mark.usefixtures("as_terminal")
@pytest.mark.parametrize(
    "show",
    [
        lambda: output.echo("printed"),
        lambda: output.print_json("printed"),
        lambda: Bar(terminal=False)("hidden", 0, 0),
        output.end_silence,
    ],
)
def test_a_command_names_its_wait_until_anything_else_is_shown(
    show: Callable[[], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("m5ws.cli.terminal.progress._PATIENCE_S", 0.0)
    name_silence("reading the store", terminal=True)
    assert "reading the store" in capsys.readouterr().err
    show()
    assert capsys.readouterr().err.count(_LINE_ERASED) == 1
    output.echo("later")
    assert _LINE_ERASED not in capsys.readouterr().err


@pytest.mark.usefixtures("as_terminal")
def test_a_live_line_shows_the_stage_of_an_attempt_below_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, clock = tmp_path / "rank-0.log", Clock()

    def shown() -> str:
        clock.now += 4.0
        assert progress._live is not None
        progress._live.refresh()
        return capsys.readouterr().err

    with RunProgress(log=log, terminal=True, clock=clock) as progress:
        progress.prepare("hashing", 1, 2)
        assert "hashing: 1 of 2 (4s)" in shown()
        progress.watch("0", RankStarted(rank=0, world=1, pid=1))
        log.write_text("epoch 1\n")
        progress.poll()
        progress.watch("node", Notice(kind="limit", message="[not markup]"))
        err = capsys.readouterr().err
        assert "epoch 1" in err and "limit: [not markup]" in err
        assert "running, without a step yet (4s)" in shown()
        progress.watch("0", Observation(rank=0, after=0))
        progress.watch("0", Step(step=19, quantities={}))
        assert "the script is running, step 19 (4s)" in shown()
        progress.watch("node", AttemptEnded(outcome="finished", exit_code=0))
        assert progress._live is None
        progress.prepare("waiting for MLflow", 0, 0)
        assert "MLflow" in shown()
    with RunProgress(enabled=False, terminal=True, clock=clock) as progress:
        progress.watch("0", RankStarted(rank=0, world=1, pid=1))
        assert progress._live is None


def test_equal_notices_of_several_ranks_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(terminal=False, clock=Clock()) as progress:
        for rank, message in (("0", "a"), ("1", "a"), ("1", "b")):
            progress.watch(rank, Notice(kind="limit", message=message, rank=int(rank)))
    assert capsys.readouterr().err == "limit: a\nlimit: b\n"


def test_steps_outside_a_terminal_are_printed_at_intervals_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with RunProgress(terminal=False, clock=clock) as progress:
        for number in range(1, 11):
            clock.now += 3.0
            progress.watch("1", _step(number))
            progress.watch("0", _step(number, time_s=3.0 * number))
        progress.watch("node", AttemptEnded(outcome="finished", exit_code=0))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "step 1/10  loss 1  400 tokens/s",
        "step 5/10  loss 0.2  400 tokens/s  15s left",
        "step 9/10  loss 0.111111  400 tokens/s  3s left",
        "step 10/10  loss 0.1  400 tokens/s",
    ]


def test_the_last_step_before_a_wait_is_printed_when_its_line_is_due(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with RunProgress(terminal=False, clock=clock) as progress:
        for number in (1, 2):
            progress.watch("0", _step(number))
        for _ in range(30):
            clock.now += 1.0
            progress.poll()
        assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["1/10", "2/10"]


def test_important_notices_are_printed_even_without_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(enabled=False, terminal=False) as progress:
        progress.watch("0", _step(1))
        progress.watch("node", Notice(kind="inexact-resume", message="loss differs", step=5))
    assert capsys.readouterr().err == "inexact-resume (step 5): loss differs\n"


def test_the_output_of_a_script_without_a_session_is_followed_in_whole_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, clock = tmp_path / "rank-0.log", Clock()
    with RunProgress(log=log, terminal=False, clock=clock) as progress:
        progress.poll()
        log.write_bytes(b"epoch 1\nepo")
        progress.poll()
        with log.open("ab") as file:
            file.write(b"ch \x1b[31m2\x1b[0m\n\n 1%\r 2%\r 3")
        progress.poll()
        assert capsys.readouterr().err == "epoch 1\nepoch 2\n\n"
        clock.now += 20
        progress.poll()
        progress.poll()
        assert capsys.readouterr().err == " 2%\n"
        with log.open("ab") as file:
            file.write(b"%\r100%\n\x07unfinished")
        progress.poll()
        assert capsys.readouterr().err == "100%\n"
    assert capsys.readouterr().err == "\\x07unfinished\n"


def test_movements_of_the_cursor_are_left_out_of_followed_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"  0%| |\x1b[A\n\x1b[A{'loss': 5}\n      \x1b[A\n\n\x1b[2K\r\x1b[A\nend\n 5%\r\x1b[A\r")
    with RunProgress(log=log, terminal=False, clock=lambda: 0.0) as progress:
        progress.poll()
        assert capsys.readouterr().err.splitlines() == ["  0%| |", "{'loss': 5}", "", "end"]
    assert LogReader(log, at_end=False).read_bar() == " 5%"


def test_secrets_and_keys_of_several_lines_are_masked_in_followed_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "rank-0.log"
    key = "-----BEGIN PRIVATE " + "KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n" * 3
    log.write_text(f"before\ntoken {'hf' + '_' + 'QwErTyUiOpAsDfGhJkLzXcVbNm12345678'}\n" + key[:100] + "\n")
    with RunProgress(log=log, terminal=False) as progress:
        progress.poll()
        assert capsys.readouterr().err == "before\ntoken ***\n"
        with log.open("a") as file:
            file.write(key[101:] + "-----END PRIVATE " + "KEY-----\nafter\n")
        progress.poll()
    err = capsys.readouterr().err
    assert "MIIEvQ" not in err and err.endswith("after\n")


def test_script_output_is_printed_until_the_first_step_and_hidden_without_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("loading\n")
    with RunProgress(log=log, terminal=False, enabled=False) as progress:
        progress.poll()
    assert capsys.readouterr().err == ""
    with RunProgress(log=log, terminal=False) as progress:
        progress.poll()
        progress.watch("0", _step(1))
        log.write_text("loading\nstep 1\n")
        progress.poll()
    assert capsys.readouterr().err.splitlines() == ["loading", "step 1/10  loss 1  200 tokens/s"]


def test_paths_that_are_not_text_can_be_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"path": b"a\xff/\xc3\xa9", "at": Path("/x")})
    assert capsys.readouterr().out == '{\n  "path": "a\\\\xff/é",\n  "at": "/x"\n}\n'


def test_observed_steps_do_not_end_followed_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "rank-0.log"
    with RunProgress(log=log, terminal=False) as progress:
        progress.watch("0", Observation(rank=0, after=0))
        progress.watch("0", _step(1))
        log.write_text("epoch 1\n")
        progress.poll()
    assert capsys.readouterr().err == "epoch 1\n"
