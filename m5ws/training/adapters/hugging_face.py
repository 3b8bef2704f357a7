"""Hugging Face's Trainer: `trainer.train(resume_from_checkpoint=m5ws.adapters.transformers(trainer))`.

The Trainer continues by its own documented way, from a folder with its `trainer_state.json` of the checkpoint:
counters, states of callbacks, and the batches to leave out. Weights, optimizer, schedule and generators are the
session's.
https://huggingface.co/docs/transformers/main_classes/trainer
"""

import dataclasses
import importlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from m5ws.training.adapters.training import Training, Unsupported, refuse
from m5ws.training.runtime import collectives, context
from m5ws.training.runtime.context import ActiveRank

_STATE, _WEIGHTS = "trainer_state.json", "pytorch_model.bin"
"""Files of the Trainer's checkpoints."""


def transformers(trainer: Any) -> str | None:
    """Record the training of a Trainer, and return the folder from which it resumes: None for a first attempt.

    Raises Unsupported for a Trainer that a resume would not continue exactly.
    """
    active = context.active()
    if active is None:
        return None
    args = trainer.args
    refuse(
        "the Trainer",
        {
            "DeepSpeed inside the Trainer": trainer.is_deepspeed_enabled,
            "FSDP inside the Trainer": trainer.is_fsdp_enabled,
            "ignore_data_skip=True, with which a resume begins the epoch again": args.ignore_data_skip,
            "auto_find_batch_size=True, which begins the training again": args.auto_find_batch_size,
            "a search for hyperparameters, which trains many times": getattr(trainer, "hp_search_backend", None),
            "nn.DataParallel: start one process for each GPU": args.n_gpu > 1,
            "an IterableDataset, which has no position": isinstance(trainer.train_dataset, IterableDataset),
        },
    )
    bases = (_Callback, importlib.import_module("transformers").TrainerCallback)
    callback = type("M5wsCallback", bases, {})(active, trainer)
    trainer.add_callback(callback)
    trainer.training_step = callback.training_step
    folder: str | None = callback.write_folder()
    return folder


class _Callback:
    """The events of a Trainer."""

    def __init__(self, active: ActiveRank, trainer: Any) -> None:
        self._trainer = trainer
        self._folder = Path(active.context.spool_dir) / "trainer"
        self._training_step = trainer.training_step
        self._is_first = True
        self._training = Training(active, lambda: {"trainer": self._counters()})

    def write_folder(self) -> str | None:
        """Write the folder from which the Trainer resumes, and return its path; collective.

        It has the weights of the script, which the session replaces by the checkpoint's weights.
        """
        position = self._training.position
        if position is None:
            return None
        state, args = json.loads(position["counters"]["trainer"]), self._trainer.args
        best = state["best_model_checkpoint"]
        if args.load_best_model_at_end and best is not None and not Path(best).is_dir():
            raise Unsupported(
                f"load_best_model_at_end=True needs {best}, which an earlier attempt saved and this attempt lacks",
                hint="Save to a folder that all attempts share, or load the best checkpoint in a script of its own.",
            )
        group = collectives.new_group()
        if collectives.rank(group) == 0:
            self._folder.mkdir()
            torch.save(self._trainer.model.state_dict(), self._folder / _WEIGHTS)
            if self._training.is_complete:
                # Otherwise the Trainer would do one step more, if its last step is in mid-epoch.
                state["global_step"] = math.ceil(state["global_step"] * math.ceil(state["epoch"]) / state["epoch"])
            (self._folder / _STATE).write_text(json.dumps(state))
        collectives.gather(None, group)
        return str(self._folder)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, scaler = self._trainer, getattr(self._trainer.accelerator, "scaler", None)
        is_over = self._training.begin(
            trainer.model_wrapped,
            getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler),
            state.max_steps,
            [kwargs["train_dataloader"]],
            {"scaler": scaler} if scaler is not None else None,
        )
        if (position := self._training.position) is not None:
            # All ranks have read the folder: the session's restore is collective.
            shutil.rmtree(self._folder, ignore_errors=True)
            if is_over:
                state.global_step = json.loads(position["counters"]["trainer"])["global_step"]

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.begin_epoch()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_first = True

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on a batch: `Trainer.training_step`, which returns its part of the step's loss."""
        self._training.refuse_draws()
        self._training.read(inputs, is_first=self._is_first)
        self._is_first = False
        loss: torch.Tensor = self._training_step(model, inputs, *args, **kwargs)
        self._training.add_loss(loss)
        return loss

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not (control.should_log or control.should_evaluate or control.should_save):
            self._training.before_read()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.enter_phase("evaluation")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.enter_phase("step")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "train_runtime" in (logs or ()):
            # The Trainer loads its best checkpoint after this, if the script wants it.
            self._training.finish()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.finish()

    def _counters(self) -> str:
        """Return the state of the Trainer as the text of its file, without its log, which has times."""
        exportable = importlib.import_module("transformers.trainer_callback").ExportableState
        self._trainer.store_flos()
        items = [*self._trainer.callback_handler.callbacks, self._trainer.control]
        exported = [item for item in items if isinstance(item, exportable)]
        state = dataclasses.replace(self._trainer.state, stateful_callbacks=exported, log_history=[])
        return json.dumps(dataclasses.asdict(state), sort_keys=True)
