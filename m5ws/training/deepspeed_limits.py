"""Which DeepSpeed engines m5ws can save and restore exactly, asked before the first step and not after hours."""

from typing import Any

import torch

from m5ws.training.plain import StateError


def refuse_unsupported(engine: Any, base: Any) -> None:
    """Raise StateError for what has state that neither DeepSpeed's checkpoints nor ours hold."""
    optimizer, parameters = engine.optimizer, engine.module.parameters()
    ranks = torch.distributed.get_world_size()
    zero = engine.zero_optimization()
    reasons = {
        "no optimizer": optimizer is None,
        "tensor, pipeline or expert parallel ranks": engine.dp_world_size != ranks,
        "parameters cut over some of the ranks (MiCS)": any(
            getattr(parameter, "ds_zero_partition_world_size", ranks) != ranks for parameter in parameters
        ),
        "mixture-of-experts layers": engine.has_moe_layers,
        "offload to NVMe": engine.zero_nvme_offload_optimizer() or _parameters_on_nvme(engine),
        "ZenFlow": bool(engine.zenflow),
        "SuperOffload": engine.super_offload(),
        "an offload ratio below 1": getattr(optimizer, "partial_offload", 1.0) != 1.0,
        "bf16 or fp16 without ZeRO": not zero and base is not optimizer,
        "elastic_checkpoint": zero and engine.zero_elastic_checkpoint(),
        "load_from_fp32_weights = false": zero and not engine.zero_load_from_fp32_weights(),
        "universal checkpoints": engine.load_universal_checkpoint(),
    }
    if found := [name for name, present in reasons.items() if present]:
        raise StateError(
            f"m5ws cannot save and restore this DeepSpeed engine exactly: it uses {', '.join(found)}",
            hint="ZeRO stages 1 to 3 are supported, with or without offload of optimizer and parameters to the CPU.",
        )


def _parameters_on_nvme(engine: Any) -> bool:
    config = engine.zero_offload_param()
    return config is not None and str(getattr(config.device, "value", config.device)) == "nvme"
