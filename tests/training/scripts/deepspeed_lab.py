"""Scenarios on a DeepSpeed backend in one set of ranks, without a session: deepspeed_lab.py STORE OUT SCENARIO…

Each scenario returns plain data; this rank's goes to OUT/<scenario>-<rank>.json.
"""

import gc
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed_tiny import Model, batch, config, engine_of, train_step

from m5ws.errors import M5Error
from m5ws.records import codec
from m5ws.records.checkpoint import Content
from m5ws.records.tree import Slice
from m5ws.repository import contents
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.training.backends.base import Piece
from m5ws.training.backends.deepspeed.backend import DeepSpeedBackend
from m5ws.training.checkpoint.writer import HostBuffers
from m5ws.training.fingerprint import fingerprint
from m5ws.training.runtime import collectives

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.support.records import tensor_states

STEPS = 8
CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "zero1-bf16": (1, "bf16", {}),
    "zero2-bf16": (2, "bf16", {}),
    "zero2-round-robin": (2, "bf16", {"round_robin_gradients": True}),
    "zero2-fp32": (2, "fp32", {}),
    "zero3-bf16": (3, "bf16", {}),
    "zero3-fp32": (3, "fp32", {}),
    "zero3-parameters": (3, "bf16", {"offload_param": {"device": "cpu", "pin_memory": False}, "sub_group_size": 50}),
    "zero1-no-offload": (1, "bf16", {"offload": False}),
    "zero3-no-offload": (3, "bf16", {"offload": False}),
    "zero0-fp32": (0, "fp32", {"offload": False}),
}


class Training:
    """An engine and its backend, created from the same seed."""

    def __init__(self, case: str, group: Any, one_group: bool = False) -> None:
        stage, dtype, extra = CASES[case]
        torch.manual_seed(3)
        settings = config(stage, dtype, **extra)
        # CPUAdam works on the CPU, where everything is in this test: it is not meant to be used without offload.
        self.engine = engine_of(settings, Model(), not extra.get("offload", True), one_group)
        self.backend = DeepSpeedBackend(self.engine)
        self.group = group
        self.buffers = HostBuffers()

    def step(self, number: int) -> dict[str, str]:
        torch.manual_seed(100 * number + dist.get_rank())
        values = train_step(self.engine, batch(dist.get_rank(), number))
        return {name: float(value).hex() for name, value in values.items()}

    def state(self) -> dict[str, str]:
        return self._everywhere(self.backend.tensors())

    def _everywhere(self, pieces: Iterable[Piece]) -> dict[str, str]:
        """Return the fingerprints, which rank 0 has, on all ranks."""
        found = fingerprint.fingerprints(pieces, self.group).values
        shared: dict[str, str] = collectives.broadcast(found if dist.get_rank() == 0 else None, self.group)
        return shared

    def save(self, repo: Repository) -> tuple[str, Any]:
        staged = self.backend.stage(self.buffers)
        found = self.state()
        assert self._everywhere(staged.tensors()) == found
        live = {piece.tensor.untyped_storage().data_ptr() for piece in self.backend.tensors()}
        assert not any(piece.tensor.untyped_storage().data_ptr() in live for piece in staged.tensors())
        saved = staged.save(repo.objects, self.group, ())
        state = put(repo, {"backend": saved.rank})
        content = tensor_states.gathered(saved, repo.objects, self.group, state, format="deepspeed/1")
        stored = repo.objects.put_record(content) if content is not None else None
        digest: str = collectives.broadcast(stored, self.group)
        return digest, codec.decode_plain(codec.encode_plain(saved.rank))

    def load(self, repo: Repository, content: str, rank: Any) -> None:
        record = repo.objects.get_record(content, Content)
        self.backend.load(repo.objects, record, contents.Parts(repo.objects, record), {}, rank, self.group)

    def destroy(self) -> None:
        self.engine.destroy()
        del self.engine, self.backend
        gc.collect()


def exact(repo: Repository, group: Any, case: str) -> dict[str, Any]:
    """Train; save after steps 2 and 5; load each into a new engine and go on."""
    first = Training(case, group)
    whole, saved = {0: [None, first.state()]}, {}
    for number in range(1, STEPS + 1):
        whole[number] = [first.step(number), first.state()]
        if number in (2, 5):
            saved[number] = first.save(repo)
    again = first.save(repo)[0], first.save(repo)[0]
    first.destroy()
    resumed = {}
    for start, (content, rank) in saved.items():
        other = Training(case, group)
        other.load(repo, content, rank)
        found = {start: [whole[start][0], other.state()]}
        resaved = other.save(repo)[0]
        for number in range(start + 1, STEPS + 1):
            found[number] = [other.step(number), other.state()]
        resumed[start] = {"states": found, "resaved": resaved, "end": other.save(repo)[0]}
        other.destroy()
    return {
        "whole": whole,
        "resumed": resumed,
        "again": again,
        "saved": {start: content for start, (content, _) in saved.items()},
    }


def put(repo: Repository, value: Any) -> Slice:
    data = codec.encode_plain(value)
    digest = repo.objects.put(data)
    return Slice(object=digest, offset=0, size_bytes=len(data), digest=digest)


def before(repo: Repository, group: Any, case: str) -> dict[str, Any]:
    """Save a new engine, and an engine after three steps, for other numbers of ranks to load."""
    training = Training(case, group)
    found = {"new": {"content": training.save(repo)[0], **described(training, case)}}
    for number in range(1, 4):
        training.step(number)
    found["trained"] = {"content": training.save(repo)[0], **described(training, case)}
    training.destroy()
    return found


def after(repo: Repository, group: Any, case: str, out: Path) -> dict[str, Any]:
    """Load the files of `before` on this number of ranks; train the trained case for a step, save, and load that."""
    found = {}
    saved = json.loads(next(out.parent.glob(f"*/before:{case}-0.json")).read_text())
    for what, part in saved.items():
        training = Training(case, group)
        if what == "trained":
            training.step(9)  # There is other state to be replaced.
        training.load(repo, part["content"], None)
        found[what] = described(training, case)
        found[what]["steps"] = [training.engine.global_steps, training.engine.micro_steps]
        found[what]["lr"] = training.engine.get_lr()
        if what == "trained":
            training.step(4)
            content, rank = training.save(repo)
            other = Training(case, group)
            other.load(repo, content, rank)
            found[what]["again"] = [training.state(), other.state()]
            other.destroy()
        training.destroy()
    return found


def described(training: Training, case: str) -> dict[str, Any]:
    """The fingerprints by m5ws's pieces, and of the masters as DeepSpeed gathers them."""
    masters = {}
    if case not in ("zero2-round-robin", "zero0-fp32"):  # DeepSpeed's own access by name has another order, or none.
        for name, parameter in training.engine.module.named_parameters():
            if parameter.requires_grad:
                whole = deepspeed.utils.safe_get_full_fp32_param(parameter)
                masters[f"master.{name}"] = whole_fingerprint(whole)
    return {"state": training.state(), "masters": masters}


def weights(repo: Repository, group: Any) -> dict[str, Any]:
    """Fingerprints of the layouts' tensors, and of the same tensors whole: first the model's, then as gathered."""
    found = {}
    torch.manual_seed(3)
    first = dict(Model().named_parameters())
    for case in ("zero2-bf16", "zero2-round-robin", "zero3-parameters"):
        training = Training(case, group, one_group=True)
        state = training.state()
        expected = {}
        for name, parameter in first.items():
            expected[f"model.{name}"] = whole_fingerprint(parameter.bfloat16())
            if parameter.requires_grad:
                expected[f"master.{name}"] = whole_fingerprint(parameter.bfloat16().float())
        found[f"{case} first"] = {"expected": expected, "state": {name: state.get(name) for name in expected}}
        if case != "zero2-round-robin":  # DeepSpeed's own access by name has another order than its layout.
            training.step(1)
            expected = gathered(training.engine.module)
            state = training.state()
            found[f"{case} trained"] = {"expected": expected, "state": {name: state.get(name) for name in expected}}
        training.destroy()
    return found


def gathered(module: torch.nn.Module) -> dict[str, str]:
    """Return the fingerprints of masters and moments that DeepSpeed itself gathers whole."""
    expected = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            whole = deepspeed.utils.safe_get_full_fp32_param(parameter)
            expected[f"master.{name}"] = whole_fingerprint(whole)
            for key in ("exp_avg", "exp_avg_sq"):
                whole = deepspeed.utils.safe_get_full_optimizer_state(parameter, key)
                expected[f"optimizer.{name}.{key}"] = whole_fingerprint(whole)
    return expected


def refusals(repo: Repository, group: Any) -> dict[str, str]:
    """The refusals of state that cannot be restored exactly, by kind."""
    found = {}
    # A store of its own: a damaged object may be in other scenarios' contents too.
    repo = Repository.create(open_store(repo.store.url.removeprefix("file://") + "-damaged"))
    found["not known"] = refusal(lambda: DeepSpeedBackend(engine_of(config(2, "bf16") | {"levitation": True}, Model())))
    found["other engine"] = refusal(lambda: without_names("zero2-bf16", group))
    training = Training("zero2-bf16", group)
    content, rank = training.save(repo)
    record = repo.objects.get_record(content, Content)
    other = Training("zero3-bf16", group)
    found["other stage"] = refusal(lambda: other.load(repo, content, rank))
    training.engine._config.gradient_accumulation_steps = 2
    training.engine.micro_steps = 1
    found["between steps"] = refusal(lambda: training.save(repo))
    training.engine.micro_steps = 0
    dist.barrier()
    if dist.get_rank() == 0:
        part = contents.blobs(repo.objects, record)["buffers-1"]
        damaged = Path(repo.store.url.removeprefix("file://"), "objects", part.object[:2], part.object)
        damaged.chmod(0o644)
        damaged.write_bytes(bytes(part.size_bytes))
    dist.barrier()
    found["damaged on one rank"] = refusal(lambda: training.load(repo, content, rank))
    return found


def without_names(case: str, group: Any) -> None:
    """Make a backend of an engine with other file names, such as the names of a later DeepSpeed."""
    training = Training(case, group)
    training.engine._get_ckpt_name = None
    DeepSpeedBackend(training.engine)


def refusal(action: Any) -> str:
    """Return the error of an action, as its type and the reason in its message."""
    try:
        action()
    except M5Error as error:
        parts = (
            "between two optimizer steps", "the checkpoint has no",
            "rank 1 could not read", "levitation", "_get_ckpt_name",
        )  # fmt: skip
        return ": ".join([type(error).__name__, *(part for part in parts if part in str(error))])
    return "nothing is raised"


def whole_fingerprint(tensor: torch.Tensor) -> str:
    return f"{fingerprint.sums([tensor])[0]:016x}"


def main(store: str, out: str, *scenarios: str) -> None:
    deepspeed.init_distributed("gloo", verbose=False)
    repo = Repository.open(open_store(store))
    group = collectives.new_group()
    for scenario in scenarios:
        name, _, case = scenario.partition(":")
        if name == "after":
            found = after(repo, group, case, Path(out))
        else:
            found = globals()[name](repo, group, *filter(None, [case]))
        Path(out, f"{scenario}-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
