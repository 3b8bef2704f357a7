"""Every kind of tensor and state that a training may hold resumes with its bits, or is refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import m5ws
from m5ws.repository import contents, tensors
from m5ws.repository.objects import Objects
from m5ws.repository.repository import Repository
from m5ws.training.backends import torch_backend
from m5ws.training.backends.base import NoCopyStager, Piece
from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.checkpoint.writer import HostBuffers
from m5ws.training.fingerprint import fingerprint
from m5ws.training.state import tensor_bytes
from m5ws.training.state.plain_state import RestoreError, StateError
from tests.support.records import kinds, tensor_states


class Kinds(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        for number, (name, tensor) in enumerate(kinds.buffers().items()):
            self.register_buffer(f"kind_{name}", tensor, persistent=bool(number % 2))


def bits(backend: TorchBackend) -> dict[str, str]:
    return fingerprint.fingerprints(backend.tensors(), None).values


def load(target: TorchBackend, objects: Objects, saved: Any) -> None:
    content = tensor_states.alone(saved, objects)
    target.load(objects, content, contents.Parts(objects, content), saved.common, None, None)


@pytest.mark.parametrize("copier", [HostBuffers, NoCopyStager])
def test_every_kind_of_tensor_is_restored_into_a_model_with_other_bits(
    repo: Repository, copier: Callable[[], HostBuffers | NoCopyStager]
) -> None:
    model = Kinds(1)
    backend = TorchBackend(model, None)
    written = bits(backend)
    staged = backend.stage(copier())
    assert fingerprint.fingerprints(staged.tensors(), None).values == written
    saved = staged.save(repo.objects, None, ())
    other = Kinds(2)
    target = TorchBackend(other, None)
    assert sum(found != written[name] for name, found in bits(target).items()) > 0.8 * len(written)
    load(target, repo.objects, saved)
    assert bits(target) == written
    stored = tensor_states.alone(saved, repo.objects)
    records = {record.name: record for record in contents.tensors(repo.objects, stored)}
    for name, buffer in model.named_buffers():
        back = other.get_buffer(name)
        assert (back.stride(), back.is_conj(), back.is_neg()) == (buffer.stride(), buffer.is_conj(), buffer.is_neg())
        # The stored values are as the tensor reads, also for readers without m5ws.
        record = records[f"buffer.{name}"]
        reader = tensors.TensorReader(tensors.PartCache(repo.objects), tensors.layout(record))
        assert bytes(reader.read(0, reader.layout.size_bytes)) == tensor_bytes.readable(buffer.clone()).tobytes()


def test_unsupported_kinds_of_tensors_are_refused_by_name() -> None:
    refused = {
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.randn(5), 0.1, 3, torch.qint8),
        "nested": torch.nested.nested_tensor([torch.randn(3), torch.randn(2)]),
        "meta": torch.empty(3, device="meta"),
        "int4": torch.randint(0, 256, (3,), dtype=torch.uint8).view(torch.int4),  # type: ignore[attr-defined]
    }
    for name, tensor in refused.items():
        model = torch.nn.Module()
        model.register_buffer("of", tensor)
        with pytest.raises(StateError, match=rf"buffer\.of .*{name}"):
            TorchBackend(model, None).tensors()


def test_tied_weights_are_stored_once_and_stay_tied(repo: Repository) -> None:
    def tied(seed: int) -> torch.nn.Sequential:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6, bias=False))
        model[1].weight = model[0].weight
        return model

    model, other = tied(1), tied(2)
    saved = TorchBackend(model, None).stage(NoCopyStager()).save(repo.objects, None, ())
    assert [tensor.name for tensor in saved.table] == ["model.0.weight"]
    load(TorchBackend(other, None), repo.objects, saved)
    assert other[1].weight is other[0].weight
    assert torch.equal(other.get_parameter("0.weight"), model.get_parameter("0.weight"))
    other[1].weight = torch.nn.Parameter(torch.zeros(6, 4))
    with pytest.raises(RestoreError, match=r"model\.1\.weight"):
        load(TorchBackend(other, None), repo.objects, saved)


class Masters(torch.optim.Optimizer):
    """Adam in fp32 for weights in half precision, with fp32 copies as its own state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state |= {"master": parameter.float(), "mean": torch.zeros_like(parameter, dtype=torch.float32)}
                state |= {"step": 0, "history": [], "notes": {"first": parameter.dtype.itemsize}}
            state["step"] += 1
            state["mean"].lerp_(parameter.grad.float(), 0.1)
            state["history"] = [*state["history"][-2:], parameter.grad.norm()]
            state["master"].sub_(state["mean"] * (0.01 / state["step"] * sum(state["history"])))
            parameter.copy_(state["master"])


class Beside:
    """fp32 copies beside the model, trained by any optimizer and copied into it after each step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.pairs = [(weight, torch.nn.Parameter(weight.detach().float())) for weight in model.parameters()]
        self.optimizer = torch.optim.AdamW([master for _, master in self.pairs], lr=0.01)

    def step(self) -> None:
        for weight, master in self.pairs:
            master.grad = weight.grad.float() if weight.grad is not None else None
        self.optimizer.step()
        with torch.no_grad():
            for weight, master in self.pairs:
                weight.copy_(master)


def masters_in_state(model: torch.nn.Module) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
    optimizer = Masters(model.parameters())
    return optimizer, optimizer.step


def masters_beside(model: torch.nn.Module) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
    beside = Beside(model)
    return beside.optimizer, beside.step


@pytest.mark.parametrize("masters", [masters_in_state, masters_beside])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_resume_with_their_fp32_masters(
    in_process: Any, masters: Callable[[torch.nn.Module], Any], dtype: torch.dtype
) -> None:
    found: list[list[torch.Tensor]] = []

    def script(steps: int) -> None:
        torch.manual_seed(5)
        model = torch.nn.Linear(4, 3).to(dtype)
        optimizer, update = masters(model)
        for step in m5ws.session(model, optimizer, total_steps=steps, checkpoint_every=3).steps():
            model.zero_grad()
            model(torch.full((2, 4), step.number / 7, dtype=dtype)).square().sum().backward()
            update()
        # A restored state has another order of keys.
        state = [value for values in optimizer.state.values() for _, value in sorted(values.items())]
        trained = [*model.parameters(), *optimizer.param_groups[0]["params"]]
        found.append([value.detach() for value in [*trained, *state] if isinstance(value, torch.Tensor)])

    assert in_process(lambda: script(6))[1] is None
    first, error = in_process(lambda: script(3))
    assert error is None
    assert in_process(lambda: script(6), resume=first.newest)[1] is None
    assert len(found[0]) > 4
    assert any(tensor.dtype is torch.float32 for tensor in found[0])
    whole, _, resumed = ([tensor_bytes.readable(tensor).tobytes() for tensor in state] for state in found)
    assert resumed == whole


def test_lists_and_mappings_in_an_optimizer_resume(in_process: Any) -> None:
    found: list[list[float]] = []

    def script(steps: int) -> None:
        torch.manual_seed(5)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, history_size=4, max_iter=2)
        losses: list[float] = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = (model(torch.eye(4)) - torch.arange(4.0)[:, None]).pow(4).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            return loss

        for _ in m5ws.session(model, optimizer, total_steps=steps, checkpoint_every=4).steps():
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        found.append(losses)

    assert in_process(lambda: script(8))[1] is None
    first, error = in_process(lambda: script(4))
    assert error is None
    assert in_process(lambda: script(8), resume=first.newest)[1] is None
    assert found[1] + found[2] == found[0] and found[2]


class Curriculum:
    """State of a script's own: nested, with tensors of every element type."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        tensors = {str(dtype): kinds.random((2, 3), dtype) for dtype in kinds.DTYPES}
        self.state: dict[str, Any] = {
            "levels": [{"of": tensors, "at": (seed, [kinds.random((), torch.float64)])}, [], {}],
            "none": None,
        }

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_nested_state_of_a_script_resumes_with_its_bits(in_process: Any) -> None:
    objects: list[Curriculum] = []

    def script(seed: int, steps: int) -> None:
        objects.append(Curriculum(seed))
        for _ in m5ws.session(torch.nn.Linear(1, 1), total_steps=steps, state={"own": objects[-1]}).steps():
            pass

    first, error = in_process(lambda: script(1, 1))
    assert error is None
    # The session itself verifies the restored bits; here, that it restored at all.
    assert in_process(lambda: script(2, 2), resume=first.newest)[1] is None
    saved, back = (each.state["levels"][0] for each in objects)
    assert back["at"][0] == 1
    for name, tensor in saved["of"].items():
        assert tensor_bytes.readable(back["of"][name]).tobytes() == tensor_bytes.readable(tensor).tobytes()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_tensor_of_more_than_2_to_the_31_bytes_is_saved_and_restored(repo: Repository) -> None:
    """Needs 3 GiB of memory, and little room on disk, since its chunks are mostly alike."""
    count = 2**31 + 12_345
    large = torch.zeros(count, dtype=torch.uint8)
    marks = torch.tensor([0, 1, 2**30 - 1, 2**31 - 1, 2**31, 2**31 + 1, count - 1])
    large[marks] = torch.arange(1, len(marks) + 1, dtype=torch.uint8)
    written = fingerprint.fingerprints([Piece("t", large)], None).values
    content = tensor_states.save({"t": large}, repo.objects)
    large[marks] = 99
    tensor_states.load({"t": large}, repo.objects, content)
    assert large[marks].tolist() == list(range(1, len(marks) + 1))
    assert int(large.count_nonzero()) == len(marks)
    assert fingerprint.fingerprints([Piece("t", large)], None).values == written
    (record,) = contents.tensors(repo.objects, content)
    reader = tensors.TensorReader(tensors.PartCache(repo.objects), tensors.layout(record))
    assert bytes(reader.read(2**31 - 1, 2**31 + 2)) == bytes([4, 5, 6])


@pytest.mark.parametrize("size", [3, 5])
def test_a_shard_of_an_unexpected_size_is_refused_before_reading(tmp_path: Path, size: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        mesh, shape = init_device_mesh("cpu", (1,)), torch.Size([4])
        shard = DTensor.from_local(torch.ones(size), mesh, [Shard(0)], run_check=False, shape=shape, stride=(1,))
        with pytest.raises(StateError, match=rf"model\.w has {size} elements"):
            fingerprint.local(torch_backend.pieces({"model.w": shard}))
    finally:
        dist.destroy_process_group()
