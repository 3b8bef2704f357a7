"""What `m5ws.toml` can say, with every default. `workspace` parses it; everybody else gets this record."""

import re
from typing import Literal

import msgspec

from m5ws.records.environment import Determinism
from m5ws.records.launch import Saving
from m5ws.records.run import Trainer


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class StoreOptions(_Section, frozen=True, kw_only=True):
    """How an S3 store is reached and written; a directory has none of it (store/s3/location.py).

    `integrity`: what lets the server refuse bytes that were damaged on the way. `stall_s`: seconds without progress
    after which a transfer is abandoned and done again on a new connection.
    """

    region: str | None = None
    endpoint_url: str | None = None
    sse: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    sse_kms_key: str | None = None
    storage_class: str | None = None
    integrity: Literal["signed", "crc64nvme", "unsigned"] = "signed"
    stall_s: float = 20.0


class StoreSettings(StoreOptions, frozen=True, kw_only=True):
    """`url`: a directory, relative to the workspace or absolute, or s3://bucket/prefix.

    `cache`: where copies of remote objects are kept, the user's cache directory if empty; `cache_limit`: how much of
    them, in bytes or as text ("50 GiB"), 0 for none.
    """

    url: str = ".m5ws/store"
    cache: str = ""
    cache_limit: str | int = "50 GiB"

    @property
    def cache_limit_bytes(self) -> int | None:
        """The limit in bytes; None if it is no size."""
        return size_bytes(self.cache_limit)


class CodeSettings(_Section, frozen=True, kw_only=True):
    """`exclude`: gitignore-style patterns of files that are not captured, beyond what git ignores."""

    exclude: tuple[str, ...] = ()


class ConfigSettings(_Section, frozen=True, kw_only=True):
    """`files`: YAML, JSON or TOML files (glob patterns) whose keys `diff` compares and `run --set` changes."""

    files: tuple[str, ...] = ("config.yaml",)


class TokenizerSettings(_Section, frozen=True, kw_only=True):
    """`path`: a file or folder; `probe`: the text whose token ids are pinned."""

    path: str | None = None
    probe: str = "The quick brown fox jumps over 13 lazy dogs.\n\tdef f(x): return x ** 2  # naïve 世界"


class DataSettings(_Section, frozen=True, kw_only=True):
    """`paths`: folders or files pinned by content, ignored by git or not; `dvc`: pin what DVC tracks too."""

    paths: tuple[str, ...] = ()
    dvc: bool = True


class EnvironmentSettings(_Section, frozen=True, kw_only=True):
    """Declared environment. `variables`: names of environment variables that are recorded.

    `allow_local`: distributions (patterns) that may be installed from files outside the workspace.
    """

    locks: tuple[str, ...] = ("constraints.txt", "requirements.txt", "uv.lock", "poetry.lock", "environment.yml")
    image: str | None = None
    wanted: dict[str, str] = {}
    variables: tuple[str, ...] = ()
    allow_local: tuple[str, ...] = ()


class RunSettings(_Section, frozen=True, kw_only=True):
    """Defaults of `m5ws run`. `outputs`: folders a script writes to, stored while it runs and when it ends.

    `work_dir`: where the scripts are at work, `m5ws/work` in the user's state directory if empty.
    `ignore`: what of them `reproduce` does not judge, beside `ignored.DEFAULTS`: `glob` or `glob:key`.
    """

    command: tuple[str, ...] = ()
    trainer: Trainer = "torchrun"
    nproc: int = 1
    seed: int | None = None
    checkpoint_every: int | None = None
    checkpoint_minutes: float | None = None
    fingerprint_every: int | None = None
    outputs: tuple[str, ...] = ()
    work_dir: str = ""
    ignore: tuple[str, ...] = ()
    environment: dict[str, str] = {}


class MlflowSettings(_Section, frozen=True, kw_only=True):
    """`tracking_uri` None is the workspace's own SQLite file, .m5ws/mlflow.db."""

    enabled: bool = True
    tracking_uri: str | None = None
    experiment: str | None = None


class RetentionSettings(_Section, frozen=True, kw_only=True):
    """Which checkpoints `gc` keeps: the `last` of a run, and those at steps that `every` divides. Without both: all."""

    last: int | None = None
    every: int | None = None


SEARCH_RULES = "2"
"""Changes with `secret_scan` and its rules, so that what older ones have passed is searched again."""


class SecretsSettings(_Section, frozen=True, kw_only=True):
    """`allow`: paths (glob patterns) that may be captured although they look like secrets."""

    allow: tuple[str, ...] = ()


def size_bytes(text: str | int) -> int | None:
    """Return a size in bytes, from "50 GiB", "1.5 TB" or a number of bytes; None if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B|B)?", str(text).strip())
    if found is None:
        return None
    amount, unit, binary = found.groups()
    return int(float(amount) * (1024 if binary else 1000) ** (" KMGT".index(unit) if unit else 0))


class Settings(_Section, frozen=True, kw_only=True):
    """The whole of `m5ws.toml`."""

    name: str = ""
    store: StoreSettings = StoreSettings()
    code: CodeSettings = CodeSettings()
    config: ConfigSettings = ConfigSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    data: DataSettings = DataSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    determinism: Determinism = Determinism()
    run: RunSettings = RunSettings()
    checkpoint: Saving = Saving()
    mlflow: MlflowSettings = MlflowSettings()
    retention: RetentionSettings = RetentionSettings()
    secrets: SecretsSettings = SecretsSettings()
