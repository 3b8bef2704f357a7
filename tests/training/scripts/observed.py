"""Trainings that know nothing of m5ws. Called as: observed.py KIND STEPS [ARGUMENT…]."""

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

KINDS: dict[str, Callable[[int], None]] = {}


def kind(train: Callable[[int], None]) -> Callable[[int], None]:
    KINDS[train.__name__] = train
    return train


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 10)
        self.norm = torch.nn.BatchNorm1d(10)
        self.last = torch.nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))  # type: ignore[no-any-return]


class WithLoss(Model):
    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> dict[str, torch.Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        return (
            {"loss": (logits - target).square().mean(), "logits": logits} if target is not None else {"logits": logits}
        )


def batches(steps: int, begin: int = 1) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for step in range(begin, steps + 1):
        generator = torch.Generator().manual_seed(step)
        yield torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator)


def argument(number: int, default: str) -> str:
    return sys.argv[number] if len(sys.argv) > number else default


@kind
def plain(steps: int) -> None:
    """A loss of torch.nn.functional; the learning rate is an argument."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(argument(3, "1e-2")))
    for x, target in batches(steps):
        optimizer.zero_grad()
        functional.mse_loss(model(x), target).backward()
        optimizer.step()


@kind
def module_loss(steps: int) -> None:
    """A loss module made for each call, gradients of two batches in a step, and an evaluation after each step."""
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for number, (x, target) in enumerate(batches(2 * steps)):
        torch.nn.MSELoss()(model(x)["logits"], target).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()


@kind
def keywords(steps: int) -> None:
    """Arguments by name, and a dictionary with the loss, as in Hugging Face's models."""
    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, target in batches(steps):
        model(x=x, target=target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def settings(steps: int) -> None:
    """Settings of the optimizer that are objects, with addresses in their texts."""
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    optimizer.param_groups[0] |= {"hook": object(), "nested": [object(), 1.0], "rate": torch.tensor(1.0)}
    for x, target in batches(steps):
        model(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def closure(steps: int) -> None:
    """The forward pass is inside of the optimizer's step, as in Lightning."""
    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, target in batches(steps):

        def compute(x: torch.Tensor = x, target: torch.Tensor = target) -> float:
            optimizer.zero_grad()
            loss = model(x, target)["loss"]
            loss.backward()
            return float(loss)

        optimizer.step(compute)


@kind
def two(steps: int) -> None:
    """Two optimizers of one model, which step one after the other."""
    model = WithLoss()
    optimizers = [torch.optim.SGD(model.first.parameters(), lr=1e-2), torch.optim.AdamW(model.last.parameters())]
    for x, target in batches(steps):
        model(x, target)["loss"].backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@kind
def wrapped(steps: int) -> None:
    """An optimizer that calls another one, as in DeepSpeed and Accelerate."""
    model = WithLoss()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)

    class Outer(torch.optim.Optimizer):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            inner.step()

    optimizer = Outer(model.parameters(), {})
    for x, target in batches(steps):
        model(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


class Peculiar(WithLoss):
    """A module that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __hash__(self) -> int:
        return 1


@kind
def peculiar(steps: int) -> None:
    """Modules and optimizers that cannot be compared."""

    class Other(torch.optim.SGD):
        def __eq__(self, other: object) -> bool:
            raise ValueError

        def __hash__(self) -> int:
            return 1

    models = [Peculiar(), Peculiar()]
    optimizer, unused = (Other(model.parameters(), lr=1e-2) for model in models)
    unused.zero_grad()
    for x, target in batches(steps):
        models[0](x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def in_threads(steps: int) -> None:
    """Another training in another thread at the same time."""
    import threading

    thread = threading.Thread(target=keywords, args=(50,))
    thread.start()
    keywords(steps)
    thread.join()


@kind
def evaluated(steps: int) -> None:
    """Evaluations after each step, as many as its argument, and outputs with a time."""
    import time

    class Timed(WithLoss):
        def forward(self, *args: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            return {**super().forward(*args), "seconds": torch.tensor(time.time()), "at": time.time()}  # type: ignore[dict-item]

    model, other = Timed(), torch.nn.Linear(6, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, target in batches(steps):
        model(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for _ in range(int(argument(3, "0"))):
                model(x)
                other(x)
        for _ in range(int(argument(3, "0"))):
            # With gradients, in the mode of evaluation.
            torch.nn.MSELoss()(model(x)["logits"], target)
        model.train()


@kind
def reset(steps: int) -> None:
    """The state of its optimizer is reset after each second step."""
    model = WithLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for number, (x, target) in enumerate(batches(steps)):
        if number % 2 == 0:
            optimizer.state.clear()
        model(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def stopped(steps: int) -> None:
    """It gets SIGTERM while its event with the number of the argument is recorded."""
    from m5ws.repository.ledger.spool import SpoolWriter

    append, left = SpoolWriter.append, [int(argument(3, "0"))]

    def stop(self: SpoolWriter, event: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return append(self, event)

    SpoolWriter.append = stop  # type: ignore[method-assign, assignment]
    keywords(steps)


@kind
def distilled(steps: int) -> None:
    """A loss of the outputs of a trained model and of one in the mode of evaluation, with gradients."""
    model, teacher, loss = WithLoss(), WithLoss(), torch.nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, _ in batches(steps):
        teacher.train()
        teacher(x)
        teacher.eval()
        loss(model(x)["logits"], teacher(x)["logits"]).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def left_in_evaluation(steps: int) -> None:
    """A wrapper that stays in the mode of evaluation after the first step, and a model that is trained on."""
    model = WithLoss()
    wrapper = torch.nn.Sequential(model)
    optimizer = torch.optim.AdamW(wrapper.parameters(), lr=1e-2)
    for x, target in batches(steps):
        torch.nn.MSELoss()(wrapper(x)["logits"], target).backward()
        optimizer.step()
        optimizer.zero_grad()
        wrapper.eval()
        model.train()


@kind
def killed(steps: int) -> None:
    """Its last rank is killed once at a moment of a step: after its backward pass, its update or its checkpoint.

    Arguments: the checkpoint's file, the moment, the step, the optimizers, and a word: "forgets" restores the model
    alone, "line" states the place.
    """
    rank, ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    file, moment, at = Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    model = WithLoss()
    parts = [model] if sys.argv[6] != "both" else [model.first, model.last]
    momentum = {"momentum": 0.9} if sys.argv[6] == "momentum" else {}
    kinds = [torch.optim.SGD if sys.argv[6] != "adamw" else torch.optim.AdamW, torch.optim.AdamW]
    trained = [kind(part.parameters(), lr=1e-2, **momentum) for part, kind in zip(parts, kinds, strict=False)]
    called = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    begin, died = 0, file.with_name("died")
    if file.exists():
        stored = torch.load(file)
        begin = stored["step"]
        model.load_state_dict(stored["model"])
        for optimizer, state in zip(trained, stored["optimizers"], strict=True) if argument(7, "") != "forgets" else ():
            optimizer.load_state_dict(state)
    if argument(7, "") == "line":
        import m5ws

        m5ws.resumed_at(begin)

    def die(now: str) -> None:
        if (now, step, rank + 1) == (moment, at, ranks) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    for step, (x, target) in enumerate(batches(steps, begin + 1), begin + 1):
        called(x + rank, target)["loss"].backward()
        die("backward")
        for optimizer in trained:
            optimizer.step()
            optimizer.zero_grad()
        die("update")
        states = [optimizer.state_dict() for optimizer in trained]
        if rank == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizers": states}, file)
        if ranks > 1:
            torch.distributed.barrier()
        die("save")


@kind
def nested(steps: int) -> None:
    """Nested tensors, which have no strides."""
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, _ in batches(steps):
        model(torch.nested.nested_tensor([x[:2], x[2:], x])).to_padded_tensor(0.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def adversaries(steps: int) -> None:
    """A generator and a discriminator, each with its optimizer, in turn."""
    generator, discriminator = Model(), torch.nn.Linear(3, 1)
    one = torch.optim.AdamW(discriminator.parameters())
    two = torch.optim.AdamW(generator.parameters())
    for x, target in batches(steps):
        made = generator(x)
        (discriminator(made.detach()).mean() - discriminator(target).mean()).backward()
        one.step()
        one.zero_grad()
        discriminator(made).mean().neg().backward()
        two.step()
        two.zero_grad()
        one.zero_grad()


def skip_second_update(model: WithLoss, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Train with a gradient scaler that skips the second update."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number, (x, target) in enumerate(batches(steps), 1):
        loss = model(x, target)["loss"] * (float("inf") if number == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@kind
def scaler(steps: int) -> None:
    """An optimizer that is not called in the skipped update."""
    model = WithLoss()
    skip_second_update(model, torch.optim.SGD(model.parameters(), lr=1e-2), steps)


class Counted(TorchDispatchMode):  # type: ignore[misc]
    """Changes the result of each seventh operation."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        result = function(*args, **(kwargs or {}))
        is_changed = isinstance(result, torch.Tensor) and result.is_floating_point() and self.count % 7 == 0
        return result * 1.25 if is_changed else result


@kind
def counted(steps: int) -> None:
    """A mode that changes results."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Counted():
        for x, target in batches(steps):
            functional.mse_loss(model(x), target).backward()
            optimizer.step()
    Path("out").mkdir(exist_ok=True)
    torch.save(model.state_dict(), "out/checkpoint.pt")


@kind
def stopped_in_values(steps: int) -> None:
    """A signal ends the script while the values of step 3 are read."""
    from m5ws.training.observation import optimizer_values

    read, calls = optimizer_values.gradient_norm, itertools.count(1)

    def gradient_norm(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
        if next(calls) == 3:
            signal.raise_signal(signal.SIGTERM)
        return read(optimizer)

    optimizer_values.gradient_norm = gradient_norm
    plain(steps)


@kind
def fused_scaler(steps: int) -> None:
    """A fused optimizer, which is called in the skipped update too. Its first parameter is frozen."""
    model = WithLoss()
    next(model.parameters()).requires_grad_(False)
    skip_second_update(model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), steps)


@kind
def compiled(steps: int) -> None:
    """A compiled model, by a wrapper or in place."""
    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if argument(3, "wrapper") == "wrapper":
        called = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
        called = model
    for x, target in batches(steps):
        called(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def compiled_function(steps: int) -> None:
    """A compiled function that calls the model, in one graph."""
    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    @torch.compile(backend="eager", fullgraph=True)
    def compute(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return model(x, target)["loss"]  # type: ignore[no-any-return]

    for x, target in batches(steps):
        compute(x, target).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def compiled_step(steps: int) -> None:
    """A compiled function with the whole step."""
    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    @torch.compile(backend="eager")
    def do_step(x: torch.Tensor, target: torch.Tensor) -> None:
        model(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    for x, target in batches(steps):
        do_step(x, target)
    os.makedirs("out", exist_ok=True)
    torch.save(model.state_dict(), "out/checkpoint.pt")


@kind
def traced(steps: int) -> None:
    """Calls of the model whose tensors have no values: torch.func, a trace, fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, target in batches(steps):
        torch.func.vmap(torch.func.jacrev(model.last))(torch.ones(2, 10))
        torch.jit.trace(model.last, torch.ones(2, 10))
        with FakeTensorMode():
            torch.nn.Linear(2, 2)(torch.ones(1, 2))
        functional.mse_loss(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def in_backward(steps: int) -> None:
    """An optimizer for each parameter, called in the backward pass."""
    parameters = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(3)) for _ in range(20)])
    model = torch.nn.Module()
    model.parameters_of_its_own = parameters
    model.forward = lambda x: x * torch.stack(list(parameters)).sum()  # type: ignore[method-assign]
    optimizers = {parameter: torch.optim.AdamW([parameter]) for parameter in parameters}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(update)
    for x, _ in batches(steps):
        model(x).sum().backward()


@kind
def freed(steps: int) -> None:
    """Batches in the memory of earlier outputs of the model, which is free again, unless they are kept."""
    kept = []
    model = torch.nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, _ in batches(steps):
        for _ in range(8):
            output = model(x * 1.0)
            output.sum().backward()
            if argument(3, "") == "kept":
                kept.append(output)
            del output
        optimizer.step()
        optimizer.zero_grad()


@kind
def recomputed(steps: int) -> None:
    """Activation checkpointing, which calls modules again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    class Recomputing(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.first, x, use_reentrant=False))  # type: ignore[no-any-return]

    model = Recomputing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, target in batches(steps):
        functional.mse_loss(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def raw(steps: int) -> None:
    """No module at all."""
    weight = torch.randn(6, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-2)
    for x, target in batches(steps):
        functional.mse_loss(x @ weight, target).backward()
        optimizer.step()
        optimizer.zero_grad()


@kind
def resuming(steps: int) -> None:
    """It goes on from its own checkpoint. Once it dies after step 5: when it makes the file of its argument."""
    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    file, begin = Path("out/checkpoint.pt"), 1
    if file.exists():
        stored = torch.load(file)
        begin = stored["step"] + 1
        model.load_state_dict(stored["model"])
        if argument(4, "") != "inexact":
            optimizer.load_state_dict(stored["optimizer"])
    shift = 100 * (begin > 1 and argument(4, "") == "shuffled")
    for step, (x, target) in enumerate(batches(steps + shift, begin + shift), begin):
        model(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            file.parent.mkdir(exist_ok=True)
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        died = Path(argument(3, "/"))
        if step == 5 and not died.exists():
            died.touch()
            sys.exit(3)


@kind
def repeated(steps: int) -> None:
    """It states its place. Once it is killed two steps after a checkpoint. "forgets" restores the model alone."""
    import m5ws

    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    file, died = Path("checkpoint.pt"), Path(sys.argv[3])
    stored: dict[str, Any] = torch.load(died) if died.exists() else {"step": 0}
    if stored["step"]:
        model.load_state_dict(stored["model"])
        if argument(4, "") != "forgets":
            optimizer.load_state_dict(stored["optimizer"])
    m5ws.resumed_at(stored["step"])
    for step, (x, target) in enumerate(batches(steps, stored["step"] + 1), stored["step"] + 1):
        model(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        if step == 5 and not died.exists():
            died.write_bytes(file.read_bytes())
            os.kill(os.getpid(), signal.SIGKILL)


@kind
def late_line(steps: int) -> None:
    """It states its place after its first step."""
    import m5ws

    keywords(steps)
    m5ws.resumed_at(0)


@kind
def copied(steps: int) -> None:
    """It waits until the store, its argument, has its steps, and then for a copy of its output files."""
    import time

    runs = Path(sys.argv[3]) / "runs"

    def wait_for(more: int, files: str) -> None:
        for _ in range(3000):
            if len([*runs.glob(files)]) >= more:
                return
            time.sleep(0.01)
        sys.exit(3)

    wait_for(1, "*/ledger/*/0/*")
    keywords(steps)
    wait_for(2, "*/ledger/*/0/*")
    Path("out/checkpoint.txt").write_text(str(steps))
    wait_for(1, "*/outputs/*")


@kind
def distributed(steps: int) -> None:
    """Two ranks: ddp or fsdp, by the argument."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model: torch.nn.Module = WithLoss()
    if argument(3, "ddp") == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, target in batches(steps):
        model(x + dist.get_rank(), target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    # Without destroy_process_group: in torch 2.13 it can wait for ever for a group that DDP still has.


@kind
def with_workers(steps: int) -> None:
    """Workers of a loader, which are forks of the rank."""
    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = [(x[0], target[0]) for x, target in batches(4 * steps)]
    for x, target in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
        model(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


class Container(torch.optim.Optimizer):
    """An optimizer that calls another one, and has no state of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.inner.step()


@kind
def restored(steps: int) -> None:
    """An optimizer in a container. torch.distributed.checkpoint may have created its state."""
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    if argument(3, "fresh") == "created":
        get_optimizer_state_dict(model, optimizer)
        optimizer.param_groups[0] = dict(reversed(optimizer.param_groups[0].items()))
    container = Container(optimizer)
    for x, target in batches(steps):
        model(x, target)["loss"].backward()
        container.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.manual_seed(int(os.environ.get("SEED", "1")))
    KINDS[sys.argv[1]](int(sys.argv[2]))
