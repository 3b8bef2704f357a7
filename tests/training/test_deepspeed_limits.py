"""The allow list of DeepSpeed's settings: supported settings pass, unknown settings are named, no field is missing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m5ws.training.backends.deepspeed.features import KNOWN, is_on, limits, unknown

NOT_KNOWN = {
    "zero_optimization": {
        "legacy_stage1",
        "save_muon_momentum_buffer_in_memory",
        "zero_quantized_gradients",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_weights",
    }
}
"""Features of DeepSpeed that no test trains with."""
REMOVED = {"mics_hierarchical_params_gather", "mics_shard_size", "zeropp_loco_param"}
"""More such features, which later versions than 0.19.0 lack."""


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"levitation": {"enabled": True}}, ["levitation"]),
        ({"levitation": True, "zero_optimization": {"stage": 2, "warp": 9}}, ["levitation", "zero_optimization.warp"]),
        ({"zero_optimization": {"offload_param": {"device": "cpu", "to": 1}}}, ["zero_optimization.offload_param.to"]),
        ({"levitation": {"enabled": False, "height": 3}, "warp": False, "nothing": None}, []),
        ({"compile": {"deepcompile": False}}, []),
        ({"bf16": {"enabled": True}, "gradient_clipping": 1.0, "zero_optimization": {"stage": 3}}, []),
    ],
    ids=["section", "within-a-section", "deep", "off", "section-off", "known"],
)
def test_a_setting_that_is_on_and_not_known_is_named(settings: dict[str, Any], named: list[str]) -> None:
    assert list(unknown(settings)) == named


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "offload to NVMe"),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "offload to NVMe"),
        ({"zero_optimization": {"offload_optimizer": {"super_offload": True}}}, "SuperOffload"),
        ({"zero_optimization": {"load_from_fp32_weights": False}}, "load_from_fp32_weights = false"),
        ({"checkpoint": {"load_universal": True}}, "universal checkpoints"),
        ({"managed_gradient_accumulation": False}, "managed_gradient_accumulation = false"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_values_of_a_known_setting_are_refused(settings: dict[str, Any], reason: str) -> None:
    assert list(limits(settings)) == [reason] and not list(unknown(settings))


def test_settings_that_are_off_meet_no_limit() -> None:
    zero: dict[str, Any] = {"elastic_checkpoint": False, "zenflow": None, "load_from_fp32_weights": True}
    zero |= {"offload_optimizer": {"device": "cpu", "ratio": 1.0, "super_offload": False}}
    assert not list(limits({"zero_optimization": zero, "checkpoint": {"load_universal": False}}))
    assert not is_on({"enabled": False, "more": 1}) and is_on({"more": 1})


def test_the_template_uses_only_known_settings() -> None:
    # As in the template's call of `deepspeed.initialize`.
    source = (Path(__file__).parents[2] / "templates" / "gpt-deepspeed" / "train.py").read_text()
    names = {line.split('"')[1] for line in source.splitlines() if line.startswith('        "')}
    assert {"bf16", "zero_optimization"} <= names <= KNOWN.keys()


def fields() -> Iterator[tuple[str, set[str], Any]]:
    """Yield DeepSpeed's sections with the names of their fields, as scripts write them."""
    precision_config: Any = pytest.importorskip(
        "deepspeed.runtime.precision_config", reason="DeepSpeed before 0.17.3 has no classes of bf16 and fp16"
    )
    from deepspeed.runtime.zero import config, offload_config

    sections = {
        "zero_optimization": config.DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
        "bf16": precision_config.DeepSpeedBF16Config,
        "fp16": precision_config.DeepSpeedFP16Config,
    }
    for path, model in sections.items():
        rules: Any = KNOWN
        for part in path.split("."):
            rules = rules[part]
        yield path, {field.alias or name for name, field in model.model_fields.items()}, rules


def test_every_field_of_the_installed_deepspeed_is_known_or_listed_as_unknown() -> None:
    for path, names, rules in fields():
        assert names - rules.keys() - REMOVED == NOT_KNOWN.get(path, set()), path
