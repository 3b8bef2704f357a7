"""Evidence about a node: lines of the kernel about faults, masked and recent, and the GPUs."""

from pathlib import Path

import pytest

from m5ws.records.stacks import NodeEvidence
from m5ws.supervision import evidence

_LOG = """\
6,1,100000000,-;usb 1-1: new device
3,2,900000000,-;Out of memory: Killed process 77 (python) total-vm:9kB
 SUBSYSTEM=memory
4,3,950000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.
3,4,960000000,-;INFO: task python:77 blocked for more than 120 seconds.
3,5,970000000,-;nfs: server lake not responding, at https://me:hunter2hunter2@lake/x
6,6,980000000,-;audit: all is well
"""


def test_recent_lines_about_faults_are_kept_and_masked(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(_LOG)
    lines = evidence.find_faults(evidence.read_kernel_log(tmp_path / "kmsg"), 120, now_s=1000.0)
    assert [line.partition(": ")[0] for line in lines] == ["100 s ago", "50 s ago", "40 s ago", "30 s ago"]
    assert "hunter2" not in "".join(lines) and "not responding" in lines[-1]
    assert [line.partition(": ")[0] for line in evidence.find_faults(_LOG, 45, now_s=1000.0)] == [
        "40 s ago", "30 s ago"
    ]  # fmt: skip
    many = "".join(f"3,{number},{number}000000,-;I/O error, sector {number}\n" for number in range(900, 1000))
    lines = evidence.find_faults(many, 120, now_s=1000.0)
    assert len(lines) == 20 and lines[-1].endswith("sector 999")


def test_a_log_that_may_not_be_read_is_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(evidence, "read_kernel_log", refuse)
    node = evidence.take("n1", 60)
    assert node == NodeEvidence(host="n1", problems=("the kernel's log may not be read: Operation not permitted",))
    assert evidence.describe([node]) == [f"n1, {node.problems[0]}"]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi: this machine has no GPU."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(evidence, "read_kernel_log", lambda: "4,1,1000000,-;NVRM: Xid 79\n")
    program = tmp_path / "nvidia-smi"
    program.touch(mode=0o755)
    return program


def test_the_state_of_gpus_is_evidence(smi: Path) -> None:
    gpus = ("0, 64, 100 %, 71000 MiB, 0x0000000000000000, 0, No", "1, 91, 100 %, 71000 MiB, 0x0000000000000040, 3, No")
    unknown = "2, 40, [N/A], 9 MiB, 0x0000000000000001, [N/A], [N/A]"
    smi.write_text("\n".join(("#!/bin/sh", "cat <<END", *gpus, unknown, "END", "")))
    node = evidence.take("n1", 1e12)
    assert node.gpus == (*gpus, unknown) and node.problems == ()
    kernel, *faults = evidence.describe([node])
    assert kernel.startswith("n1, kernel, ") and kernel.endswith(" s ago: NVRM: Xid 79")
    assert faults == [f"n1, GPU {gpus[1]}"]


def test_a_driver_that_hangs_is_evidence_and_no_wait(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(evidence, "_SMI_S", 0.1)
    [problem] = evidence.take("n1", 60).problems
    assert problem.startswith("the state of the GPUs is unknown: ") and "timed out" in problem
