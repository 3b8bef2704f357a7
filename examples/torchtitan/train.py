"""torchtitan on two CPU processes with FSDP2, with the configuration in small_llama.py.

torchtitan is made for GPUs, where `-m torchtitan.train --module small_llama --config small_llama` is enough.
"""

import sys
from types import SimpleNamespace

import torch.distributed

torch._utils._get_available_device_type = lambda: "cpu"  # noqa: SLF001
# torchtitan calls these functions of a device, and torch.cpu has none of them.
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda _: "CPU"
torch.cpu.get_device_properties = lambda _: SimpleNamespace(total_memory=2**30)
torch.cpu.memory_stats = lambda _: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
# torchtitan 0.3 is made for a later torch, which has this function.
torch.distributed.set_timeout = lambda *_: None

from torchtitan.train import main  # noqa: E402

sys.argv += ["--module", "small_llama", "--config", "small_llama"]
main()
