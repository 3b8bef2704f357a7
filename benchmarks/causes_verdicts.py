"""Verdicts on the answers of `causes_peers.py`: the class, the node, and the decision about a restart.

A peer's label counts as right if it may mean the class of the case. So a coarse label is no disadvantage.
"""

from typing import Any

Case = dict[str, Any]
Answer = dict[str, Any]
_UNSPECIFIC = {"observed_exception"}
"""Labels that name no class: the line is an exception."""
_XIDS = {
    "gpu-memory-error": (48, 63, 64, 94, 95),
    "gpu-lost": (79,),
    "gpu-fault": (13, 31, 43, 45),
    "nvlink-error": (74, *range(144, 151)),
}
_MEANINGS: dict[str, tuple[str, ...]] = {
    "gpu_hardware_fault": ("gpu-memory-error", "gpu-lost", "gpu-fault", "nvlink-error"),
    "peer_gpu_memory_access_failure": ("nvlink-error", "gpu-fault"),
    "infra_policy_event": ("preempted", "node-failure"),
    "time_limit": ("time-limit",),
    "observed_exception": ("script-error",),
    "configuration_validation_failure": ("bad-argument",),
    "argument_validation_failure": ("bad-argument",),
    "artifact_or_path_not_found": ("missing-file",),
    "checkpoint_compatibility_mismatch": ("checkpoint-mismatch",),
    "shape_mismatch": ("shape-mismatch",),
    "filesystem_permission_denied": ("permission-denied",),
    "cuda_oom": ("gpu-out-of-memory",),
    "nan_or_inf": ("loss-nan",),
    "framework_crash": ("segmentation-fault", "illegal-instruction"),
    "linux_oom_kill_confirmation": ("host-out-of-memory",),
    "observed_distributed_operation_timeout": ("collective-timeout",),
    "nccl_rdma_port_error_event": ("infiniband-error",),
    "terminal_transport_failure_surface": ("gloo-connection", "nccl-connection"),
    "nccl_cascade": ("collective-timeout", "nccl-connection", "infiniband-error"),
    "CUDA OOM": ("gpu-out-of-memory",),
    "ECC Error": ("gpu-memory-error",),
    "node failed": ("node-failure",),
    **{f"Xid {code}": (kind,) for kind, codes in _XIDS.items() for code in codes},
}
"""The classes of the corpus that a label of a peer may mean. Any of them counts as right."""
_HEALS = {
    "gpu-memory-error", "gpu-lost", "gpu-fault", "nvlink-error", "collective-timeout", "nccl-connection",
    "infiniband-error", "rendezvous-timeout", "port-in-use", "gloo-connection", "io-error", "stale-file-handle",
    "object-store-unavailable", "time-limit", "preempted", "node-failure", "segmentation-fault", "stuck",
}  # fmt: skip
"""Classes that a restart may heal, by NVIDIA's decisions where they have the category.

Its decisions are in `attribution/restart_agent/l1/categories.json` of the resiliency extension's source after 0.7.0.
"""
_OPEN = {
    "loss-nan", "corrupt-file", "shared-memory-full", "dataloader-worker", "hub-download", "name-resolution", "no-gpu",
    "efa-error", "launch-failed", "interrupted", "file-locked",
}  # fmt: skip
"""Classes that are not judged: NVIDIA's decision and the rule of m5ws differ, or the decision depends on the case."""


def judge_class(case: Case, answer: Answer) -> str:
    """Return the verdict on the labels of a failure: right, wrong, unspecific or none."""
    labels = answer["labels"]
    if not labels:
        return "none"
    if any(case["class"] in _MEANINGS.get(label, (label,)) for label in labels):
        return "right"
    return "unspecific" if set(labels) <= _UNSPECIFIC else "wrong"


def judge_node(case: Case, answer: Answer) -> str:
    """Return the verdict on the node of a failure: right, wrong, none or open. The node of a named rank counts."""
    if case["root"] is None:
        return "open"
    nodes = {str(log["rank"]): log["node"] for log in case["logs"] if log["rank"] is not None}
    node = answer["node"] if answer["node"] is not None else nodes.get(str(answer["rank"]))
    return "none" if node is None else "right" if node == case["root"]["node"] else "wrong"


def judge_restart(case: Case, answer: Answer) -> str:
    """Return the verdict on the decision about a restart: right, vain, refused, none or open."""
    if case["class"] in _OPEN:
        return "open"
    if answer["retry"] is None:
        return "none"
    heals = case["class"] in _HEALS
    return "right" if answer["retry"] == heals else "refused" if heals else "vain"


def share(verdicts: list[str], verdict: str) -> str:
    """Return the percentage of a verdict. Open verdicts do not count."""
    counted = [each for each in verdicts if each != "open"]
    return f"{100 * counted.count(verdict) / len(counted):.1f}" if counted else "–"
