"""Internals of ZeRO's checkpoint files: their names, and each stage's keys of its tensors.

https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/utils/zero_to_fp32.py
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from m5ws.training.compat.facts import Fact

MODEL_FILE = re.compile(r"(zero_pp_rank_(?P<rank>\d+)_)?mp_rank_00_model_states\.pt")
OPTIMIZER_FILE = re.compile(r"(bf16_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_00_optim_states\.pt")
RANK = re.compile(r"zero_pp_rank_\d+")
"""The part of a file's name that names its rank."""

OF_LAYOUT = (
    "base_optimizer_state",
    "ds_zero_partition_groups",
    "fp32_flat_groups",
    "group_paddings",
    "optimizer_state_dict",
    "param_alignment_paddings",
    "param_slice_mappings",
    "partition_count",
    "single_partition_of_fp32_groups",
    "zero_stage",
)
"""Keys of an optimizer's file that depend on the number of ranks."""
OF_RANK = ("frozen_param_fragments", "frozen_param_shapes", "param_shapes")
"""Keys of a model's file that differ from rank to rank."""


def masters_key(stage: int) -> str:
    """Return the key of the flat fp32 buffers in an optimizer's file."""
    return "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"


def base_key(stage: int) -> str:
    """Return the key of the base optimizer's state in an optimizer's file."""
    return "optimizer_state_dict" if stage == 3 else "base_optimizer_state"


def stage(state: Mapping[str, Any]) -> int:
    """Return the ZeRO stage of a file's `optimizer_state_dict`."""
    return 3 if masters_key(3) in state else 2


def facts(files: Mapping[str, Mapping[str, Any]]) -> Iterator[Fact]:
    """Yield the facts about the files, by name, that one rank's engine with ZeRO saves."""
    for name, state in files.items():
        if OPTIMIZER_FILE.fullmatch(name):
            optimizer = state.get("optimizer_state_dict", {})
            keys = frozenset({"zero_stage", masters_key(stage(optimizer)), base_key(stage(optimizer))})
            yield Fact("deepspeed", f"{sorted(keys)} in *_optim_states.pt", partial(keys.issubset, optimizer))
        elif MODEL_FILE.fullmatch(name):
            keys = frozenset({"buffer_names", "module", "param_shapes"})
            yield Fact("deepspeed", f"{sorted(keys)} in *_model_states.pt", partial(keys.issubset, state))
