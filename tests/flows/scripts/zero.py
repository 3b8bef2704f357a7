"""DeepSpeed ZeRO training of the small model, with the optimizer offloaded to CPU."""

import time

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.ops.adam import DeepSpeedCPUAdam
from small import Loader, Small, config, tokens

import m5ws

settings = config()
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
rank = dist.get_rank()
seed = m5ws.seed(7)
data = tokens()
model = Small(int(data.max()) + 1, settings["hidden"], settings["dropout"])
optimizer = DeepSpeedCPUAdam(model.parameters(), lr=settings["learning_rate"], weight_decay=0.1)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=optimizer,
    lr_scheduler=lambda inner: torch.optim.lr_scheduler.LambdaLR(inner, lambda step: 1.0 / (1 + step / 10)),
    config={
        "train_micro_batch_size_per_gpu": settings["batch"],
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": settings["stage"],
            "offload_optimizer": {"device": "cpu", "pin_memory": False},
            "overlap_comm": False,
            "stage3_param_persistence_threshold": 100,
        },
    },
)
loader = Loader(data, settings["batch"], seed * 100 + rank)
torch.manual_seed(seed * 100 + rank)

session = m5ws.session(engine=engine, loader=loader, total_steps=settings["steps"])
for step in session.steps():
    x, y = step.next_batch()
    loss = engine(x, y)
    engine.backward(loss)
    engine.step()
    step.record(loss=loss, grad_norm=engine.get_global_grad_norm(), lr=engine.get_lr()[0], tokens=x.numel())
    time.sleep(settings["pause_s"])
dist.destroy_process_group()
