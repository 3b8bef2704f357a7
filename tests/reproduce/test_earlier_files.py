"""Files that only a resumed run has, because an earlier attempt left them and no later one removed them."""

from pathlib import Path

import pytest

from m5ws.records.ledger import AttemptEnded, Observation, Step
from m5ws.repository import outputs
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.repository import Repository
from m5ws.reproduce.outputs import output_files, surroundings
from m5ws.runs.outputs import saved_outputs
from m5ws.runs.outputs.outputs import Outputs
from tests.support.records import planted
from tests.support.workspace.checkouts import write

_RESUMED, _REPLAY = "a" * 12, "b" * 12
Files = dict[str, str]


@pytest.mark.parametrize(("first", "guessed"), [(1, False), (5, False), (1, True)])
def test_an_attempt_begins_anew_if_it_took_the_first_step(repo: Repository, first: int, guessed: bool) -> None:
    planted.run(repo, _RESUMED)
    for attempt, step in ((1, 1), (2, first)):
        planted.begin(repo, _RESUMED, attempt)
        assert surroundings.load(repo, _RESUMED).begins_anew is False
        events = Observation(rank=0, after=step - 1, guessed=guessed), Step(step=step, quantities={})
        planted.append(repo, _RESUMED, attempt, "0000", *events)
    assert surroundings.load(repo, _RESUMED).begins_anew is (first == 1 and not guessed)


def _differences(repo: Repository, folder: Path, resumed: list[Files], replay: list[Files]) -> list[str]:
    """Return the files that differ between two runs with the output files of each attempt."""
    contents = dict[str, str]()
    for name, attempts in ((_RESUMED, resumed), (_REPLAY, replay)):
        run = planted.run(repo, name)
        for number, files in enumerate(attempts, 1):
            place = folder / name / str(number)
            write(place, files)
            sources = [SourceFile(path=path.encode(), location=place / path) for path in files]
            planted.begin(repo, name, number)
            planted.append(repo, name, number, LAUNCHER, AttemptEnded(outcome="failed", exit_code=1))
            record = saved_outputs.record(repo, run, outputs.name(number), Outputs(files=tuple(sources)))
            assert record is not None
            outputs.publish(repo, record)
            contents[name] = record.content
    places = (surroundings.load(repo, _RESUMED), surroundings.load(repo, _REPLAY))
    report = output_files.compare(repo, (contents[_RESUMED], contents[_REPLAY]), places)
    return [difference.name for difference in report.differences]


@pytest.mark.parametrize(
    ("resumed", "replay", "differing"),
    [
        ([{"step=6.ckpt": "6"}, {"step=6.ckpt": "6", "step=9.ckpt": "9"}], [{"step=9.ckpt": "9"}], []),
        ([{"step=9.ckpt": "9"}], [{"step=6.ckpt": "6"}, {"step=6.ckpt": "6", "step=9.ckpt": "9"}], []),
        # A checkpoint that is a folder, and one in the numbered folder of an attempt.
        ([{"step=6.ckpt/meta": "6"}, {"step=6.ckpt/meta": "6", "a": "1"}], [{"a": "1"}], []),
        (
            [{"version_0/6.ckpt": "6"}, {"version_0/6.ckpt": "6", "version_1/9.ckpt": "9"}],
            [{"version_1/9.ckpt": "9"}],
            [],
        ),
        ([{"version_0/6.ckpt": "6"}, {"version_1/6.ckpt": "6", "a": "1"}], [{"a": "1"}], ["version_1/6.ckpt"]),
        # A result, and a file that happens to be equal to one in another folder.
        ([{"DONE": ""}, {"DONE": "", "a": "1"}], [{"a": "1"}], ["DONE"]),
        ([{"v0/step=6.ckpt": "6"}, {"v1/step=6.ckpt": "6", "a": "1"}], [{"a": "1"}], ["v1/step=6.ckpt"]),
        # Made, or written again, by the last attempt.
        ([{"a": "1"}, {"a": "1", "step=6.ckpt": "6"}], [{"a": "1"}], ["step=6.ckpt"]),
        ([{"step=6.ckpt": "5"}, {"step=6.ckpt": "6", "a": "1"}], [{"a": "1"}], ["step=6.ckpt"]),
        # A file that both have is compared in any case.
        ([{"step=6.ckpt": "6"}, {"step=6.ckpt": "6"}], [{"step=6.ckpt": "7"}], ["step=6.ckpt"]),
        ([{"step=6.ckpt": "6"}, {"a": "1"}], [{"a": "1", "step=6.ckpt": "6"}], ["step=6.ckpt"]),
        ([{"a": "1", "step=6.ckpt": "6"}], [{"a": "1"}], ["step=6.ckpt"]),
    ],
)
def test_a_file_that_an_earlier_attempt_left_is_not_judged(
    repo: Repository, tmp_path: Path, resumed: list[Files], replay: list[Files], differing: list[str]
) -> None:
    assert _differences(repo, tmp_path, resumed, replay) == differing
