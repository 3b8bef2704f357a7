"""Environment variables that may be recorded: an allow-list.

An exact name that is not set is recorded as absent; patterns (`NCCL_*`) match variables that are set. Credentials are
removed from URLs in values.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from m5ws.errors import ConfigError

BUILT_IN = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "CUDNN_*",
    "DNNL_*",
    "DS_ACCELERATOR",
    "FI_*",
    "GOMP_*",
    "KMP_*",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MKL_*",
    "NCCL_*",
    "NPY_*",
    "NVIDIA_TF32_OVERRIDE",
    "OFI_NCCL_*",
    "OMP_*",
    "ONEDNN_*",
    "OPENBLAS_*",
    "PYTHONHASHSEED",
    "PYTORCH_*",
    "RDMAV_*",
    "TOKENIZERS_PARALLELISM",
    "TORCH_*",
    "TORCHINDUCTOR_*",
    "TRITON_*",
)
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASS|CREDENTIALS?|AUTH|KEY|APIKEY)(_|$)", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")


def allowed(names: Sequence[str]) -> tuple[str, ...]:
    """Return the built-in names and patterns with `names` added. Raises ConfigError for the name of a secret."""
    for name in names:
        if _SECRET.search(name) or name.strip("?*") == "":
            raise ConfigError(
                f"environment.variables names {name!r}, which can contain a secret",
                hint="Recorded values are never deleted, and every reader of the store sees them: remove the name.",
            )
    return tuple(dict.fromkeys((*BUILT_IN, *names)))


def facts(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return `variable.NAME` facts for the variables on the list; None for an exact name that is not set."""
    exact = [name for name in names if not set(name) & set("*?[")]
    matched = [
        name
        for name in environment
        if any(fnmatchcase(name, pattern) for pattern in names) and not _SECRET.search(name)
    ]
    values = {name: environment.get(name) for name in (*exact, *matched)}
    return {
        f"variable.{name}": None if value is None else _CREDENTIALS.sub("", value) for name, value in values.items()
    }
