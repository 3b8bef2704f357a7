"""`accelerate launch`: its options, its config file, and the variables that it sets in the environment of each rank.

The rules are those of accelerate 1.15 (`commands/launch.py` and `utils/launch.py`), for one machine. Options come
before the values of the config file, and each setting reaches the script as a variable.
https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-launch
"""

import warnings
from collections.abc import Callable, Mapping

from m5ws.config import flatten
from m5ws.config.commands.options import Kind, refusal, table
from m5ws.errors import UsageError
from m5ws.records.run import Trainer

Arguments = Mapping[str, object]

_MACHINES = "m5ws runs on one machine: leave the option out, and start fewer processes."
_LEAVE_OUT = "Leave the option out."
_TPU = "m5ws does not train on TPUs."
_THREADS = "Leave the option out, and set [determinism] threads in m5ws.toml."


def _truth(text: str) -> int:
    """Return 1 or 0, as accelerate's own `str_to_bool`."""
    if text.lower() in ("y", "yes", "t", "true", "on", "1"):
        return 1
    if text.lower() in ("n", "no", "f", "false", "off", "0"):
        return 0
    raise ValueError(text)


_FSDP: dict[str, tuple[Kind, object]] = {
    "fsdp_version": (str, "1"),
    "fsdp_sharding_strategy": (str, "FULL_SHARD"),
    "fsdp_reshard_after_forward": (str, "true"),
    "fsdp_offload_params": (str, "false"),
    "fsdp_min_num_params": (int, 10**8),
    "fsdp_auto_wrap_policy": (str, None),
    "fsdp_transformer_layer_cls_to_wrap": (str, None),
    "fsdp_backward_prefetch": (str, None),
    "fsdp_state_dict_type": (str, None),
    "fsdp_forward_prefetch": (str, "false"),
    "fsdp_use_orig_params": (str, "true"),
    "fsdp_cpu_ram_efficient_loading": (str, "true"),
    "fsdp_sync_module_states": (str, "true"),
    "fsdp_activation_checkpointing": (str, "false"),
    "fsdp_activation_checkpointing_offload": (str, "false"),
}
_DEEPSPEED: dict[str, tuple[Kind, object]] = {
    "zero_stage": (int, None),
    "gradient_accumulation_steps": (int, None),
    "gradient_clipping": (float, None),
    "offload_optimizer_device": (str, None),
    "offload_param_device": (str, None),
    "zero3_init_flag": (str, None),
    "zero3_save_16bit_model": (str, None),
    "deepspeed_config_file": (str, None),
    "deepspeed_moe_layer_cls_names": (str, None),
}
_DYNAMO: dict[str, tuple[Kind, object]] = {"dynamo_backend": (str, "no"), "dynamo_mode": (str, "default")}
_DYNAMO_FLAGS = ("dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation")
_FP8: dict[str, tuple[Kind, object]] = {
    "fp8_backend": (str, None),
    "fp8_margin": (int, 0),
    "fp8_interval": (int, 1),
    "fp8_format": (str, "HYBRID"),
    "fp8_amax_history_len": (int, 1024),
    "fp8_amax_compute_algo": (str, "most_recent"),
    "fp8_override_linear_precision": (lambda text: tuple(map(_truth, text.split(","))), (False, False, False)),
    "fp8_opt_level": (str, "O2"),
    "fp8_enable_fsdp_float8_all_gather": (_truth, 1),
    "fp8_pad_inner_dim": (_truth, 1),
}
_PARALLELISM: dict[str, tuple[Kind, object]] = {
    "parallelism_config_dp_replicate_size": (int, 1),
    "parallelism_config_dp_shard_size": (int, 1),
    "parallelism_config_tp_size": (int, 1),
    "parallelism_config_cp_size": (int, 1),
    "parallelism_config_cp_backend": (str, "torch"),
    "parallelism_config_cp_comm_strategy": (str, "allgather"),
    "parallelism_config_sp_size": (int, 1),
    "parallelism_config_sp_backend": (str, "deepspeed"),
    "parallelism_config_sp_seq_length": (str, None),
    "parallelism_config_sp_seq_length_is_variable": (bool, True),
    "parallelism_config_sp_attn_implementation": (str, "sdpa"),
}
_TYPED = _FSDP | _DEEPSPEED | _DYNAMO | _FP8 | _PARALLELISM
_PARADIGMS = ("multi_gpu", "use_deepspeed", "use_fsdp")
OPTIONS = table(
    flags=(
        *("module", "cpu", "debug", "enable_cpu_affinity", "use_parallelism_config", "fp8_use_autocast_during_eval"),
        *_PARADIGMS,
        *_DYNAMO_FLAGS,
    ),
    values={
        **{name: kind for name, (kind, _) in _TYPED.items()},
        "config_file": str,
        "mixed_precision": str,
        "num_processes": int,
        "num_machines": int,
        "gpu_ids": str,
    },
    ignored_flags=("quiet", "same_network"),
    ignored_values=(
        *(
            "machine_rank",
            "main_process_ip",
            "main_process_port",
            "tee",
            "log_dir",
            "role",
            "rdzv_backend",
            "rdzv_conf",
        ),
        *("monitor_interval", "offload_optimizer_nvme_path", "offload_param_nvme_path"),
    ),
    refused_flags={
        "no_python": "m5ws runs Python scripts: name the script, or its module with -m.",
        "use_megatron_lm": "m5ws does not train with Megatron-LM: use FSDP or DeepSpeed.",
        **dict.fromkeys(("tpu", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo", "downcast_bf16"), _TPU),
    },
    refused_values={
        "num_cpu_threads_per_process": _THREADS,
        "max_restarts": "Leave the option out: `m5ws run --resume RUN` continues a run that failed.",
        "mpirun_hostfile": _MACHINES,
        **dict.fromkeys(("vm", "env", "main_training_function"), _TPU),
        **dict.fromkeys(("deepspeed_hostfile", "deepspeed_multinode_launcher"), _MACHINES),
        **dict.fromkeys(
            ("deepspeed_inclusion_filter", "deepspeed_exclusion_filter"),
            "Leave the option out, and set CUDA_VISIBLE_DEVICES in the shell.",
        ),
        **dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), _LEAVE_OUT),
    },
)

_SECTIONS = ("deepspeed_config", "fsdp_config", "fp8_config", "dynamo_config", "parallelism_config")
_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
_IGNORED_KEYS = (
    *("compute_environment", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "same_network"),
    *("main_training_function", "downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo"),
    *("command_file", "commands", "tpu_vm", "tpu_env"),
)
_KEYS = (
    *_IGNORED_KEYS,
    *_SECTIONS,
    *("distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes", "num_machines", "gpu_ids"),
    *("enable_cpu_affinity", "fp16", "dynamo_backend", "megatron_lm_config", "mpirun_config"),
)
_SEVERAL_DEVICES = ("MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU")
_TYPES = ("NO", "MULTI_CPU", "DEEPSPEED", "FSDP", *_SEVERAL_DEVICES)
_PRECISIONS = ("no", "fp8", "fp16", "bf16")


def arguments(given: Mapping[str, object], read: Callable[[str], bytes]) -> Arguments:
    """Return all settings of a launch: given options, else the config file's values, else accelerate's defaults.

    Raises UsageError for several machines, for unknown keys and values, and if the snapshot lacks a file.
    """
    defaults: dict[str, object] = {name: value for name, (_, value) in _TYPED.items()}
    path = given.get("config_file")
    config = _read_config(str(path), read) if path is not None else {}
    merged = defaults | _from_config(config, given) | dict(given)
    merged["ds_fields"] = ",".join(_ds_fields(config, given)) if path is not None else ""
    if int(str(merged.get("num_machines") or 1)) > 1:
        raise refusal("accelerate", f"--num_machines {merged['num_machines']}", _MACHINES)
    chosen = [name for name in ("cpu", *_PARADIGMS) if given.get(name)]
    if len(chosen) > 1:
        names = " and ".join(f"--{name}" for name in chosen)
        raise UsageError(f"accelerate: {names} exclude each other", hint="Give one of them.")
    _check(merged)
    if merged["deepspeed_config_file"] is not None:
        read(str(merged["deepspeed_config_file"]))
    return merged


def trainer(given: Arguments) -> Trainer:
    """Return the trainer of m5ws: torchrun for several processes, as accelerate itself."""
    if given.get("use_deepspeed") and not given.get("cpu"):
        return "deepspeed"
    return "python" if not _is_distributed(given) and processes(given) == 1 else "torchrun"


def processes(given: Arguments) -> int | None:
    """Return the number of processes; None if accelerate would count the machine's devices."""
    count = given.get("num_processes")
    if count is None or count == -1:
        return None
    if not isinstance(count, int) or count < 1:
        raise UsageError(
            f"accelerate: num_processes is not a number of processes: {count!r}",
            hint="Give a whole number of at least 1.",
        )
    return count


def environment(given: Arguments) -> dict[str, str]:
    """Return the variables that accelerate sets in each rank, without those of threads, addresses and ports."""
    variables = {"ACCELERATE_MIXED_PRECISION": str(given["mixed_precision"])}
    if given.get("debug"):
        variables["ACCELERATE_DEBUG_MODE"] = "true"
    if given.get("enable_cpu_affinity"):
        variables["ACCELERATE_CPU_AFFINITY"] = "1"
    if given.get("gpu_ids") not in (None, "all"):
        variables["CUDA_VISIBLE_DEVICES"] = str(given["gpu_ids"])
    if given["mixed_precision"] == "fp8":
        variables |= _fp8(given)
    if given.get("use_deepspeed") and not given.get("cpu"):
        variables |= _deepspeed(given)
    else:
        variables |= _dynamo(given)
        variables |= _fsdp(given) if given.get("use_fsdp") and not given.get("cpu") else {}
        variables |= {} if _is_distributed(given) else _simple(given)
    return variables | (_parallelism(given) if given.get("use_parallelism_config") else {})


def _is_distributed(given: Arguments) -> bool:
    """Return True if accelerate starts torchrun, also for one process."""
    return any(given.get(name) for name in _PARADIGMS) and not given.get("cpu")


def _read_config(path: str, read: Callable[[str], bytes]) -> dict[str, object]:
    """Return the keys of a config file, which accelerate reads as JSON or as YAML 1.1."""
    try:
        with warnings.catch_warnings():
            # ruamel.yaml warns of numbers that YAML 1.1 and 1.2 read differently.
            warnings.simplefilter("ignore")
            config = flatten.parse(path if path.endswith(".json") else "config.yaml", read(path), yaml="1.1")
    except ValueError as error:
        raise UsageError(f"accelerate: {path} is not a valid config file: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"accelerate: {path} is not a valid config file: it has no keys")
    where = f"accelerate: {path}"
    if config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise UsageError(f"{where}: compute_environment is {config['compute_environment']}, and not this machine")
    unknown = [str(key) for key in config if key not in _KEYS]
    if unknown:
        raise UsageError(f"{where} has unknown keys: {', '.join(unknown)}", hint="Remove them, or correct them.")
    kind = config.get("distributed_type")
    if kind not in _TYPES:
        raise UsageError(f"{where}: distributed_type {kind!r} is not supported", hint=f"One of {', '.join(_TYPES)}.")
    for name in ("megatron_lm_config", "mpirun_config"):
        if config.get(name):
            raise UsageError(f"{where}: {name} cannot be taken over", hint="Remove the key.")
    return config


def _from_config(config: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Return a config file's values by the names of options."""
    if not config:
        return {}
    arguments: dict[str, object] = {}
    # Not `enable_cpu_affinity`: accelerate 1.15 takes it from the command line alone.
    for name in ("num_processes", "num_machines", "gpu_ids", "use_cpu", "debug"):
        if config.get(name) is not None:
            arguments[name] = config[name]
    kind = config["distributed_type"]
    if kind == "NO":
        arguments.setdefault("num_processes", 1)
    if not any(given.get(name) for name in _PARADIGMS):
        arguments["use_deepspeed"], arguments["use_fsdp"] = kind == "DEEPSPEED", kind == "FSDP"
        arguments["multi_gpu"] = kind in _SEVERAL_DEVICES
        arguments["use_parallelism_config"] = bool(config.get("parallelism_config"))
    arguments["mixed_precision"] = config.get("mixed_precision") or ("fp16" if config.get("fp16") else "no")
    if config.get("dynamo_backend") not in (None, "NO"):
        arguments["dynamo_backend"] = config["dynamo_backend"]
    for section in _SECTIONS:
        keys = config.get(section)
        for key, value in keys.items() if isinstance(keys, dict) else ():
            prefix = _PREFIXES.get(section, "")
            arguments[key if key.startswith(prefix) else prefix + key] = value
    return arguments


def _ds_fields(config: Mapping[str, object], given: Mapping[str, object]) -> list[str]:
    """Return the names of the settings that came from the config file, of which DeepSpeed's own file may differ."""
    keys = config.get("deepspeed_config")
    names = [str(key) for key in keys] if isinstance(keys, dict) else []
    is_from_config = not given.get("mixed_precision") and (config.get("mixed_precision") or config.get("fp16"))
    return [*names, *(["mixed_precision"] if is_from_config else [])]


def _check(merged: dict[str, object]) -> None:
    """Normalise the precision. Raises UsageError for a value that accelerate would refuse."""
    precision = str(merged.get("mixed_precision") or "no").lower()
    if precision not in _PRECISIONS:
        raise UsageError(
            f"accelerate: mixed_precision {precision!r} is unknown", hint=f"One of {', '.join(_PRECISIONS)}."
        )
    merged["mixed_precision"] = precision
    for name in ("deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter"):
        if merged.get(name):
            raise refusal("accelerate", name, "Remove the key from the config file.")
    if merged.get("use_parallelism_config") and not (merged.get("use_fsdp") and str(merged["fsdp_version"]) == "2"):
        raise UsageError("accelerate: --use_parallelism_config needs --use_fsdp and --fsdp_version 2")


# --- variables, by kind of training -------------------------------------------------------------------------------


def _simple(given: Arguments) -> dict[str, str]:
    on_cpu = bool(given.get("cpu") or given.get("use_cpu"))
    affinity = {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"} if on_cpu else {}
    return {"ACCELERATE_USE_CPU": str(on_cpu)} | affinity


def _dynamo(given: Arguments) -> dict[str, str]:
    flags = {f"ACCELERATE_{name.upper()}": str(given.get(name, False)) for name in _DYNAMO_FLAGS}
    return {
        "ACCELERATE_DYNAMO_BACKEND": str(given["dynamo_backend"]).upper(),
        "ACCELERATE_DYNAMO_MODE": str(given["dynamo_mode"]),
        **flags,
    }


def _fsdp(given: Arguments) -> dict[str, str]:
    variables = {"ACCELERATE_USE_FSDP": "true"}
    as_written = ("fsdp_version", "fsdp_sharding_strategy", "fsdp_min_num_params")
    for name in (*_FSDP, "fsdp_ignored_modules"):
        value = given.get(name)
        variable = "FSDP_TRANSFORMER_CLS_TO_WRAP" if name == "fsdp_transformer_layer_cls_to_wrap" else name.upper()
        if value is None:
            continue
        is_written = name in as_written or _FSDP.get(name, (str, None))[1] is None
        variables[variable] = str(value) if is_written else str(value).lower()
    return variables


def _deepspeed(given: Arguments) -> dict[str, str]:
    variables = {
        # accelerate adds the current directory, which is the snapshot's.
        "PYTHONPATH": ".",
        "ACCELERATE_CONFIG_DS_FIELDS": str(given["ds_fields"]).lower(),
        "ACCELERATE_USE_DEEPSPEED": "true",
    }
    names = {
        "zero_stage": "DEEPSPEED_ZERO_STAGE",
        "gradient_accumulation_steps": "GRADIENT_ACCUMULATION_STEPS",
        "gradient_clipping": "GRADIENT_CLIPPING",
        "offload_optimizer_device": "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        "offload_param_device": "DEEPSPEED_OFFLOAD_PARAM_DEVICE",
        "zero3_init_flag": "DEEPSPEED_ZERO3_INIT",
        "zero3_save_16bit_model": "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
        "deepspeed_config_file": "DEEPSPEED_CONFIG_FILE",
        "deepspeed_moe_layer_cls_names": "DEEPSPEED_MOE_LAYER_CLS_NAMES",
    }
    for name, variable in names.items():
        if given[name] is not None:
            is_name = name in ("deepspeed_config_file", "deepspeed_moe_layer_cls_names")
            variables[f"ACCELERATE_{variable}"] = str(given[name]) if is_name else str(given[name]).lower()
    return variables


def _fp8(given: Arguments) -> dict[str, str]:
    names = [*_FP8, "fp8_use_autocast_during_eval"]
    values = {name: given.get(name, False) for name in names}
    precision = values.pop("fp8_override_linear_precision")
    assert isinstance(precision, tuple | list)
    return {
        "ACCELERATE_FP8_OVERRIDE_FPROP": str(precision[0]),
        "ACCELERATE_FP8_OVERRIDE_DGRAD": str(precision[1]),
        **{f"ACCELERATE_{name.upper()}": str(value) for name, value in values.items() if value is not None},
    }


def _parallelism(given: Arguments) -> dict[str, str]:
    context = ("parallelism_config_cp_comm_strategy",)
    sequence = tuple(name for name in _PARALLELISM if "_sp_" in name and name[-4:] not in ("size", "kend"))
    left_out = (
        *(context if given["parallelism_config_cp_size"] == 1 else ()),
        *(sequence if given["parallelism_config_sp_size"] == 1 else ()),
    )
    values = {name.upper(): str(given[name]) for name in _PARALLELISM if name not in left_out}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"} | values
