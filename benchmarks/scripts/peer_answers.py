"""The answers of one peer to a corpus of failures, by the peer's own code.

Usage: peer_answers.py {nvrx,dlrover,fkat} CORPUS OUT, with an interpreter that has the peer installed. The first line
of OUT has the version, and each further line the answer to one case. Ends with 3 if the peer is not installed.
"""

import importlib
import importlib.metadata
import json
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

Case = dict[str, Any]
Answer = dict[str, Any]
NOT_INSTALLED = 3
_NO_ANSWER: Answer = {"labels": [], "rank": None, "node": None, "retry": None}
_KERNEL = re.compile(r".*?(NVRM: Xid .*)")


def nvrx(folder: Path) -> Callable[[Case], Answer]:
    """Return the restart agent of NVIDIA's extension without its language model.

    It reads one log: the logs in the order of their ends, with the rank before each line, as `srun --label` prints it.
    """
    agent = importlib.import_module("nvidia_resiliency_ext.attribution.restart_agent")
    path = folder / "job.log"

    def answer(case: Case) -> Answer:
        logs = sorted(case["logs"], key=lambda log: log["ended_s"])
        lines = [(log["rank"], line) for log in logs for line in log["text"].splitlines()]
        path.write_text("".join(f"{line}\n" if rank is None else f"{rank}: {line}\n" for rank, line in lines))
        run = agent.RestartAgent().run(agent.RestartAgentRequest(log_path=str(path)))
        again = run.result.decision == "RESTART"
        primary = run.bundle.deterministic_primary_candidate if run.bundle is not None else None
        if primary is None:
            return {**_NO_ANSWER, "retry": again}
        matches = [match.registry_id for match in run.bundle.registry_matches if match.line == primary.line]
        labels = dict.fromkeys([primary.registry_id or primary.failure_class, *matches])
        return {"labels": [*labels], "rank": primary.rank, "node": None, "retry": again}

    return answer


def dlrover(folder: Path) -> Callable[[Case], Answer]:
    """Return the decision of DLRover's agents after a first failure. FAILURE_NODE_ERRORS configures errors of nodes."""
    agents = importlib.import_module("dlrover.python.elastic_agent.diagnosis.diagnosis_agent")
    diagnostician = agents.FailureNodeDiagnostician()
    path = folder / "node.log"
    context = SimpleNamespace(
        run_result=SimpleNamespace(failures={}, state=SimpleNamespace(name="FAILED")),
        restart_count=0,
        remaining_failovers=3,
        worker_spec=SimpleNamespace(role="worker", max_restarts=3),
    )
    agent = SimpleNamespace(
        _agent_context=context,
        _training_log_file=str(path),
        _errors=os.environ.get("FAILURE_NODE_ERRORS", ""),
        _report_failure_to_master=lambda *_: None,
        observe=lambda _, **arguments: diagnostician.observe(**arguments),
    )

    def answer(case: Case) -> Answer:
        relaunched = []
        for node in dict.fromkeys(log["node"] for log in case["logs"]):
            path.write_text("\n".join(log["text"] for log in case["logs"] if log["node"] == node) + "\n")
            if agents.DiagnosisAgent.diagnose_training_failure(agent).action_type == "relaunch_worker":
                relaunched.append(node)
        return {
            "labels": ["node failed"] if relaunched else [],
            "rank": None,
            "node": relaunched[0] if relaunched else None,
            "retry": True,
        }

    return answer


def fkat(folder: Path) -> Callable[[Case], Answer]:
    """Return the errors of GPUs that fkat reads from the kernel log of each node. A stand-in of `dmesg` prints it."""
    xid = importlib.import_module("fkat.utils.cuda.xid")
    kernel, program = folder / "kernel", folder / "dmesg"
    program.write_text(f"#!/bin/sh\ncat '{kernel}'\n")
    program.chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    check, found = threading.Event(), Queue[set[int]]()
    threading.Thread(target=xid.detect_xid_errors, args=(check, found), daemon=True).start()

    def read(lines: list[str]) -> set[int]:
        stamped = (match[1] for line in lines if (match := _KERNEL.match(line)))
        kernel.write_text("".join(f"[Mon Nov 30 00:00:00 2026] {line}\n" for line in stamped))
        check.set()
        return found.get(timeout=30)

    def answer(case: Case) -> Answer:
        nodes: dict[int, set[int]] = {}
        for node in dict.fromkeys(log["node"] for log in case["logs"]):
            lines = [line for log in case["logs"] if log["node"] == node for line in log["text"].splitlines()]
            if any("NVRM: Xid" in line for line in lines) and (codes := read(lines)):
                nodes[node] = codes
        labels = [f"Xid {code}" for code in sorted(set().union(*nodes.values()))]
        return {**_NO_ANSWER, "labels": labels, "node": next(iter(nodes), None)}

    return answer


TOOLS: dict[str, tuple[str, Callable[[Path], Callable[[Case], Answer]]]] = {
    "nvrx": ("nvidia-resiliency-ext", nvrx),
    "dlrover": ("dlrover", dlrover),
    "fkat": ("fkat", fkat),
}


def main() -> int:
    name, corpus, out = sys.argv[1:]
    package, make = TOOLS[name]
    logging.disable(logging.CRITICAL)
    try:
        version = importlib.metadata.version(package)
        with tempfile.TemporaryDirectory() as folder:
            answer = make(Path(folder))
            with Path(corpus).open() as cases, Path(out).open("w") as answers:
                print(json.dumps({"version": version}), file=answers)
                for case in map(json.loads, cases):
                    began_s = time.perf_counter()
                    found = answer(case)
                    print(json.dumps({"id": case["id"], **found, "s": time.perf_counter() - began_s}), file=answers)
    except ImportError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # fkat's thread never ends
