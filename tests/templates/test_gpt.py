"""Modules that templates share: the corpus and its tokenizer, the batches, the model."""

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from types import ModuleType
from typing import Any

import pytest
import torch

Load = Callable[[str], ModuleType]


def prepare(root: Path, *arguments: str, expect: int = 0) -> str:
    done = run([sys.executable, "prepare.py", *arguments], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr
    return done.stdout + done.stderr


def made(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in ("data/corpus.txt", "tokenizer/tokenizer.json")}


def test_the_same_text_gives_the_same_bytes(workspace: Callable[[str], Path], text: Path) -> None:
    root = workspace("gpt-fsdp")
    prepare(root, str(text))
    first = made(root)
    prepare(root, str(text))
    assert made(root) == first
    assert first["data/corpus.txt"].startswith(b"first\n0 bottles")


def test_the_default_text_is_the_standard_library(workspace: Callable[[str], Path], module: Load) -> None:
    root = workspace("gpt-fsdp")
    prepare(root, "--limit-mb", "0.1")
    assert len(made(root)["data/corpus.txt"]) == 100_000
    tokens, vocabulary = module("data").load_tokens(root / "data/corpus.txt", root / "tokenizer/tokenizer.json")
    assert vocabulary == 400
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary


def test_too_little_text_is_refused(workspace: Callable[[str], Path], tmp_path: Path) -> None:
    root = workspace("gpt-fsdp")
    (tmp_path / "one.txt").write_text("too short")
    assert "too little text" in prepare(root, str(tmp_path / "one.txt"), expect=2)
    assert "none.txt" in prepare(root, str(tmp_path / "none.txt"), expect=2)
    assert not (root / "data").exists()


def test_the_tokenizer_decodes_any_text_unchanged(module: Load) -> None:
    tokenizer = module("prepare").train_tokenizer("to be or not to be\n" * 50, 300)
    strange = "\tdéf 世界 \x00 🙂\r\n  end"
    assert tokenizer.decode(tokenizer.encode(strange).ids) == strange


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_each_epoch_without_overlap(module: Load, world: int) -> None:
    batches_of = module("data").Batches
    tokens = torch.arange(1001)
    seen: list[int] = []
    for rank in range(world):
        batches = batches_of(tokens, 10, 4, seed=1, rank=rank, world=world)
        given = list(batches)
        assert len(given) == len(batches)
        for x, y in given:
            assert x.shape == y.shape == (4, 10)
            assert torch.equal(x + 1, y)
            seen += x[:, 0].tolist()
    assert len(seen) == len(set(seen)) == len(batches) * 4 * world


def test_the_data_order_depends_only_on_seed_and_epoch(module: Load) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        batches = module("data").Batches(torch.arange(1001), 10, 4, seed=seed, rank=0, world=2)
        batches.set_epoch(epoch)
        torch.rand(1)
        return [int(x[0, 0]) for x, _ in batches]

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_restored_batches_continue_at_the_saved_position(module: Load) -> None:
    def batches(epoch: int) -> Any:
        made = module("data").Batches(torch.arange(1001), 10, 4, seed=1, rank=1, world=2)
        made.set_epoch(epoch)
        return made

    whole = [x.tolist() for x, _ in batches(3)]
    for stop in range(len(whole)):
        first = batches(3)
        walk = iter(first)
        for _ in range(stop):
            next(walk)
        second = batches(0)
        second.load_state_dict(first.state_dict())
        assert [x.tolist() for x, _ in second] == whole[stop:]


def test_the_model_output_does_not_depend_on_later_tokens(module: Load) -> None:
    torch.manual_seed(0)
    model = module("model").GPT(vocabulary=50, length=8, layers=2, heads=2, width=16, dropout=0.5).eval()
    given: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda _module, _input, output: given.append(output))
    x = torch.randint(0, 50, (2, 8))
    changed = x.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 50
    model(x, x)
    model(changed, x)
    assert torch.equal(given[0][:, :5], given[1][:, :5])
    assert not torch.equal(given[0][:, 5:], given[1][:, 5:])
