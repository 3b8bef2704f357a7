"""Checkpoints for trainings of a resumed script: each is given its own, or none.

The scripts are generated: their folders, the trainings that they leave out because they are done, and their kills.
"""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from m5ws.records.ledger import SHARED_FOLDER, Notice
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolReader, SpoolWriter, genesis
from m5ws.training.frameworks import lightning_state, resume
from m5ws.training.frameworks.training_folders import TrainingFolders
from m5ws.training.runtime.context import ActiveRank
from m5ws.training.runtime.stop import StopRequest
from tests.support.ranks.orders import orders

_STEPS, _SAVED_EVERY = 4, 2
_WITHIN, _AFTER_SAVE, _AFTER_END = 1, 3, 5
"""Moments of a kill in a training: before its first save, after it, and before the next training."""


Given = tuple[int, int | None, int]
"""A training, the training that saved the checkpoint it got, and the checkpoint's step."""


class Killed(Exception):
    pass


class Script(msgspec.Struct, frozen=True):
    """A script with a training for each of its `folders`. It `skips` those that are done, or `clears` each folder."""

    folders: tuple[str, ...]
    skips: bool
    clears: bool

    def run(self, trainer: type[Any], kill: tuple[int, int] | None, results: Path) -> None:
        for number, folder in enumerate(self.folders):
            done = results / f"{number}.done"
            if self.skips and done.exists():
                continue
            if self.clears:
                shutil.rmtree(folder, ignore_errors=True)
            moment = kill[1] if kill is not None and kill[0] == number else 0
            trainer(number, folder, moment).train()
            done.touch()
            if moment == _AFTER_END:
                raise Killed


def trainer_module() -> ModuleType:
    """Return a module with a Trainer that saves as that of Hugging Face does.

    Its list `given` has for each training the training of its checkpoint, and the step. `generators` has the
    checkpoints from which the generators were restored.
    """
    given: list[Given] = []
    generators: list[str] = []

    class Trainer:
        def __init__(self, number: int, folder: str, killed_at: int = 0, save_strategy: str = "steps") -> None:
            self.number, self.killed_at = number, killed_at
            self.args = SimpleNamespace(output_dir=folder, save_strategy=save_strategy)
            self.state = SimpleNamespace(global_step=_STEPS)

        def train(self, resume_from_checkpoint: Any = None) -> None:
            begin, of = 0, None
            if resume_from_checkpoint:
                state = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text())
                begin, of = state["step"], state["of"]
            given.append((self.number, of, begin))
            for step in range(begin + 1, _STEPS + 1):
                if step == self.killed_at:
                    raise Killed
                if step % _SAVED_EVERY == 0 and self.args.save_strategy != "no":
                    checkpoint = Path(self.args.output_dir) / f"checkpoint-{step}"
                    checkpoint.mkdir(parents=True, exist_ok=True)
                    state = {"step": step, "of": self.number}
                    (checkpoint / "trainer_state.json").write_text(json.dumps(state))

        def _load_rng_state(self, checkpoint: str) -> None:
            generators.append(checkpoint)

    module = ModuleType("a_trainer")
    module.generators = generators  # type: ignore[attr-defined]
    module.Trainer, module.given = Trainer, given  # type: ignore[attr-defined]
    return module


class Attempts:
    """Attempts of one run in a work directory, with the notices of the earlier ones."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notices: list[Notice] = []
        self.number = 0

    def begin(self, rank: int = 0) -> TrainingFolders:
        """Return the folders of a new attempt's rank."""
        if rank == 0:
            self._read()
            self.number += 1
        shared = {notice.folder for notice in self.notices if notice.kind == SHARED_FOLDER and notice.folder}
        context = orders(self.directory, attempt=self.number, shared_folders=tuple(shared))
        spool = SpoolWriter(self._spool(rank), genesis("0" * 12, self.number, str(rank)))
        stop = StopRequest(self.directory / "stop", 1)
        return TrainingFolders(ActiveRank(context, None, spool, stop, rank, 2))  # type: ignore[arg-type]

    def kinds(self) -> list[str]:
        """Return the kinds of the notices of the newest attempt."""
        return [event.kind for event in self._events() if isinstance(event, Notice)]

    def _spool(self, rank: int) -> Path:
        return self.directory / f"{self.number}-{rank}.spool"

    def _events(self) -> Iterator[Any]:
        return map(ledger.decode_event, SpoolReader(self._spool(0)).read())

    def _read(self) -> None:
        if self.number:
            self.notices += [event for event in self._events() if isinstance(event, Notice)]


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    monkeypatch.chdir(tmp_path)
    return Attempts(tmp_path)


_OWN, _SHARED, _TWO_SHARE = ("out/0", "out/1", "out/2"), ("out",) * 3, ("out/a", "out/a", "out/b")
_KILLS = list(itertools.product(range(3), (_WITHIN, _AFTER_SAVE, _AFTER_END)))
_SECOND_KILLS = [(0, _AFTER_SAVE), (1, _WITHIN), (1, _AFTER_SAVE), (1, _AFTER_END), (2, _AFTER_SAVE)]


def _is_unknowable(script: Script, kills: Sequence[tuple[int, int]]) -> bool:
    """Return True for the documented limit: a kill after the only training so far in a folder, where another follows.

    To the next attempt it looks like a script that has one training, and evaluates its model.
    """
    return script.skips and any(
        moment == _AFTER_END and script.folders[number] in script.folders[number + 1 :] for number, moment in kills
    )


@pytest.mark.parametrize(
    ("folders", "clears"),
    [(_OWN, False), (_SHARED, False), (_SHARED, True), (_TWO_SHARE, False)],
    ids=["own", "shared", "shared, cleared", "two share"],
)
@pytest.mark.parametrize("skips", [False, True], ids=["all again", "skips"])
def test_a_training_gets_its_own_checkpoint_or_none(
    folders: tuple[str, ...], clears: bool, skips: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(folders, skips, clears)
    resumed = 0
    for case, kills in enumerate(itertools.product(_KILLS, _SECOND_KILLS)):
        if _is_unknowable(script, kills):
            continue
        place = tmp_path / str(case)
        place.mkdir()
        monkeypatch.chdir(place)
        attempts, module = Attempts(place), trainer_module()
        original = module.Trainer.train
        for kill in (*kills, None):
            module.Trainer.train = original
            resume._trainer(attempts.begin(), module)
            try:
                script.run(module.Trainer, kill, place)
            except Killed:
                assert kill is not None
        given: list[Given] = module.given
        assert [call for call in given if call[1] not in (None, call[0])] == [], (script, kills)
        resumed += sum(of is not None for _, of, _ in given)
        if folders == _OWN and kills[0][1] == _AFTER_SAVE:
            interrupted = kills[0][0]
            assert (interrupted, interrupted, _SAVED_EVERY) in given, (script, kills)
    assert resumed or clears, script


def test_all_ranks_choose_alike(attempts: Attempts) -> None:
    for folder in ("out/1", "out/2"):
        attempt_of_one(attempts, folder)
    choices = [attempt_of_one(attempts, "out/1"), attempt_of_one(attempts, "out/1", rank=1)]
    assert choices == [[(0, 0, _STEPS)]] * 2


def attempt_of_one(attempts: Attempts, folder: str, rank: int = 0, **passed: Any) -> list[Given]:
    """Train once in a folder, in a new attempt, and return the checkpoint of the training."""
    module = trainer_module()
    resume._trainer(attempts.begin(rank), module)
    module.Trainer(0, folder).train(**passed)
    given: list[Given] = module.given
    return given


def test_the_scripts_own_choice_stays(attempts: Attempts) -> None:
    attempt_of_one(attempts, "out")
    assert attempt_of_one(attempts, "out", resume_from_checkpoint=False) == [(0, None, 0)]
    first = "out/checkpoint-2"
    assert attempt_of_one(attempts, "out", resume_from_checkpoint=first) == [(0, 0, _SAVED_EVERY)]
    assert attempt_of_one(attempts, "out") == [(0, 0, _STEPS)] and SHARED_FOLDER not in attempts.kinds()


def test_a_training_that_is_done_restores_its_generators(attempts: Attempts) -> None:
    module = trainer_module()
    original = module.Trainer.train
    for killed_at in (_AFTER_SAVE, 0, 0):
        module.Trainer.train = original
        resume._trainer(attempts.begin(), module)
        with suppress(Killed):
            module.Trainer(0, "out", killed_at).train()
    assert module.given == [(0, None, 0), (0, 0, _SAVED_EVERY), (0, 0, _STEPS)]
    assert module.generators == [f"out/checkpoint-{_STEPS}"]


def test_a_folder_that_has_checkpoints_at_the_first_attempt_is_shared(attempts: Attempts) -> None:
    trainer_module().Trainer(7, "out").train()
    assert attempt_of_one(attempts, "out") == [(0, None, 0)] and attempts.kinds() == [SHARED_FOLDER]
    assert attempt_of_one(attempts, "out") == [(0, None, 0)] and attempts.kinds() == ["resume"]


def test_a_trainer_that_saves_nothing_gets_nothing(attempts: Attempts) -> None:
    attempt_of_one(attempts, "out")
    module = trainer_module()
    resume._trainer(attempts.begin(), module)
    module.Trainer(1, "out", save_strategy="no").train()
    module.Trainer(0, "out").train()
    assert module.given == [(1, None, 0), (0, 0, _STEPS)]


def fit(folders: TrainingFolders, **options: Any) -> Any:
    """Call `fit` of a Trainer of Lightning's form once, and return its `ckpt_path`."""
    settings: dict[str, Any] = {
        "fast_dev_run": False,
        "callbacks": [],
        "checkpoint_callbacks": [SimpleNamespace(dirpath=None)],
        "loggers": [SimpleNamespace(save_dir="out", name="lightning_logs", _version=None)],
        "default_root_dir": "out",
        "_checkpoint_connector": SimpleNamespace(_user_managed=False),
    }

    class Trainer(SimpleNamespace):
        def fit(self, model: Any, ckpt_path: Any = None) -> Any:
            return ckpt_path

    module = ModuleType("a_lightning")
    module.Trainer = Trainer  # type: ignore[attr-defined]
    resume._lightning(folders, module)
    passed = {"ckpt_path": options.pop("ckpt_path")} if "ckpt_path" in options else {}
    return module.Trainer(**settings | options).fit(None, **passed)


def save(path: str, step: int = 1, call: int | None = 1) -> str:
    """Write a checkpoint of Lightning; one without m5ws if `call` is None."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Any] = {"global_step": step}
    if call is not None:
        state = msgspec.msgpack.encode({"generators": {}, "before_order": None, "batches": step, "call": call})
        stored[lightning_state._KEY] = [torch.frombuffer(bytearray(state), dtype=torch.uint8)]
    torch.save(stored, path)
    return str(Path(path).resolve())


def own(folder: str) -> dict[str, Any]:
    return {"checkpoint_callbacks": [SimpleNamespace(dirpath=folder)]}


_DEFAULT = "out/lightning_logs/version_{}/checkpoints/{}.ckpt"


class TestLightning:
    def test_the_newest_version_of_one_training(self, attempts: Attempts) -> None:
        assert fit(attempts.begin()) is None
        save(_DEFAULT.format(0, "a"))
        newest = save(_DEFAULT.format(1, "b"), step=9)
        save(_DEFAULT.format(1, "pretrained"), step=99, call=None)
        assert fit(attempts.begin()) == newest

    def test_two_trainings_with_default_folders(self, attempts: Attempts) -> None:
        folders = attempts.begin()
        assert (fit(folders), fit(folders)) == (None, None) and attempts.kinds() == [SHARED_FOLDER]
        save(_DEFAULT.format(0, "trial"))
        save(_DEFAULT.format(1, "real"), step=9)
        assert fit(attempts.begin()) is None

    def test_a_folder_of_a_logger_that_the_script_passes_is_that_of_its_versions(self, attempts: Attempts) -> None:
        newest = save("out/logs/version_0/best/a.ckpt")
        attempts.begin()
        assert fit(attempts.begin(), **own("out/logs/version_1/best")) == newest

    @pytest.mark.parametrize(
        ("logger", "folder"),
        [
            ([], "out/checkpoints"),
            ([SimpleNamespace(save_dir=None, name="logs", _version="fold1")], "out/logs/fold1/checkpoints"),
            ([SimpleNamespace(save_dir="runs", name="project")], "runs/project/x7f3/checkpoints"),
        ],
        ids=["no logger", "a named version", "a service"],
    )
    def test_default_folders(self, logger: list[Any], folder: str, attempts: Attempts) -> None:
        attempts.begin()
        save("elsewhere/checkpoints/other.ckpt", step=99)
        path = save(f"{folder}/a.ckpt")
        assert fit(attempts.begin(), loggers=logger) == path

    def test_a_fold_that_is_first_in_its_attempt_gets_its_own(self, attempts: Attempts) -> None:
        folders = attempts.begin()
        assert fit(folders, **own("out/0")) is None and fit(folders, **own("out/1")) is None
        save("out/0/last.ckpt", step=12)
        path = save("out/1/last.ckpt", step=8)
        folders = attempts.begin()
        assert fit(folders, **own("out/1")) == path and fit(folders, **own("out/2")) is None

    def test_the_second_fit_of_a_trainer_gets_nothing(self, attempts: Attempts) -> None:
        attempts.begin()
        path = save("out/0/last.ckpt")
        folders = attempts.begin()
        assert fit(folders, **own("out/0")) == path and fit(folders, **own("out/0")) is None

    def test_a_trial_run_takes_nothing_from_the_training(self, attempts: Attempts) -> None:
        attempts.begin()
        path = save("out/0/last.ckpt")
        folders = attempts.begin()
        trials: list[dict[str, Any]] = [
            {"callbacks": [SimpleNamespace(_early_exit=True)]},
            {"fast_dev_run": 1},
            {"checkpoint_callbacks": []},
        ]
        for trial in trials:
            assert fit(folders, **own("out/0") | trial) is None
        assert fit(folders, **own("out/0")) == path

    def test_a_path_of_the_script_stays(self, attempts: Attempts) -> None:
        attempts.begin()
        save("out/0/last.ckpt")
        assert fit(attempts.begin(), ckpt_path="mine", **own("out/0")) == "mine"
        connector = SimpleNamespace(_user_managed=True)
        assert fit(attempts.begin(), _checkpoint_connector=connector, **own("out/0")) is None

    def test_checkpoints_of_older_builds_count_if_they_are_of_the_first_call(self, attempts: Attempts) -> None:
        attempts.begin()
        path = save("out/0/a.ckpt", call=1)
        save("out/1/a.ckpt", call=2)
        folders = attempts.begin()
        assert (fit(folders, **own("out/0")), fit(folders, **own("out/1"))) == (path, None)

    def test_a_checkpoint_of_this_process_is_passed_over(self, attempts: Attempts) -> None:
        attempts.begin()
        path = Path(save("out/0/a.ckpt"))
        state = torch.load(path)[lightning_state._KEY][0].numpy().tobytes()
        lightning_state._own_saves.add(lightning_state._digest(state))
        try:
            assert fit(attempts.begin(), **own("out/0")) is None
        finally:
            lightning_state._own_saves.clear()
