"""A training under `ft_launcher` of which one rank hangs at a step: `heartbeats.py KIND RANK`.

Each rank sends a heartbeat after each step, as NVIDIA's example does. The hanging rank prints the time at which it
stops.
"""

import sys
import time
from datetime import timedelta

import nvidia_resiliency_ext.fault_tolerance as ft
import torch
import torch.distributed as dist

from tests.flows.scripts.hangs import STEP, Numbers, hang

_STEPS = STEP + 3


def main() -> None:
    kind, culprit = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, other = dist.get_rank(), dist.new_group()
    client = ft.RankMonitorClient()
    client.init_workload_monitoring()
    model = torch.nn.Linear(4, 1)
    workers = 1 if kind == "worker" and rank == culprit else 0
    loader = iter(torch.utils.data.DataLoader(Numbers(), num_workers=workers))
    for step in range(_STEPS):
        if step == STEP and rank == culprit:
            print(f"STOPS {time.time()}", flush=True)
            hang(kind, other)
        model(next(loader)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        client.send_heartbeat()
        time.sleep(0.2)
    client.shutdown_workload_monitoring()


if __name__ == "__main__":
    main()
