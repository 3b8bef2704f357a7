"""torchtitan 0.2 on two CPU processes with FSDP2: the configuration is in config.toml, the model in small_llama.py.

torchtitan is made for GPUs, where `-m torchtitan.train --job.config_file config.toml` is enough.
"""

import sys
from types import SimpleNamespace

import torch

torch._utils._get_available_device_type = lambda: "cpu"  # noqa: SLF001
# torchtitan calls these functions of a device, and torch.cpu has none of them.
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda _: "CPU"
torch.cpu.get_device_properties = lambda _: SimpleNamespace(total_memory=2**30)
torch.cpu.memory_stats = lambda _: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None

# torchtitan reads the arguments when it is imported.
sys.argv += ["--job.config_file", "config.toml"]
from torchtitan.train import Trainer, main  # noqa: E402

main(Trainer)
