"""Records of environments, declared and observed, and of determinism settings."""

from typing import Literal

from m5ws.records.base import Digest, Record


class Declared(Record, frozen=True, kw_only=True):
    """What the author asked for: lock files by digest, image by digest, wanted versions by name."""

    locks: dict[str, Digest] = {}
    image: str | None = None
    wanted: dict[str, str] = {}


class Origin(Record, frozen=True, kw_only=True):
    """Where an installed distribution came from that no index gave by its name (PEP 610).

    `url` has no credentials; of files inside the workspace (`inside`) it is their path there. `hash` is the SHA-256 of
    an archive, or of what was installed from a folder; `commit` what was checked out of source control (`vcs`).
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
        """Whether it is installed from files outside the workspace, which no snapshot holds."""
        return self.url.startswith("file:") and not self.inside and self.kind != "conda"

    def __str__(self) -> str:
        if self.inside:
            return f"{f'files {self.hash[:12]} of ' if self.hash else ''}the workspace's {self.url}"
        exact = self.commit or self.hash
        return " ".join(filter(None, (self.kind, self.url, exact)))


class Observed(Record, tag="environment/1", frozen=True, kw_only=True):
    """What was there. `facts` maps a fact's name to its value; what is absent is None, not missing.

    Names: python, platform, kernel, glibc, cpu.model, cpu.flags, cpu.capability, cpu.portable, cpu.count, torch,
    torch.cuda, torch.git, cuda.driver, cudnn, nccl, nccl.installed, libfabric, aws-ofi-nccl, efa.driver, gpu.model,
    gpu.count, gpu.driver, container.image, aws.ami, aws.instance_type, threads, threads.interop, deterministic, mkl,
    onednn, deepspeed, deepspeed.cpu_adam (digest of the built op), m5ws.code, rebuilt, variable.NAME for each allowed
    environment variable. `distributions` maps each installed distribution to its version, `origins` those that no
    index gave to where they came from, `provides` those that list their files to the modules and folders that imports
    and the loader find there: `numpy`, `google/auth` in a shared folder, `/lib/libiomp5.so` beside the folders of
    modules. `origins` and `provides` are None where nobody looked.
    """

    facts: dict[str, str | None] = {}
    distributions: dict[str, str] = {}
    origins: dict[str, Origin] | None = None
    provides: dict[str, tuple[str, ...]] | None = None


class Determinism(Record, frozen=True, kw_only=True):
    """Settings that are applied in every rank before the script starts, and are part of the snapshot.

    `level`: "portable" is "strict", and pins what CPU libraries choose by the processor (`m5ws.records.determinism`).
    `fill_uninitialized` has torch fill what `torch.empty` returns, so that code which reads it gives equal bits; off,
    such code shows as a divergence. It costs memory bandwidth: DeepSpeed allocates gigabytes a step.
    """

    level: Literal["portable", "strict", "warn", "off"] = "strict"
    threads: int = 1
    python_hash_seed: int = 0
    tf32: bool = False
    fill_uninitialized: bool = False
    cublas_workspace: str = ":4096:8"
    nccl_algo: str | None = "Ring"
