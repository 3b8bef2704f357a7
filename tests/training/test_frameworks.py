"""Changes of a framework's module after its import. tests/services/test_frameworks.py has the real frameworks."""

import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import m5ws
from m5ws.records.run import LaunchSpec
from m5ws.training.frameworks import after_import, lightning_plugin, lightning_state, resume, trainer_loss
from m5ws.training.runtime import context


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "a_framework"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "trainer.py").write_text("def train():\n    return 'as it is'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.startswith("a_framework")]:
        monkeypatch.delitem(sys.modules, name)
    return "a_framework.trainer"


def test_a_module_is_changed_once_when_the_script_imports_it(package: str) -> None:
    changed: list[ModuleType] = []
    finders = len(sys.meta_path)
    after_import.change(package, changed.append)
    importlib.import_module("a_framework")
    assert changed == []
    module = importlib.import_module(package)
    assert changed == [module] and module.train() == "as it is"
    assert "as it is" in inspect.getsource(module.train) and len(sys.meta_path) == finders


def test_a_module_that_does_not_exist_stays_absent(package: str) -> None:
    after_import.change("a_framework.absent", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("a_framework.absent")


def test_a_lightning_of_another_form_trains_as_without_m5ws(package: str, tmp_path: Path) -> None:
    (tmp_path / "a_framework" / "trainer.py").write_text(
        "class Trainer:\n    fit_loop = object()\n    callbacks = []\n    def fit(self):\n        return 1\n"
    )
    module = importlib.import_module(package)
    lightning_state._watch_fit(module)
    trainer = module.Trainer()
    assert trainer.fit() == 1 and trainer.callbacks == []


@pytest.mark.parametrize("is_given", [False, True])
def test_a_trainer_fits_with_one_callback_of_m5ws(
    package: str, tmp_path: Path, is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has none if the script replaced its callbacks."""
    (tmp_path / "a_framework" / "trainer.py").write_text(
        "class Callback: ...\nclass Trainer:\n    fit_loop, callbacks = object(), []\n"
        "    def fit(self):\n        return len(self.callbacks)\n"
    )
    monkeypatch.setattr(lightning_state, "_USED", ())
    module = importlib.import_module(package)
    lightning_state._watch_fit(module)
    if is_given:
        module.Trainer.callbacks = [lightning_state._callback(package)]
    assert module.Trainer().fit() == 1


def test_lightning_gets_a_callback_in_ranks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("lightning.pytorch", "pytorch_lightning")
    factories = [
        point.load()
        for name in names
        for point in entry_points(group=f"{name}.callbacks_factory")
        if point.name == "m5ws"
    ]
    assert [factory() for factory in factories] == [[], []]
    for name in names:
        trainer = ModuleType(f"{name}.trainer.trainer")
        trainer.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, trainer.__name__, trainer)
    monkeypatch.setattr(lightning_state, "_packages", list(names))
    for name, factory in zip(names, factories, strict=True):
        (callback,) = factory()
        assert isinstance(callback, sys.modules[f"{name}.trainer.trainer"].Callback)


@pytest.fixture
def without_lightning() -> Iterator[None]:
    """Forget Lightning's modules after the test."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("lightning", "lightning_fabric")]:
        del sys.modules[name]


_FABRIC = """
from abc import ABC
class CheckpointIO(ABC): ...
class TorchCheckpointIO(CheckpointIO):
    def save_checkpoint(self, checkpoint, path):
        path.write_text(str(checkpoint))
"""


@pytest.mark.parametrize("installed", [("lightning", "lightning_fabric"), ("lightning_fabric",), ("lightning",)])
def test_a_save_by_the_checkpoint_io_asks_for_a_copy_in_a_rank(
    installed: tuple[str, ...], without_lightning: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [{"lightning": "lightning.fabric"}.get(name, name) for name in installed]
    for name in names:
        folder = tmp_path.joinpath(*name.split("."), "plugins")
        folder.mkdir(parents=True)
        (folder / "io.py").write_text(_FABRIC)
    plugin = m5ws.lightning_checkpoint_io()
    assert all(isinstance(plugin, importlib.import_module(f"{name}.plugins.io").CheckpointIO) for name in names)
    plugin.save_checkpoint(1, tmp_path / "a.ckpt")
    asked, notices = list[str](), list[str]()
    active = SimpleNamespace(
        context=SimpleNamespace(work_dir=str(tmp_path), spec=LaunchSpec(command=("x.py",), outputs=("out",))),
        request_copy=lambda: asked.append((tmp_path / "out" / "b.ckpt").read_text()),
        notice=lambda _, message: notices.append(message),
    )
    monkeypatch.setattr(context, "active", lambda: active)
    monkeypatch.setattr(lightning_plugin, "_reported", [])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    plugin.save_checkpoint(2, Path("out", "b.ckpt"))
    for _ in range(2):
        plugin.save_checkpoint(3, tmp_path / "c.ckpt")
    assert len(notices) == 1 and "[run] outputs" in notices[0]
    assert (tmp_path / "a.ckpt").read_text() == "1" and asked == ["2"]


def test_a_checkpoint_that_the_trainer_did_not_complete_is_passed_over(tmp_path: Path) -> None:
    assert resume.find_complete_checkpoint(str(tmp_path)) is None
    for name, state in (("9", "{}"), ("10", "{}"), ("20", '{"global_step"'), ("30", None), ("best", "{}")):
        folder = tmp_path / f"checkpoint-{name}"
        folder.mkdir()
        (folder / "model.safetensors").touch()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    newest = resume.find_complete_checkpoint(str(tmp_path))
    assert newest is not None and newest.path == str(tmp_path / "checkpoint-10")


@pytest.mark.parametrize("has_generators", [False, True])
def test_a_checkpoint_of_the_weights_alone_is_reported(tmp_path: Path, has_generators: bool) -> None:
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    if has_generators:
        (folder / "rng_state_0.pth").touch()
    newest = resume.find_complete_checkpoint(str(tmp_path))
    assert newest is not None and (newest.lacks is None) == has_generators


def test_the_losses_of_a_trainer_are_those_of_its_steps(package: str, tmp_path: Path, monkeypatch: Any) -> None:
    """They are passed on before the backward pass, which makes the step with DeepSpeed."""
    (tmp_path / "a_framework" / "trainer.py").write_text(
        "class Trainer:\n    current_gradient_accumulation_steps = 4\n    args = None\n"
        "    def training_step(self, model, inputs):\n"
        "        self.accelerator.backward(inputs, scale=1)\n        return inputs\n"
    )
    module, heard = importlib.import_module(package), list[object]()
    trainer_loss._pass_on(module)

    class Accelerator:
        def backward(self, loss: torch.Tensor, scale: int) -> None:
            heard.append("backward")

    trainer = module.Trainer()
    trainer.args, trainer.accelerator = SimpleNamespace(gradient_accumulation_steps=8), Accelerator()
    assert trainer.training_step(None, torch.tensor(2.0)) == 2.0
    monkeypatch.setattr(context, "active", lambda: SimpleNamespace(loss_listeners=[heard.append]))
    assert trainer.training_step(None, torch.tensor(2.0)) == 2.0
    assert heard == ["backward", 8.0, "backward"] and "backward" not in vars(trainer.accelerator)
    own = functools.partial(Accelerator.backward, trainer.accelerator)
    trainer.accelerator.backward = own
    assert trainer.training_step(None, torch.tensor(2.0)) == 2.0 and trainer.accelerator.backward is own
    # A script may replace it within a step.
    new = functools.partial(Accelerator.backward, trainer.accelerator)
    monkeypatch.setattr(Accelerator, "backward", lambda self, *_, **__: setattr(self, "backward", new))
    del trainer.accelerator.backward
    trainer.training_step(None, torch.tensor(2.0))
    assert trainer.accelerator.backward is new


def test_a_training_of_lightning_restores_nothing_that_was_loaded_before_it(monkeypatch: Any) -> None:
    """Such as by a validation of another training's checkpoint, or by a training that failed as it began."""
    module = ModuleType("a_lightning_trainer")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = list[object]()

    class Trainer:
        def __init__(self) -> None:
            self.callbacks = lightning_state.callbacks("a_lightning")
            current, ready = SimpleNamespace(processed=0), SimpleNamespace(ready=0)
            batches = SimpleNamespace(current=ready, is_last_batch=False)
            progress = SimpleNamespace(current=current)
            loop = SimpleNamespace(batch_progress=batches)
            self.fit_loop = SimpleNamespace(_data_fetcher=None, epoch_progress=progress, epoch_loop=loop)

        def fit(self) -> None:
            found.extend(callback.restored for callback in self.callbacks)

    vars(module).update(Trainer=Trainer, Callback=object)
    lightning_state._watch_fit(module)
    trainer = module.Trainer()
    trainer.callbacks = [lightning_state._callback(module.__name__)]
    trainer.callbacks[0].restored = lightning_state._Saved({}, {}, 3)
    trainer.fit()
    assert found == [None]
