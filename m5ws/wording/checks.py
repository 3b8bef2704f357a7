"""Remedies of failed checks by name, for failures whose error has no hint, and details of absent features."""

REMEDIES = {
    "workspace": "Correct the file, or make it readable.",
    "python": "Create an environment with this version of Python, and install m5ws there.",
    "git": "Install git, and correct the configuration that git's message names.",
    "gpus": "Install NVIDIA's driver, or load its kernel module: modprobe nvidia",
    "efa": "Install AWS's EFA software: driver, libfabric and aws-ofi-nccl. Without them, NCCL uses TCP.",
    "store": "Give this user write permission to the store, or change [store] url in m5ws.toml.",
    "tracking": "Move the file away, or change [mlflow] tracking_uri in m5ws.toml.",
}
CORRECT = "Correct the cause that the message names."
INSTALL = "Run pip install --upgrade '{package}'"
NO_ANSWER = "Repeat the command with a longer --timeout. If the check hangs again, examine the service and the network."
NO_MOUNT = "mounts need CAP_SYS_ADMIN. Attempts that run at the same time have different work directories"
NO_STORE = "{path} does not exist. The first snapshot creates the store"
