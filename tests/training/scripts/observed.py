"""Trainings that know nothing of m5ws. Called as: observed.py KIND STEPS [ARGUMENT…]."""

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

KINDS: dict[str, Callable[[int], None]] = {}
FILE = Path("out/checkpoint.pt")


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


def adamw(model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, **options)


def train(called: Callable[..., Any], *optimizers: torch.optim.Optimizer, data: Any) -> None:
    """Train with a module, or with a function, which returns a loss or a dictionary with one."""
    for x, target in data:
        returned = called(x, target)
        (returned["loss"] if isinstance(returned, dict) else returned).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def mse(model: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, target: functional.mse_loss(model(x), target)


def save(model: torch.nn.Module, **others: Any) -> None:
    FILE.parent.mkdir(exist_ok=True)
    torch.save({"model": model.state_dict(), **others}, FILE)


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
    """A loss module made for each call, and gradients of two batches in a step."""
    model = WithLoss()
    optimizer = sgd(model)
    for number, (x, target) in enumerate(batches(2 * steps)):
        torch.nn.MSELoss()(model(x)["logits"], target).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


@kind
def keywords(steps: int) -> None:
    """Arguments by name, and a dictionary with the loss, as in Hugging Face's models."""
    model = WithLoss()
    train(lambda x, target: model(x=x, target=target), adamw(model), data=batches(steps))


@kind
def settings(steps: int) -> None:
    """Settings of the optimizer that are objects, with addresses in their texts."""
    model = WithLoss()
    optimizer = sgd(model)
    optimizer.param_groups[0] |= {"hook": object(), "nested": [object(), 1.0], "rate": torch.tensor(1.0)}
    train(model, optimizer, data=batches(steps))


@kind
def closure(steps: int) -> None:
    """The forward pass is inside of the optimizer's step, as in Lightning."""
    model = WithLoss()
    optimizer = adamw(model)
    for x, target in batches(steps):

        def compute(x: torch.Tensor = x, target: torch.Tensor = target) -> float:
            optimizer.zero_grad()
            loss = model(x, target)["loss"]
            loss.backward()
            return float(loss)

        optimizer.step(compute)


@kind
def two(steps: int) -> None:
    """Two optimizers of one model, which step one after another."""
    model = WithLoss()
    train(model, sgd(model.first), torch.optim.AdamW(model.last.parameters()), data=batches(steps))


class Incomparable:
    """A part that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __hash__(self) -> int:
        return 1


class Peculiar(Incomparable, WithLoss):
    pass


class PeculiarSGD(Incomparable, torch.optim.SGD):
    pass


@kind
def peculiar(steps: int) -> None:
    """Modules and optimizers that cannot be compared."""
    models = [Peculiar(), Peculiar()]
    optimizer, unused = (PeculiarSGD(model.parameters(), lr=1e-2) for model in models)
    unused.zero_grad()
    train(models[0], optimizer, data=batches(steps))


@kind
def in_threads(steps: int) -> None:
    """Another training in another thread at the same time."""
    thread = threading.Thread(target=keywords, args=(50,))
    thread.start()
    keywords(steps)
    thread.join()


class Timed(WithLoss):
    def forward(self, *args: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {**super().forward(*args), "seconds": torch.tensor(time.time()), "at": time.time()}  # type: ignore[dict-item]


@kind
def evaluated(steps: int) -> None:
    """Evaluations without gradients after each step, as many as its argument, and outputs with a time."""
    model, other = Timed(), torch.nn.Linear(6, 2)
    optimizer = adamw(model)
    for x, target in batches(steps):
        train(model.train(), optimizer, data=[(x, target)])
        model.eval()
        with torch.no_grad():
            for _ in range(int(argument(3, "0"))):
                model(x)
                other(x)


@kind
def reset(steps: int) -> None:
    """The state of its optimizer is reset after each second step."""
    model = WithLoss()
    optimizer = adamw(model)
    for number, batch in enumerate(batches(steps)):
        if number % 2 == 0:
            optimizer.state.clear()
        train(model, optimizer, data=[batch])


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
def stopped_in_values(steps: int) -> None:
    """A signal ends the script while the values of step 3 are read."""
    from m5ws.training.observation import optimizer_values

    read, calls = optimizer_values.gradient_norm, itertools.count(1)

    def gradient_norm(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
        if next(calls) == 3:
            signal.raise_signal(signal.SIGTERM)
        return read(optimizer)

    optimizer_values.gradient_norm = gradient_norm
    keywords(steps)


@kind
def in_evaluation(steps: int) -> None:
    """A model in the mode of evaluation after its first step, and a teacher in that mode, with gradients."""
    model, teacher = WithLoss(), WithLoss().eval()
    optimizer = adamw(model)
    for x, _ in batches(steps):
        functional.mse_loss(model(x)["logits"], teacher(x)["logits"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()


@kind
def nested(steps: int) -> None:
    """Nested tensors, which have no strides."""
    model = torch.nn.Linear(6, 3)

    def compute(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return model(torch.nested.nested_tensor([x[:2], x[2:], x])).to_padded_tensor(0.0).sum()  # type: ignore[no-any-return]

    train(compute, sgd(model), data=batches(steps))


@kind
def adversaries(steps: int) -> None:
    """A generator and a discriminator, each with its optimizer, in turn."""
    generator, discriminator = Model(), torch.nn.Linear(3, 1)
    one, two = (torch.optim.AdamW(model.parameters()) for model in (discriminator, generator))
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
    skip_second_update(model, sgd(model), steps)


@kind
def fused_scaler(steps: int) -> None:
    """A fused optimizer, which is called in the skipped update too. Its first parameter is frozen."""
    model = WithLoss()
    next(model.parameters()).requires_grad_(False)
    skip_second_update(model, adamw(model, fused=True), steps)


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
    model = WithLoss()
    optimizer = adamw(model)
    with Counted():
        train(model, optimizer, data=batches(steps))
    save(model)


@kind
def compiled(steps: int) -> None:
    """A compiled model, by a wrapper or in place."""
    model = WithLoss()
    is_wrapped = argument(3, "wrapper") == "wrapper"
    called = torch.compile(model, backend="eager") if is_wrapped else model
    if not is_wrapped:
        model.compile(backend="eager")
    train(called, adamw(model), data=batches(steps))


@kind
def compiled_function(steps: int) -> None:
    """A compiled function that calls the model, in one graph."""
    model = WithLoss()
    compute = torch.compile(lambda x, target: model(x, target)["loss"], backend="eager", fullgraph=True)
    train(compute, adamw(model), data=batches(steps))


@kind
def compiled_step(steps: int) -> None:
    """A compiled function with the whole step."""
    model = WithLoss()
    optimizer = adamw(model)

    @torch.compile(backend="eager")
    def do_step(x: torch.Tensor, target: torch.Tensor) -> None:
        model(x, target)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    for x, target in batches(steps):
        do_step(x, target)
    save(model)


@kind
def traced(steps: int) -> None:
    """Calls of the model whose tensors have no values: torch.func, a trace, fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = Model()

    def compute(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        torch.func.vmap(torch.func.jacrev(model.last))(torch.ones(2, 10))
        torch.jit.trace(model.last, torch.ones(2, 10))
        with FakeTensorMode():
            torch.nn.Linear(2, 2)(torch.ones(1, 2))
        return mse(model)(x, target)

    train(compute, adamw(model), data=batches(steps))


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
    train(lambda x, _: model(x).sum(), data=batches(steps))


@kind
def freed(steps: int) -> None:
    """Batches in the memory of earlier outputs of the model, which is free again, unless they are kept."""
    kept = []
    model = torch.nn.Linear(6, 6)
    optimizer = sgd(model)
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
    train(mse(model), adamw(model), data=batches(steps))


@kind
def raw(steps: int) -> None:
    """No module at all."""
    weight = torch.randn(6, 3, requires_grad=True)
    train(mse(lambda x: x @ weight), torch.optim.SGD([weight], lr=1e-2), data=batches(steps))


@kind
def resuming(steps: int) -> None:
    """It goes on from its own checkpoint. Once it dies after step 5: when it makes the file of its argument."""
    model = WithLoss()
    optimizer = adamw(model)
    begin = 1
    if FILE.exists():
        stored = torch.load(FILE)
        begin = stored["step"] + 1
        model.load_state_dict(stored["model"])
        if argument(4, "") != "inexact":
            optimizer.load_state_dict(stored["optimizer"])
    shift = 100 * (begin > 1 and argument(4, "") == "shuffled")
    for step, (x, target) in enumerate(batches(steps + shift, begin + shift), begin):
        train(model, optimizer, data=[(x, target)])
        if step % 3 == 0:
            save(model, step=step, optimizer=optimizer.state_dict())
        died = Path(argument(3, "/"))
        if step == 5 and not died.exists():
            died.touch()
            sys.exit(3)


@kind
def late_line(steps: int) -> None:
    """It states its place after its first step."""
    import m5ws

    keywords(steps)
    m5ws.resumed_at(0)


@kind
def copied(steps: int) -> None:
    """It waits until the store, its argument, has its steps, and then for a copy of its output files."""
    runs = Path(sys.argv[3]) / "runs"

    def wait_for(files: str, text: bytes = b"") -> None:
        for _ in range(3000):
            if any(text in file.read_bytes() for file in runs.glob(files)):
                return
            time.sleep(0.01)
        sys.exit(3)

    wait_for("*/ledger/*/0/*", b"rank-started")
    keywords(steps)
    wait_for("*/ledger/*/0/*", b"\xa4type\xa4step")
    Path("out/checkpoint.txt").write_text(str(steps))
    wait_for("*/outputs/*")


@kind
def distributed(steps: int) -> None:
    """Two ranks: ddp or fsdp, by the argument."""
    dist.init_process_group("gloo")
    model: torch.nn.Module = WithLoss()
    if argument(3, "ddp") == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    train(lambda x, target: model(x + dist.get_rank(), target), adamw(model), data=batches(steps))
    # Without destroy_process_group: in torch 2.13 it can wait for ever for a group that DDP still has.


@kind
def with_workers(steps: int) -> None:
    """Workers of a loader, which are forks of the rank."""
    model = WithLoss()
    data = [(x[0], target[0]) for x, target in batches(4 * steps)]
    train(model, adamw(model), data=torch.utils.data.DataLoader(data, batch_size=4, num_workers=1))


class Container(torch.optim.Optimizer):
    """An optimizer that calls another optimizer, and has no state of its own, as in DeepSpeed and Accelerate."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.inner.step()


@kind
def restored(steps: int) -> None:
    """An optimizer in a container. torch.distributed.checkpoint may have created its state."""
    model = WithLoss()
    optimizer = sgd(model, momentum=0.9)
    if argument(3, "fresh") == "created":
        get_optimizer_state_dict(model, optimizer)
        optimizer.param_groups[0] = dict(reversed(optimizer.param_groups[0].items()))
    train(model, Container(optimizer), data=batches(steps))


if __name__ == "__main__":
    torch.manual_seed(int(os.environ.get("SEED", "1")))
    KINDS[sys.argv[1]](int(sys.argv[2]))
