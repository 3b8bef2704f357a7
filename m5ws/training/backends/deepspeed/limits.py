"""Checks that m5ws can save and restore a DeepSpeed engine exactly; any other engine is refused when the session
begins.

Invariant: an engine passes only if its class, its optimizer's class and every setting that is on are supported.
"""

from collections.abc import Iterator
from typing import Any

import torch

from m5ws.training.backends.deepspeed import features
from m5ws.training.compat import engine as internals
from m5ws.training.compat import zero
from m5ws.training.state.plain_state import StateError

_ENGINES = {"DeepSpeedEngine"}
_ZERO_OPTIMIZERS = {"BF16_Optimizer", "DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"}
_BASE_OPTIMIZERS = {
    "DeepSpeedCPUAdagrad",
    "DeepSpeedCPUAdam",
    "DeepSpeedCPULion",
    "FusedAdam",
    "FusedLamb",
    "FusedLion",
}
"""DeepSpeed's own; any torch optimizer is supported, since all of its state is in `state`."""


def refuse_unsupported(engine: Any, base: Any) -> None:
    """Raise StateError for a feature whose state no checkpoint contains, or that m5ws does not know."""
    settings = internals.settings(engine)
    if limits := [*features.limits(settings), *_limits(engine, base)]:
        raise StateError(
            f"m5ws cannot save and restore this DeepSpeed engine exactly: it uses {', '.join(dict.fromkeys(limits))}",
            hint="ZeRO stages 1 to 3 are supported, with or without offload of optimizer and parameters to the CPU.",
        )
    if unknown := [*features.unknown(settings), *_unknown_classes(engine, base)]:
        raise StateError(
            f"m5ws may not restore this DeepSpeed engine exactly: it uses the unknown {', '.join(unknown)}",
            hint="Switch the feature off, or train without a session. To request support, open an issue of m5ws "
            "with these names and the versions of torch and DeepSpeed.",
        )


def _limits(engine: Any, base: Any) -> Iterator[str]:
    ranks = torch.distributed.get_world_size()
    if engine.optimizer is None:
        yield "no optimizer"
    if engine.dp_world_size != ranks:
        yield "tensor, pipeline or expert parallel ranks"
    if any(zero.part_ranks(parameter, ranks) != ranks for parameter in engine.module.parameters()):
        yield "parameters cut over some of the ranks (MiCS)"
    if engine.has_moe_layers:
        yield "mixture-of-experts layers"
    if not engine.zero_optimization() and base is not engine.optimizer:
        yield "bf16 or fp16 without ZeRO"


def _unknown_classes(engine: Any, base: Any) -> Iterator[str]:
    """Yield classes of DeepSpeed that m5ws does not know; the script's own optimizers are torch's."""
    if type(engine).__name__ not in _ENGINES:
        yield f"the engine {type(engine).__name__}"
    if engine.zero_optimization() and type(engine.optimizer).__name__ not in _ZERO_OPTIMIZERS:
        yield f"the ZeRO optimizer {type(engine.optimizer).__name__}"
    if type(base).__module__.startswith("deepspeed.") and type(base).__name__ not in _BASE_OPTIMIZERS:
        yield f"the optimizer {type(base).__name__}"
