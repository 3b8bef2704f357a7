"""Exported checkpoints, loaded by the tools that they are for: every bit equals the training."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model

import m5ws
from m5ws.checkpoints import diff, resolve
from m5ws.checkpoints.export import export as checkpoint_export
from m5ws.errors import CorruptObject, UsageError
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.store import Format
from m5ws.repository import contents
from m5ws.repository.ledger import ledger
from m5ws.repository.objects import key
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.files.exports import TOOLS, bits, export, recorded
from tests.support.records import planted, tensor_states
from tests.training.conftest import InProcess, Runner

RUN = "000000000001"


# --- any tensors

TENSORS = {
    "model.turned": torch.randn(4, 6).T,
    "model.scalar": torch.tensor(2.5, dtype=torch.float64),
    "model.empty": torch.empty(3, 0),
    "model.half": torch.randn(700).to(torch.bfloat16),
    "model.small": torch.randn(9).to(torch.float8_e4m3fn),
    "model.nan": torch.tensor([0x7FC00001, -(2**31)], dtype=torch.int32).view(torch.float32),
    "buffer.mask": torch.tensor([True, False, True]),
    "buffer.count": torch.tensor([1, 2**40]),
    "optimizer.turned.exp_avg": torch.randn(6, 4),
}


@pytest.fixture
def saved(tmp_path: Path) -> Repository:
    """A store with one checkpoint of TENSORS, in parts of odd sizes."""
    repo = Repository.create(LocalStore(tmp_path / "store"), Format(chunk_bytes=100, small_bytes=50, pack_bytes=300))
    publish(repo, TENSORS)
    return repo


def publish(repo: Repository, tensors: dict[str, torch.Tensor], step: int = 1) -> None:
    content = tensor_states.save(tensors, repo.objects)
    if not ledger.attempts(repo, RUN):
        planted.run(repo, RUN)
        planted.begin(repo, RUN)
    planted.checkpoint(repo, RUN, step, content)


def own_names(tensors: dict[str, torch.Tensor], prefix: str = "model.") -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        found[f"optimizer.state.{rest}" if kind == "optimizer" else f"{prefix}{rest}"] = tensor
    return found


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    kinds = [{name: (t.dtype, t.shape) for name, t in tensors.items()} for tensors in (found, expected)]
    assert kinds[0] == kinds[1] and bits(found) == bits(expected)


def test_every_kind_of_tensor_is_in_a_safetensors_file(saved: Repository, tmp_path: Path) -> None:
    planned = export(saved, RUN, "safetensors", tmp_path / "out", "all")
    found = load_file(tmp_path / "out" / "checkpoint.safetensors")
    expected = own_names(TENSORS)
    assert_same(found, expected)
    with safe_open(tmp_path / "out" / "checkpoint.safetensors", "pt") as file:
        said = file.metadata()
    assert said == {
        "format": "pt",
        "m5ws.run": RUN,
        "m5ws.step": "1",
        "m5ws.snapshot": "0" * 64,
        "m5ws.checkpoint": planned.checkpoint,
    }
    origin = json.loads((tmp_path / "out" / "m5ws-checkpoint.json").read_text())
    assert (origin["checkpoint"], origin["run"], origin["step"]) == (planned.checkpoint, RUN, 1)


def test_an_export_without_options_writes_only_weights(saved: Repository, tmp_path: Path) -> None:
    planned = export(saved, RUN, "safetensors", tmp_path / "out")
    found = load_file(tmp_path / "out" / "checkpoint.safetensors")
    assert found.keys() == {name for name in own_names(TENSORS) if name.startswith("model.")}
    assert "the optimizer's state" in planned.left_out


def test_a_large_export_is_split_into_files_with_an_index(saved: Repository, tmp_path: Path) -> None:
    planned = export(saved, RUN, "safetensors", tmp_path / "out", "all", file_bytes=200)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(names) > 2 and names[0] == f"checkpoint-00001-of-{len(names):05d}.safetensors"
    assert {*names, "checkpoint.safetensors.index.json", "m5ws-checkpoint.json"} == planned.files.keys()
    sizes = {name: (tmp_path / "out" / name).stat().st_size for name in names}
    assert {name: planned.files[name] for name in names} == sizes
    files = {name: load_file(tmp_path / "out" / name) for name in names}
    index = json.loads((tmp_path / "out" / "checkpoint.safetensors.index.json").read_text())
    assert index["weight_map"] == {tensor: name for name, tensors in files.items() for tensor in tensors}
    found = {tensor: value for tensors in files.values() for tensor, value in tensors.items()}
    assert bits(found) == bits(own_names(TENSORS))
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())


def test_the_hugging_face_export_uses_the_names_of_the_model(saved: Repository, tmp_path: Path) -> None:
    planned = export(saved, RUN, "hf", tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    weights = {name: tensor for name, tensor in TENSORS.items() if not name.startswith("optimizer.")}
    assert bits(found) == bits(own_names(weights, prefix=""))
    assert any("config.json" in line for line in planned.left_out)


def test_every_kind_of_tensor_is_loaded_into_memory(saved: Repository) -> None:
    weights = {name: tensor for name, tensor in TENSORS.items() if not name.startswith("optimizer.")}
    expected = own_names(weights, prefix="")
    found = checkpoint_export.load(saved, resolve.resolve(saved, RUN), "model", TOOLS)
    assert_same(found, expected)
    moments = checkpoint_export.load(saved, resolve.resolve(saved, RUN), "optimizer", TOOLS)
    assert bits(moments) == bits({"state.turned.exp_avg": TENSORS["optimizer.turned.exp_avg"]})


def test_an_unsupported_dtype_is_refused_before_the_first_write(saved: Repository, tmp_path: Path) -> None:
    publish(saved, {"model.wide": torch.zeros(2, dtype=torch.complex128)}, step=2)
    with pytest.raises(UsageError, match="complex128") as caught:
        export(saved, f"{RUN}@2", "safetensors", tmp_path / "out")
    assert "Run.load" in caught.value.hint and not (tmp_path / "out").exists()
    assert checkpoint_export.load(saved, resolve.resolve(saved, f"{RUN}@2"), "model", TOOLS).keys() == {"wide"}


def test_an_export_of_damaged_data_leaves_no_files(saved: Repository, tmp_path: Path) -> None:
    which = resolve.resolve(saved, RUN)
    content = saved.objects.get_record(saved.objects.get_record(which.digest, Checkpoint).content, Content)
    part = next(t for t in contents.tensors(saved.objects, content) if t.name == "model.half").shards[0].parts[-1]
    damaged = tmp_path / "store" / key(part.object)
    damaged.chmod(0o644)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(CorruptObject):
        export(saved, RUN, "safetensors", tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []


def test_export_accepts_an_empty_directory_and_refuses_a_used_directory(saved: Repository, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(saved, RUN, "hf", tmp_path / "out")
    before = sorted((tmp_path / "out").iterdir())
    with pytest.raises(UsageError, match="empty"):
        export(saved, RUN, "safetensors", tmp_path / "out")
    assert sorted((tmp_path / "out").iterdir()) == before


# --- real trainings


def test_a_sharded_training_is_exported_whole(runner: Runner, tiny: str, tmp_path: Path) -> None:
    attempt = runner(tiny, "fsdp", "2", ranks=2)
    assert attempt.status == 0 and attempt.newest is not None, attempt.log()
    planned = export(runner.repo, attempt.newest, "safetensors", tmp_path / "flat", "all")
    found = load_file(tmp_path / "flat" / "checkpoint.safetensors")
    # Running statistics differ from rank to rank: the export has rank 0's.
    said = {name.removesuffix("@0"): value for name, value in recorded(runner.repo, attempt.newest).items()}
    expected = {name: value for name, value in said.items() if "@" not in name}
    owns = own_names(dict.fromkeys(expected, torch.empty(0)))
    assert bits(found) == dict(zip(owns, expected.values(), strict=True))
    assert any("differ from rank 0's" in line for line in planned.left_out)
    assert {"the scheduler", "the position in the data"} <= set(planned.left_out)
    assert any("noise" in line and "python" in line for line in planned.left_out)


def test_checkpoints_of_other_numbers_of_ranks_are_compared_by_the_models_names(runner: Runner, tiny: str) -> None:
    refs = []
    for kind, ranks in (("fsdp", 2), ("single", 1)):
        attempt = runner(tiny, kind, "2", ranks=ranks)
        assert attempt.status == 0 and attempt.newest is not None, attempt.log()
        refs.append(resolve.resolve(runner.repo, attempt.newest, counting=False))
    found = diff.compare(runner.repo, *refs)
    changed = {change.name: (change.a, change.b) for change in found.tensors}
    old, new = changed["model.first.weight"]
    assert old is not None and new is not None and old != new
    assert old.startswith("float32 [10, 6], ") and new.startswith("float32 [10, 6], ")
    assert all(None not in sides for name, sides in changed.items() if name.startswith("model."))
    assert any("the state of single ranks is not compared" in note for note in found.notes)
    assert diff.compare(runner.repo, refs[0], refs[0]).equal


# --- ties and buffers -----------------------------------------------------------------------------------------------


class TiedModel(torch.nn.Module):
    """A head tied to an embedding, two names of one layer, and buffers in and out of the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.first = self.second = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("angles", torch.arange(4.0), persistent=False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embed(ids) + self.get_buffer("angles")
        return torch.as_tensor(self.head(self.second(self.first(hidden))))


def test_ties_and_unsaved_buffers_are_exported_as_the_model_has_them(in_process: InProcess, tmp_path: Path) -> None:
    trained = TiedModel()

    def script() -> None:
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        for step in m5ws.session(trained, optimizer, total_steps=1).steps():
            loss = trained(torch.tensor([0, 3])).sum()
            loss.backward()
            optimizer.step()
            step.record(loss=loss)

    _, error = in_process(script)
    assert error is None
    repo = in_process.runner.repo
    which = resolve.resolve(repo, f"{in_process.runner.run}@1")
    loaded = checkpoint_export.load(repo, which, "model", TOOLS)
    assert_same(loaded, dict(trained.state_dict()))
    assert loaded["head.weight"] is loaded["embed.weight"]
    TiedModel().load_state_dict(loaded)
    planned = export(repo, in_process.runner.run, "hf", tmp_path / "hf")
    assert any("head.weight is tied to" in line for line in planned.left_out)
    assert "buffers that the model's state_dict leaves out" in planned.left_out
    fresh = TiedModel()
    missing, unexpected = load_model(fresh, tmp_path / "hf" / "model.safetensors")
    assert not missing and not unexpected
    assert_same(dict(fresh.state_dict()), dict(trained.state_dict()))
