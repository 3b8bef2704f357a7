"""DeepSpeed engines with one feature each, as in features.py."""

from collections.abc import Callable
from typing import Any

import deepspeed
import deepspeed_tiny as tiny
import torch
import torch.distributed as dist
from deepspeed.ops.adam import DeepSpeedCPUAdam

Made = tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]


def _trainer(engine: Any) -> Made:
    def step(current: Any) -> dict[str, Any]:
        return tiny.train_step(engine, current.next_batch())

    return {"engine": engine, "loader": tiny.Loader(dist.get_rank())}, step


def _engine(seed: int, settings: dict[str, Any], **more: Any) -> Any:
    torch.manual_seed(seed)
    return tiny.engine_of(settings, tiny.Model(), **more)


def _zero(stage: int, dtype: str = "bf16", **zero: Any) -> Callable[[int], Made]:
    return lambda seed: _trainer(_engine(seed, tiny.config(stage, dtype, **zero)))


def _torch_adam(stage: int) -> Callable[[int], Made]:
    return lambda seed: _trainer(_engine(seed, tiny.config(stage, "bf16", offload=False), torch_adam=True))


def _as_plain(seed: int) -> Made:
    """An engine's model and optimizer, given without their engine."""
    engine = _engine(seed, tiny.config(2, "bf16"))
    parts, step = _trainer(engine)
    del parts["engine"]
    return {**parts, "model": engine.module, "optimizer": engine.optimizer}, step


def _engine_as_model(seed: int) -> Made:
    engine = _engine(seed, tiny.config(2, "bf16"))
    parts, step = _trainer(engine)
    del parts["engine"]
    return {**parts, "model": engine}, step


def _cpu_adam_alone(seed: int) -> Made:
    torch.manual_seed(seed)
    model = tiny.Model()
    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=1e-2)
    return {"model": model, "optimizer": optimizer, "loader": tiny.Loader(dist.get_rank())}, lambda _: {}


def _accumulated(seed: int) -> Made:
    settings = {**tiny.config(2, "bf16"), "gradient_accumulation_steps": 3}
    engine = _engine(seed, settings)

    def step(current: Any) -> dict[str, Any]:
        found = {}
        for _ in range(3):
            found = tiny.train_step(engine, current.next_batch())
        return found

    return {"engine": engine, "loader": tiny.Loader(dist.get_rank())}, step


def _delayed(seed: int) -> Made:
    settings = tiny.config(3, "bf16")
    torch.manual_seed(seed)
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = tiny.Model()
    return _trainer(tiny.engine_of(settings, model))


def _ratio(seed: int) -> Made:
    settings = tiny.config(3, "bf16")
    settings["zero_optimization"]["offload_optimizer"]["ratio"] = 0.5
    return _trainer(_engine(seed, settings))


FEATURES: dict[str, Callable[[int], Made]] = {
    "zero1": _zero(1),
    "zero2": _zero(2),
    "zero2_fp32": _zero(2, "fp32"),
    "zero2_overlap": _zero(2, overlap_comm=True, contiguous_gradients=True, round_robin_gradients=True),
    "zero3": _zero(3),
    "zero3_offloaded": _zero(3, offload_param={"device": "cpu", "pin_memory": False}),
    "zero3_shards": _zero(3, zero_hpz_partition_size=2),
    "zero1_torch": _torch_adam(1),
    "zero3_torch": _torch_adam(3),
    "zero2_accumulated": _accumulated,
    "zero3_delayed": _delayed,
    "zero0_fp32": _zero(0, "fp32"),
    "zero0_bf16": _zero(0),
    "zero2_elastic": _zero(2, elastic_checkpoint=True),
    "zero3_ratio": _ratio,
    "zero_optimizer": _as_plain,
    "zero_engine": _engine_as_model,
    "zero_cpu_adam": _cpu_adam_alone,
}
