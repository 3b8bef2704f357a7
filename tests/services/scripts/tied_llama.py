"""A tiny Llama with tied weights and a rotary buffer: trained, or loaded from its run and from its export.

tied_llama.py                  trains one step, in a run
tied_llama.py WORKSPACE RUN DIR    loads
"""

import json
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import m5ws


def make_model() -> Any:
    return LlamaForCausalLM(LlamaConfig.from_json_file("config.json"))


def train() -> None:
    m5ws.seed(1)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in m5ws.session(model, optimizer, total_steps=1).steps():
        ids = torch.arange(8).view(1, 8)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        step.record(loss=loss)
    torch.save(model.state_dict(), "out/state.pt")


def load(workspace: str, run_id: str, directory: str) -> None:
    """Print True for each way of loading with the bits of the training, and the keys that do not fit."""
    run = m5ws.Workspace(workspace).run(run_id)
    outputs = run.outputs(f"{directory}-outputs")
    trained = torch.load(outputs / "out" / "state.pt", weights_only=True)
    model = make_model()
    model.load_state_dict(run.load("model"))
    exported, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    same = [
        all(torch.equal(each.state_dict()[name], tensor) for name, tensor in trained.items())
        for each in (model, exported)
    ]
    print(
        json.dumps({"same": same, "missing": list(info["missing_keys"]), "unexpected": list(info["unexpected_keys"])})
    )


if __name__ == "__main__":
    load(*sys.argv[1:]) if len(sys.argv) > 1 else train()
