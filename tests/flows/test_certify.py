"""Restores compared with uninterrupted training: exact, and with a lost position in the data."""

from pathlib import Path

from tests.support.workspace.workspaces import make_forgetful, make_workspace


def test_certify_confirms_every_restore_and_names_the_certified_software(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py")
    certificate = workspace.json("certify", "--nproc", "2", "--steps", "4", "--parallel", "2")
    assert (certificate["outcome"], certificate["steps"], certificate["restored"]) == ("certified", 4, [1, 2, 3])
    what = certificate["what"]
    assert (what["framework"], what["optimizer"], what["ranks"]) == ("PyTorch", "AdamW", "2")
    assert what["torch"].startswith("2.")
    # Each restore continued to the end, and did no step twice.
    assert [verdict["compared"]["steps"] for verdict in certificate["verdicts"]] == [6, 4, 2]


def test_an_unsaved_data_position_is_found_at_the_first_different_step(tmp_path: Path) -> None:
    workspace = make_forgetful(tmp_path / "w")
    certificate = workspace.json("certify", "--nproc", "1", "--steps", "4", "--restores", "1", expect=1)
    assert certificate["outcome"] == "inexact" and len(certificate["restored"]) == 1
    first = certificate["verdicts"][0]["first"]
    assert (first["step"], first["quantity"]) == (certificate["restored"][0] + 1, "loss")
    output = workspace.m5ws("show", certificate["verdicts"][0]["replay"]).stdout
    assert "INEXACT RESTORE" in output and "NOT COMPARABLE" not in output


_AVERAGE = """\
import os
import torch
import m5ws

m5ws.seed(7)
model = torch.nn.Linear(3, 2)
average = torch.nn.Linear(3, 2).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in m5ws.session(model, optimizer, total_steps=3).steps():
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    for kept, new in zip(average.parameters(), model.parameters()):
        kept.lerp_(new, 0.1)
os.makedirs("out", exist_ok=True)
torch.save(average.state_dict(), "out/average.pt")
"""


def test_output_tensors_that_a_restore_does_not_continue_prevent_a_certificate(tmp_path: Path) -> None:
    """All recorded steps are equal, and the average of the weights begins again."""
    workspace = make_forgetful(tmp_path / "w", run='outputs = ["out"]')
    (workspace.root / "train.py").write_text(_AVERAGE)
    certificate = workspace.json("certify", "--nproc", "1", "--steps", "3", "--restores", "1", expect=1)
    (verdict,) = certificate["verdicts"]
    assert certificate["outcome"] == "inexact" and verdict["recheck"]["start_equal"]
    assert verdict["first"]["sentence"] == "file out/average.pt: tensor weight"
