"""Each feature of torch and DeepSpeed, tried on a tiny model: repeated, resumed, restored from another mesh; or
refused.

A refusal comes at the start, or after the first step at the latest. The first resume is refused only after a notice.
"""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from m5ws.records import codec
from m5ws.records.launch import Saving
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.ranks import forks
from tests.support.ranks.orders import orders
from tests.support.records import planted

_SCRIPT = Path(__file__).parent / "scripts" / "matrix.py"
_OF_MUON = {"muon", "two_optimizers", "second_in_state", "wrapped_optimizers"}


class Row(msgspec.Struct, frozen=True):
    """A feature, its number of ranks, and the feature whose checkpoint it also restores; or the error that refuses it.

    `notice` is the message about an inexact or `refused` resume, `other` that about the other feature's checkpoint.
    """

    feature: str
    ranks: int
    source: str = ""
    refused: str = ""
    notice: str = ""
    other: str = ""

    @property
    def name(self) -> str:
        return f"{self.feature}-{self.ranks}" + (f"-from-{self.source}" if self.source else "")


_QUICK = [
    Row("ddp", 3),
    Row("pipeline", 2, source="plain_4_layers-1"),
    Row("shampoo_nested", 2, source="plain_shampoo_nested-1"),
    Row("ema_sharded", 2, source="ema_sharded-3"),
    Row("wrapped_optimizers", 2, refused="StateError: the Both keeps optimizer state .* AdamW in its `two`"),
    Row(
        "elastic",
        2,
        source="elastic-1",
        other=r"not restored: generators \(.*torch\)\. The loader's position is restored$",
    ),
    Row(
        "data_loader",
        2,
        source="data_loader-1",
        other=r"not restored: generators \(.*torch\)\. The loader's position is restored$",
    ),
    Row("experts_alike", 2, refused="CopiesDiffer: ranks hold copies of .* that differ: no checkpoint could be exact"),
    Row(
        "growing_buffer",
        1,
        refused=r"RestoreError: the checkpoint does not fit \(of another shape: buffer\.cache\)",
        notice=r"it has cache \[3\] and lacks cache \[2\]\.",
    ),
    Row("torn_loader", 1, notice="data loader does not return its position .*not restorable"),
    Row("quantized", 1),
    Row("deaf_object", 1, refused=r"StateError: state\.own does not accept the state that it returns: .*one day"),
    Row("ddp_4_layers", 2, source="pipeline-2"),
]
_SLOW = [
    Row("fsdp", 2, source="plain-1", other=r"not restored: generators \(.*torch.*\), the position in the data .*$"),
    Row("fp16_scaler", 3),
    Row("zero3", 3, source="zero3-2"),
    Row("zero3_offloaded", 2),
]
_CAMPAIGN = [
    Row("elastic_apart", 2, notice="elastic = True, but its state differs from rank to rank"),
    Row("zero1_pipeline", 2, refused="StateError: .* tensor, pipeline or expert parallel ranks"),
    Row("zero2_experts", 2, refused="StateError: .* mixture-of-experts layers"),
    Row("zero3_overlap", 2),
    Row("hsdp_tp", 4, source="tp_fsdp-4"),
    Row("tp", 4),
    Row("context_parallel", 2, source="fsdp-3"),
    Row("fsdp_columns", 4, source="tp-2"),
    Row("pipeline_fsdp", 4, source="pipeline-2"),
    Row("zero2", 2, source="zero1-3"),
    Row("failing_loader", 2, notice="data loader does not return its position .*the index is gone.*not restorable"),
    Row("clock", 1, refused=r"StateError: the state_dict of state\.own is different after load_state_dict"),
    Row("experts", 2, source="plain_experts-1"),
    Row("compiled", 2, source="plain-1"),
    Row("masters", 2),
    Row("muon", 2),
    Row("two_optimizers", 2),
    Row("redundancy", 2, refused="StateError: the ZeroRedundancyOptimizer keeps optimizer state"),
    Row("ddp_hook", 3, notice="inexact restore: .* communication hook"),
    Row("hsdp", 4, source="ddp-3"),
    Row("plain_4_layers", 1, source="pipeline_fsdp-4"),
    Row("cpu_offload", 2),
    Row("adafactor", 2),
    Row("own_moments", 1, refused=r"StateError: the OwnMoments keeps tensors .* outside its `.state`.*moments\[0\]"),
    Row("zero2_elastic", 2, refused="StateError: .* elastic_checkpoint"),
    Row("zero_engine", 2, refused=r"UsageError: the model is a DeepSpeed engine"),
    Row("hsdp_parted", 4, refused="CopiesDiffer: ranks hold copies of .*head.weight.* that differ"),
    Row("delayed", 2, source="plain-1"),
    Row("activations_offloaded", 2),
    Row("bf16_autocast", 2),
    Row("adapters", 2),
    Row("ema_within", 2),
    Row("zero3_bf16_states", 2),
    Row("zero3_autocast", 2),
    Row("zero2_checkpointed", 2),
    Row("zero2_sequence", 2, refused="StateError: .* tensor, pipeline or expert parallel ranks"),
    Row("zero2_zenflow", 2, refused="StateError: .* ZenFlow"),
    Row("second_in_state", 2, refused=r"UsageError: state\.adamw is an optimizer of sharded parameters"),
    Row("opaque", 1, refused="StateError: optimizer.* is a .*Opaque without bytes of its own"),
    Row("plain", 1),
    Row("ddp_unused", 3),
    Row("replicate", 3, source="ddp-3"),
    Row("fsdp", 3, source="fsdp-2"),
    Row("tp_sequence_fsdp", 4, source="tp_fsdp-4"),
    Row("tp_fsdp_uneven", 4, source="plain_uneven-1"),
    Row("checkpointed", 2, source="plain-1"),
    Row("bf16", 3),
    Row("accumulated", 2),
    Row("tied", 2),
    Row("fused", 2, source="plain-1"),
    Row("tensor_lr", 2),
    Row("sgd", 2),
    Row("shampoo_lists", 2),
    Row("ema_averaged", 1),
    Row("pipeline_uneven", 2),
    Row("zero_cpu_adam", 2, refused=r"UsageError: the DeepSpeedCPUAdam is DeepSpeed's: m5ws.session\(engine=engine\)"),
    Row("zero1", 2),
    Row("zero2_fp32", 2),
    Row("zero2_overlap", 2),
    Row("zero2_accumulated", 2),
    Row("zero2_aligned", 2, source="zero2_aligned-3"),
    Row("zero3_shards", 4),
    Row("zero3_delayed", 2),
    Row("zero3_torch", 2),
    Row("zero0_fp32", 2),
    Row("zero0_bf16", 2, refused="StateError: .* bf16 or fp16 without ZeRO"),
    Row("zero3_ratio", 2, refused="StateError: .* an offload ratio below 1"),
    Row("zero_optimizer", 2, refused=r"UsageError: .* is DeepSpeed's: m5ws.session\(engine=engine\)"),
]
_ROWS = [
    *(pytest.param(row, id=row.name) for row in _QUICK),
    *(pytest.param(row, id=row.name, marks=pytest.mark.long) for row in _SLOW),
    *(pytest.param(row, id=row.name, marks=pytest.mark.soak) for row in _CAMPAIGN),
]
Try = Callable[[str, int, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def tried(fork_parents: forks.ForkParents, tmp_path_factory: pytest.TempPathFactory) -> Try:
    """Run a feature and the source of its checkpoint, each once; return the results of each rank."""
    base = tmp_path_factory.mktemp("features")
    store = LocalStore(base / "store")
    repo = Repository.create(store)
    runs = (f"{number:012d}" for number in itertools.count(1))

    def folder(feature: str, ranks: int, source: str) -> Path:
        place = base / f"{feature}-{ranks}{'-from-' if source else ''}{source}"
        if place.exists():
            return place
        if not source and (known := next(base.glob(f"{feature}-{ranks}-from-*/checkpoint"), None)) is not None:
            return known.parent
        other = folder(*_split(source), "") if source else None
        place.mkdir()
        planted.begin(repo, run := next(runs))
        said = orders(place, store=str(store.root), run=run, saving=Saving(asynchronous=False, failures=1))
        for path in (said.work_dir, said.spool_dir, said.log_dir, said.output_dir, said.author_dir):
            Path(path).mkdir(parents=True, exist_ok=True)
        (place / "orders").write_bytes(codec.encode(said))
        status, log = forks.run(
            fork_parents,
            *(str(_SCRIPT), feature, str(store.root), str(place), *([str(other)] if other else [])),
            directory=place,
            ranks=ranks if ranks > 1 else None,
            deepspeed=feature.startswith("zero"),
            timeout_s=100.0,
        )
        assert status == 0, log[-6000:]
        return place

    def run(feature: str, ranks: int, source: str) -> list[dict[str, Any]]:
        place = folder(feature, ranks, source)
        return [json.loads((place / f"{rank}.json").read_text()) for rank in range(ranks)]

    return run


def _split(name: str) -> tuple[str, int]:
    feature, _, ranks = name.rpartition("-")
    return feature, int(ranks)


@pytest.mark.parametrize("row", _ROWS)
def test_each_feature_resumes_exactly_or_is_refused_at_once(tried: Try, row: Row) -> None:
    if row.feature in _OF_MUON and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch.optim.Muon begins with torch 2.9")
    ranks = tried(row.feature, row.ranks, row.source)
    if row.refused:
        assert all(re.search(row.refused, found["error"]) for found in ranks), ranks
        assert all(("again" in found) is bool(row.notice) for found in ranks), ranks
        assert not row.notice or any(re.search(row.notice, said) for said in ranks[0]["notices"])
        return
    assert [found.get("error") for found in ranks] == [None] * row.ranks
    assert [found["again"] for found in ranks] == [[]] * row.ranks
    if row.notice:
        assert any(re.search(row.notice, said) for found in ranks for said in found["notices"])
        return
    assert [found["resume"] for found in ranks] == [[]] * row.ranks
    assert ranks[0]["notices"] == []
    assert all("other" in found and found["elsewhere"] == [] for found in ranks) or not row.source
    if row.other:
        assert any(re.search(row.other, said) for said in ranks[0]["other"])
