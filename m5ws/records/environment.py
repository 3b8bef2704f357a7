"""Records of environments, declared and observed, and of determinism settings."""

import re
from typing import Annotated, Literal

import msgspec

from m5ws.records.base import Digest, Record

ENVIRONMENT = "{environment}"
"""The folder of the Python environment, in the path of a loaded library."""
IMAGE = re.compile(r"[A-Za-z0-9][\w.:/-]*@sha256:[0-9a-f]{64}")
"""The name of an image by digest."""


def same_image(a: str | None, b: str | None) -> bool:
    """Return True if two images have the same digest (github.com/opencontainers/image-spec/blob/main/descriptor.md)."""
    digests = [(name or "").partition("@")[2] for name in (a, b)]
    return digests[0] == digests[1] != ""


class Declared(Record, frozen=True, kw_only=True):
    """The environment that the author asks for: lock files by digest, image by digest, versions by name."""

    locks: dict[str, Digest] = {}
    image: str | None = None
    wanted: dict[str, str] = {}


class Origin(Record, frozen=True, kw_only=True):
    """Origin of an installed distribution that does not come from an index by its name (PEP 610).

    `url` has no credentials; for files in the workspace (`inside`) it is their path there. `hash` is the SHA-256 of an
    archive, or of the files that were installed from a folder. `commit` was checked out of source control (`vcs`).
    """

    kind: Literal["archive", "directory", "editable", "vcs", "conda"]
    url: str = ""
    inside: bool = False
    vcs: str = ""
    hash: str | None = None
    commit: str | None = None
    subdirectory: str | None = None

    @property
    def local(self) -> bool:
        """True if it is installed from files outside the workspace, which no snapshot contains."""
        return self.url.startswith("file:") and not self.inside and self.kind != "conda"

    def __str__(self) -> str:
        if self.inside:
            return f"{f'files {self.hash[:12]} of ' if self.hash else ''}the workspace's {self.url}"
        exact = self.commit or self.hash
        return " ".join(filter(None, (self.kind, self.url, exact)))


class Observed(Record, tag="environment/1", frozen=True, kw_only=True):
    """Observed environment. `facts` maps a fact's name to its value; an absent fact has the value None.

    Names: python, platform, kernel, glibc, cpu.model, cpu.flags, cpu.capability, cpu.portable, cpu.count, torch,
    torch.cuda, torch.git, cuda.driver, cudnn, nccl, nccl.installed, libfabric, aws-ofi-nccl, efa.driver; gpu.model,
    gpu.count, gpu.driver, container.*, aws.ami, aws.instance_type; threads, threads.interop, deterministic, mkl,
    onednn, deepspeed, m5ws.code, rebuilt, loaded.NAME and owner.NAME for loaded libraries, conda.NAME for packages of
    conda, nccl.NAME for the facts of NCCL's log, variable.NAME for each allowed environment variable. `distributions`
    maps each installed distribution to its version, `origins` each distribution that comes from no index to its origin.
    `provides` maps distributions that list their files to their modules and folders: `numpy`, `google/auth` in a shared
    folder, `/lib/libiomp5.so` beside the folders of modules. `origins` and `provides` are None if they were not
    observed.
    """

    facts: dict[str, str | None] = {}
    distributions: dict[str, str] = {}
    origins: dict[str, Origin] | None = None
    provides: dict[str, tuple[str, ...]] | None = None


class Determinism(Record, frozen=True, kw_only=True):
    """Settings that are applied in every rank before the script starts. They are part of the snapshot.

    `level`: "portable" is "strict", and also pins the instructions that CPU libraries choose by the processor
    (`m5ws.records.portable`). `fill_uninitialized` has torch fill the result of `torch.empty`, so that code which reads
    it gives equal bits; without, such code shows as a divergence. It costs memory bandwidth: DeepSpeed allocates
    gigabytes a step.
    """

    level: Literal["portable", "strict", "warn", "off"] = "strict"
    threads: Annotated[int, msgspec.Meta(ge=1)] = 1
    python_hash_seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0
    tf32: bool = False
    fill_uninitialized: bool = False
    cublas_workspace: str = ":4096:8"
    nccl_algo: str | None = "Ring"
