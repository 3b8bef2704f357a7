"""Settings of DeepSpeed that m5ws supports. Any other setting is refused, since no checkpoint may contain its state.

A setting is in the list if tests train with it, or if it changes logs, communication or memory alone. A setting that is
off is never refused. https://www.deepspeed.ai/docs/config-json/
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limit:
    """A setting with values that m5ws cannot restore. `reason` names them; `refused` returns True for such a value."""

    reason: str
    refused: Callable[[Any], bool]


Rule = Limit | Mapping[str, Any] | None
"""None: any value is supported. A mapping holds the rules of a section."""


def is_on(value: Any) -> bool:
    """Return True unless a value, or every value of a section, switches its feature off."""
    if isinstance(value, Mapping):
        return bool(value["enabled"]) if "enabled" in value else any(map(is_on, value.values()))
    return bool(value)


def _known(names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split())


_DEVICE = Limit("offload to NVMe", lambda value: str(getattr(value, "value", value)) == "nvme")
_OFFLOAD_OPTIMIZER = _known("nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init") | {
    "device": _DEVICE,
    "ratio": Limit("an offload ratio below 1", lambda value: value != 1),
    "super_offload": Limit("SuperOffload", is_on),
    # Read by SuperOffload alone.
    "cpuadam_cores_perc": None,
}
_OFFLOAD_PARAM = _known("nvme_path buffer_count buffer_size max_in_cpu pin_memory") | {"device": _DEVICE}
_STAGE_3 = (
    "prefetch_bucket_size param_persistence_threshold model_persistence_threshold max_live_parameters "
    "max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold "
    "use_all_reduce_for_fetch_params allgather_sequential"
)
_ZERO = _known(
    "stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce allgather_partitions "
    "allgather_bucket_size overlap_comm compute_grad_norm sub_group_size cpu_offload cpu_offload_param "
    "cpu_offload_use_pin_memory stage3_gather_fp16_weights_on_model_save ignore_unused_parameters "
    "round_robin_gradients zero_hpz_partition_size memory_efficient_linear pipeline_loading_checkpoint "
    "override_module_apply log_trace_cache_warnings enable_sanity_checks leaf_module parameter_alignment"
)
_ZERO |= _known(_STAGE_3) | {f"stage3_{name}": None for name in _STAGE_3.split()}
_ZERO |= {
    "offload_optimizer": _OFFLOAD_OPTIMIZER,
    "offload_param": _OFFLOAD_PARAM,
    "zenflow": Limit("ZenFlow", is_on),
    "elastic_checkpoint": Limit("elastic_checkpoint", is_on),
    "load_from_fp32_weights": Limit("load_from_fp32_weights = false", lambda value: not value),
}
_BF16 = _known(
    "enabled immediate_grad_update check_overflow check_grad_overflow bf16_master_weights_and_grads "
    "bf16_optimizer_states"
)
_FP16 = _known(
    "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis "
    "min_loss_scale fp16_master_weights_and_grads"
)
KNOWN: Mapping[str, Rule] = _known(
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping "
    "prescale_gradients gradient_predivide_factor gradient_allreduce_op communication_data_type "
    "seq_parallel_communication_data_type disable_allgather disable_python_gc dataloader_drop_last "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer optimizer scheduler activation_checkpointing "
    "torch_autocast aio vocabulary_size "
    # Refused by the number of data parallel ranks (`limits`).
    "sequence_parallel_size data_parallel_size tensor_parallel use_data_before_expert_parallelism "
    # Logs alone.
    "steps_per_print dump_state wall_clock_breakdown memory_breakdown log_level timers flops_profiler comms_logger "
    "monitor_config tensorboard wandb csv_monitor comet"
) | {
    "zero_optimization": _ZERO,
    "bf16": _BF16,
    "bfloat16": _BF16,
    "fp16": _FP16,
    "data_types": _known("grad_accum_dtype"),
    "checkpoint": _known("tag_validation use_node_local_storage parallel_write")
    | {"load_universal": Limit("universal checkpoints", is_on)},
    "managed_gradient_accumulation": Limit("managed_gradient_accumulation = false", lambda value: not value),
}


def limits(settings: Mapping[str, Any], rules: Mapping[str, Rule] = KNOWN) -> Iterator[str]:
    """Yield the reasons of a configuration's unsupported values."""
    for key, value in settings.items():
        if isinstance(rule := rules.get(key), Limit) and rule.refused(value):
            yield rule.reason
        elif isinstance(rule, Mapping) and isinstance(value, Mapping):
            yield from limits(value, rule)


def unknown(settings: Mapping[str, Any], rules: Mapping[str, Rule] = KNOWN, path: str = "") -> Iterator[str]:
    """Yield the path of each setting that is on and not in the list."""
    for key, value in settings.items():
        if key not in rules:
            if is_on(value):
                yield f"{path}{key}"
        elif isinstance(rule := rules[key], Mapping) and isinstance(value, Mapping):
            yield from unknown(value, rule, f"{path}{key}.")
