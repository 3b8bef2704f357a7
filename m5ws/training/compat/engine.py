"""Internals of DeepSpeed's engine: its checkpoint engine, the names of its files, its settings, classes of its state.

https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/engine.py
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from m5ws.training.compat.facts import Fact

_LENT = {"commit", "create", "is_data_parallel_writer", "is_decoupled", "load", "makedirs", "preserves_storage_sharing"}
_NOT_CALLED = {"cleanup", "get_commit_info", "set_commit_info"}
"""Methods that only the engine's end or a decoupled checkpoint engine calls."""


@contextmanager
def checkpoint_engine(engine: Any, lent: Any) -> Iterator[None]:
    """Let an engine save and load through `lent` inside the block."""
    own = engine.checkpoint_engine
    engine.checkpoint_engine = lent
    try:
        yield
    finally:
        engine.checkpoint_engine = own


def file_names(engine: Any, tag: str) -> list[str]:
    """Return the files that this rank's engine reads: the model's, then with ZeRO the optimizer's."""
    paths = [engine._get_ckpt_name("", tag)]
    if engine.zero_optimization():
        paths.append(engine._get_zero_ckpt_name("", tag))
    return [os.path.basename(path) for path in paths]


def settings(engine: Any) -> dict[str, Any]:
    """Return the configuration that the script passed to `deepspeed.initialize`, as a dictionary."""
    configuration: dict[str, Any] = engine._config._param_dict
    return configuration


def state_classes() -> dict[str, type]:
    """Return the classes of the objects that DeepSpeed's state dictionaries hold, by name."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.utils.tensor_fragment import fragment_address

    return {kind.__name__: kind for kind in (LossScaler, DynamicLossScaler, fragment_address)}


def with_sorted_names(saved: dict[str, Any]) -> dict[str, Any]:
    """Return saved state with the names of sparse gradients in order.

    DeepSpeed before 0.19.8 saves these names as a set, and only looks names up in the loaded set.
    """
    names = saved.get("sparse_tensor_module_names")
    return {**saved, "sparse_tensor_module_names": sorted(names)} if isinstance(names, set) else saved


def stage_class() -> Any:
    """Return the enumeration of the ZeRO stage in DeepSpeed's state dictionaries."""
    from deepspeed.runtime.zero.config import ZeroStageEnum

    return ZeroStageEnum


def _has_no_new_methods() -> bool:
    """Return True if DeepSpeed has added no method that m5ws's checkpoint engine lacks."""
    from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

    return {name for name in vars(CheckpointEngine) if not name.startswith("_")} == _LENT | _NOT_CALLED | {"save"}


def facts(engine: Any) -> tuple[Fact, ...]:
    """Return the facts about an engine of any ZeRO stage."""
    return (
        Fact("deepspeed", "DeepSpeedEngine.checkpoint_engine", lambda: hasattr(engine, "checkpoint_engine")),
        Fact("deepspeed", "the methods of CheckpointEngine", _has_no_new_methods),
        Fact("deepspeed", "DeepSpeedEngine._get_ckpt_name and _get_zero_ckpt_name", lambda: file_names(engine, "tag")),
        Fact("deepspeed", "DeepSpeedConfig._param_dict", lambda: isinstance(settings(engine), Mapping)),
        Fact("deepspeed", "LossScaler, DynamicLossScaler, fragment_address", state_classes),
        Fact("deepspeed", "ZeroStageEnum", lambda: [int(stage) for stage in stage_class()] == [0, 1, 2, 3]),
        Fact("deepspeed", "DeepSpeedEngine.micro_steps and global_steps", lambda: _counts(engine)),
    )


def _counts(engine: Any) -> bool:
    return type(engine.micro_steps) is int and type(engine.global_steps) is int
