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


def _more(stage: int, more: dict[str, Any], dtype: str = "bf16", **zero: Any) -> Callable[[int], Made]:
    """An engine with torch's AdamW, whose settings have more in them."""

    def made(seed: int) -> Made:
        settings = tiny.config(stage, dtype, offload=False, **zero)
        return _trainer(_engine(seed, {**settings, **more}, torch_adam=True))

    return made


class _Checkpointed(tiny.Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(deepspeed.checkpointing.checkpoint(self.first, x.to(self.scale.dtype).requires_grad_()))
        out: torch.Tensor = self.last(self.drop(self.frozen(hidden)) * self.scale)
        return out.float().square().mean()


def _checkpointed(seed: int) -> Made:
    deepspeed.checkpointing.configure(None, partition_activations=False, checkpoint_in_cpu=False)
    torch.manual_seed(seed)
    return _trainer(tiny.engine_of(tiny.config(2, "bf16", offload=False), _Checkpointed(), torch_adam=True))


def _pipeline(seed: int) -> Made:
    from deepspeed.pipe import LayerSpec, PipelineModule

    torch.manual_seed(seed)
    layers = [LayerSpec(torch.nn.Linear, 7, 7) for _ in range(4)]
    model = PipelineModule(layers=layers, num_stages=2, loss_fn=lambda out, y: (out - y).square().mean())
    settings = {**tiny.config(1, "bf16", offload=False), "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
    engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=settings)[0]
    return {"engine": engine, "loader": tiny.Loader(0)}, lambda _: {}


def _sequence(seed: int) -> Made:
    """Ulysses: the ranks are of one sequence."""
    torch.manual_seed(seed)
    more = {"sequence_parallel_size": 2, "data_parallel_size": 1, "train_batch_size": 4}
    settings = {**tiny.config(2, "bf16", offload=False), **more}
    model = tiny.Model()
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, mesh_param=(1, 2))[0]
    return _trainer(engine)


def _experts(seed: int) -> Made:
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    torch.manual_seed(seed)
    model = tiny.Model()
    model.experts = MoE(13, torch.nn.Linear(13, 13), num_experts=2, ep_size=2, k=1)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = split_params_into_different_moe_groups_for_optimizer({"params": trained, "name": "all"})
    settings = tiny.config(2, "bf16", offload=False)
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups), config=settings)[0]
    return _trainer(engine)


_ZENFLOW = {
    "topk_ratio": 0.1,
    "select_strategy": "step",
    "select_interval": 2,
    "update_interval": 2,
    "overlap_step": False,
    "steps_per_epoch": 10,
}
_BF16_STATES = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}


def _zenflow(seed: int) -> Made:
    """The engine makes its own optimizer."""
    torch.manual_seed(seed)
    on_cpu = {"device": "cpu", "pin_memory": False}
    settings = tiny.config(2, "bf16", offload=False, offload_optimizer=on_cpu, zenflow=_ZENFLOW)
    model = tiny.Model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    more = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}
    return _trainer(deepspeed.initialize(model=model, model_parameters=trained, config={**settings, **more})[0])


FEATURES: dict[str, Callable[[int], Made]] = {
    "zero1": _zero(1),
    "zero2": _zero(2),
    "zero2_fp32": _zero(2, "fp32"),
    "zero2_overlap": _zero(2, overlap_comm=True, contiguous_gradients=True, round_robin_gradients=True),
    "zero2_aligned": _zero(2, parameter_alignment=True),
    "zero3": _zero(3),
    "zero3_offloaded": _zero(3, offload_param={"device": "cpu", "pin_memory": False}),
    "zero3_shards": _zero(3, zero_hpz_partition_size=2),
    "zero3_torch": _more(3, {}),
    "zero2_accumulated": _accumulated,
    "zero3_delayed": _delayed,
    "zero0_fp32": _zero(0, "fp32"),
    "zero0_bf16": _zero(0),
    "zero2_elastic": _zero(2, elastic_checkpoint=True),
    "zero3_ratio": _ratio,
    "zero_optimizer": _as_plain,
    "zero_engine": _engine_as_model,
    "zero_cpu_adam": _cpu_adam_alone,
    "zero3_overlap": _zero(3, overlap_comm=True, contiguous_gradients=True),
    "zero3_bf16_states": _more(3, _BF16_STATES),
    "zero3_autocast": _more(3, {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "fp32"),
    "zero2_checkpointed": _checkpointed,
    "zero1_pipeline": _pipeline,
    "zero2_sequence": _sequence,
    "zero2_experts": _experts,
    "zero2_zenflow": _zenflow,
}
