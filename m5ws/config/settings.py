"""Keys of `m5ws.toml` and their defaults. `workspace` has the file parsed, and hands out this record."""

import re
from typing import Annotated, Any, Literal

import msgspec

from m5ws.records.cause import Rule
from m5ws.records.environment import Determinism
from m5ws.records.launch import Saving
from m5ws.records.run import Trainer

_MOST = 2**31 - 1
"""Engines have numbers of 32 bits."""
_AtLeast0 = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_AtLeast1 = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_Devices = Annotated[int, msgspec.Meta(ge=0, le=128)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class StoreOptions(_Section, frozen=True, kw_only=True):
    """Options of a store in S3 (store/s3/location.py); a directory has none.

    `integrity`: how the server detects uploads that were damaged on the way. `stall_s`: seconds without progress after
    which a transfer is cancelled and retried on a new connection.
    """

    region: str | None = None
    endpoint_url: str | None = None
    sse: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    sse_kms_key: str | None = None
    storage_class: str | None = None
    integrity: Literal["signed", "crc64nvme", "unsigned"] = "signed"
    stall_s: _Positive = 20.0


class StoreSettings(StoreOptions, frozen=True, kw_only=True):
    """`url`: a directory, relative to the workspace or absolute, or s3://bucket/prefix.

    `cache`: the directory for copies of remote objects; if empty, the user's cache directory. `cache_limit`: their
    largest size in total, in bytes or as text ("50 GiB"); 0 switches the cache off.
    """

    url: str = ".m5ws/store"
    cache: str = ""
    cache_limit: str | int = "50 GiB"

    @property
    def cache_limit_bytes(self) -> int | None:
        """The limit in bytes; None if the text is not a size."""
        return size_bytes(self.cache_limit)


class CodeSettings(_Section, frozen=True, kw_only=True):
    """`exclude`: gitignore-style patterns of files that are not captured, in addition to files that git ignores."""

    exclude: tuple[str, ...] = ()


class ConfigSettings(_Section, frozen=True, kw_only=True):
    """`files`: YAML, JSON or TOML files (glob patterns) whose keys `diff` compares and `run --set` changes."""

    files: tuple[str, ...] = ("config.yaml",)


class TokenizerSettings(_Section, frozen=True, kw_only=True):
    """`path`: a file or folder. `probe`: the text whose token ids are pinned."""

    path: str | None = None
    probe: str = "The quick brown fox jumps over 13 lazy dogs.\n\tdef f(x): return x ** 2  # naïve 世界"


class S3Data(_Section, frozen=True, kw_only=True):
    """A dataset that stays in S3. `path`: its name, a path of the workspace. `url`: s3://bucket/prefix.

    `endpoint_url`: the server, if it is not AWS.
    """

    path: str
    url: str
    endpoint_url: str | None = None


class DataSettings(_Section, frozen=True, kw_only=True):
    """`paths`: folders or files pinned by content, also if git ignores them. `dvc`: pin DVC's datasets too.

    `stay`: datasets of DVC that stay in DVC's remote. `s3`: datasets that stay in S3. m5ws copies neither into the
    store: a script reads them by `m5ws.data`.
    """

    paths: tuple[str, ...] = ()
    dvc: bool = True
    stay: tuple[str, ...] = ()
    s3: tuple[S3Data, ...] = ()


class EnvironmentSettings(_Section, frozen=True, kw_only=True):
    """Declared environment. `variables`: names of environment variables to record.

    `allow_local`: name patterns of distributions that may be installed from files outside the workspace.
    """

    locks: tuple[str, ...] = ("constraints.txt", "requirements.txt", "uv.lock", "poetry.lock", "pylock.toml",
                              "environment.yml", "conda-lock.yml", "pixi.lock")  # fmt: skip
    image: str | None = None
    wanted: dict[str, str] = {}
    variables: tuple[str, ...] = ()
    allow_local: tuple[str, ...] = ()


class StuckSettings(_Section, frozen=True, kw_only=True):
    """Limits of the time without progress of a rank, in seconds (supervision/progress.py).

    `floor_s`: the shortest limit. If it is given, the time of steps is learnt also before the script names a phase.
    """

    floor_s: _Positive | None = None
    ceiling_s: _Positive = 1800.0


class RestartSettings(_Section, frozen=True, kw_only=True):
    """Restarts after a failure. `max`: their number until a checkpoint advances; 0: none.

    `same_cause`: the number of times that a cause may repeat.
    """

    max: _AtLeast0 = 0
    same_cause: _AtLeast0 = 1


class LossSettings(_Section, frozen=True, kw_only=True):
    """Rules for the loss of rank 0. Each rule gives one notice in an attempt. The rules in `stop` end the attempt.

    `nan`, which needs no key: the loss is NaN or infinite. `jump`: the loss is this number of times the median of the
    100 steps before. `flat`: the loss has had the same bits in this number of steps.
    """

    jump: Annotated[float, msgspec.Meta(gt=1)] | None = None
    flat: Annotated[int, msgspec.Meta(ge=2)] | None = None
    stop: tuple[Literal["nan", "jump", "flat"], ...] = ()


class RunSettings(_Section, frozen=True, kw_only=True):
    """Defaults of `m5ws run`. `outputs`: folders that a script writes to, stored while it runs and when it ends.

    `directory`: the folder of the workspace in which the command starts.
    `work_dir`: the folder in which scripts run; if empty, `m5ws/work` in the user's state directory.
    `keep_work`: output files stay in the work directory of a finished attempt, though the store has them.
    `observe`: record the steps of scripts that do not use m5ws.session.
    `inexact`: the effect of a resume that repeats a step with other values: a notice, or the end of the attempt.
    `stuck`: limits of the time without progress; `false` switches the watch off, `true` stands for the defaults.
    `restart`: new attempts after a failure. `loss`: rules for the loss.
    `inputs`: the processes of a run may read all files, or pinned files alone.
    `record_user`: the record of a run has the user and the host that started the run.
    `preflight`: "node" checks each node before the processes of an attempt start (`m5ws preflight`).
    `results`: the results that `reproduce` and `certify` judge: `glob`, `glob:key` or `metric:NAME`
    (`result_patterns`).
    """

    command: tuple[str, ...] = ()
    directory: str = "."
    trainer: Trainer | None = None
    nproc: _AtLeast1 = 1
    seed: _AtLeast0 | None = None
    checkpoint_every: _AtLeast1 | None = None
    checkpoint_minutes: _Positive | None = None
    fingerprint_every: _AtLeast0 | None = None
    outputs: tuple[str, ...] = ()
    work_dir: str = ""
    keep_work: bool = False
    results: tuple[str, ...] = ()
    observe: bool = True
    record_user: bool = True
    inexact: Literal["warn", "stop"] = "warn"
    stuck: StuckSettings | bool = True
    restart: RestartSettings = RestartSettings()
    loss: LossSettings = LossSettings()
    inputs: Literal["recorded", "pinned"] = "recorded"
    preflight: Literal["off", "node"] = "off"
    environment: dict[str, str] = {}

    @property
    def stuck_limits(self) -> StuckSettings | None:
        """The limits of the time without progress; None if nobody watches."""
        if isinstance(self.stuck, bool):
            return StuckSettings() if self.stuck else None
        return self.stuck


class MlflowSettings(_Section, frozen=True, kw_only=True):
    """`tracking_uri` None stands for the workspace's own SQLite file, .m5ws/mlflow/mlflow.db."""

    enabled: bool = True
    tracking_uri: str | None = None
    experiment: str | None = None
    store_id: Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9.-]*\Z")] | None = None


class RetentionSettings(_Section, frozen=True, kw_only=True):
    """Checkpoints that `gc` keeps: the `last` of a run, and checkpoints whose step `every` divides. Default: all."""

    last: _AtLeast1 | None = None
    every: _AtLeast1 | None = None


WARN_S = 300
"""Seconds between the warning of a scheduler's time limit and the limit."""


class _Cluster(_Section, frozen=True, kw_only=True, tag_field="engine"):
    """A cluster for `--on NAME`.

    `python`: the interpreter with m5ws on the nodes; if empty, the submitter's. `scratch`: the parent of the folders of
    agents on a node's local disk, where `$NAME` is a variable of the node; if empty, $TMPDIR or /tmp. `setup`: lines of
    shell before the agent. `shared`: folders that all nodes and the submitter mount at the same path. `restarts`: the
    number of automatic restarts of a job, after a time limit, a preemption or the loss of a node. `cache`: the cache of
    the nodes, in the place of `[store] cache`. `region`: the AWS region of the nodes, which they get as
    AWS_DEFAULT_REGION. m5ws counts bytes that cross regions by this key.
    """

    python: str = ""
    scratch: str = ""
    setup: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    restarts: _AtLeast0 = 8
    cache: str = ""
    region: str | None = None


class SlurmCluster(_Cluster, frozen=True, kw_only=True, tag="slurm"):
    """A cluster with Slurm. Its keys are options of sbatch, and `directives` has more options.

    `login`: the host with Slurm's commands, by ssh; without it, this machine. `warn_s`: the run saves a last checkpoint
    this number of seconds before its time limit. `prefetch`: a partition without GPUs. A job there fills
    `[store] cache` first, which must be in a folder of `shared`.
    """

    login: str | None = None
    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    time: str | None = None
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    output: str | None = None
    directives: tuple[str, ...] = ()
    warn_s: int = WARN_S
    prefetch: str | None = None


class HostsCluster(_Cluster, frozen=True, kw_only=True, tag="hosts"):
    """Hosts without a scheduler, as ssh names them. `master`: the address of the first host for the other hosts."""

    hosts: tuple[str, ...]
    master: str | None = None


class BatchQueue(_Section, frozen=True, kw_only=True):
    """A queue of AWS Batch in another region, or with other instances. `instance_type` None: the queue chooses."""

    queue: str
    region: Annotated[str, msgspec.Meta(min_length=1)]
    instance_type: str | None = None


class BatchCluster(_Cluster, frozen=True, kw_only=True, tag="batch"):
    """A queue of AWS Batch. `image`, by digest, has m5ws and the packages of the training; `python` is in the image.

    `region`: of the queue. `cpus_per_node`, `memory_mib`, `gpus_per_node`: the part of an instance that a container
    reserves. `efa`: the number of EFA devices of an instance. `shm_mib`: the size of /dev/shm. `job_role`: the ARN of
    the containers' role. `timeout_s`: the time limit of an attempt, before which the run saves a last checkpoint, by
    `warn_s`. `mounts`: more folders of an instance, which are no shared folders. `tags`: tags of job definitions and
    jobs. `elsewhere`: the next queues, in order, for a job that got no nodes in `patience_s` seconds, lacks capacity,
    or is as long without an event in the store (`library/regions.py`).
    """

    python: str = "python3"
    restarts: Annotated[int, msgspec.Meta(ge=0, le=9)] = 8
    region: Annotated[str, msgspec.Meta(min_length=1)]
    queue: str
    image: Annotated[str, msgspec.Meta(pattern="@sha256:[0-9a-f]{64}$")]
    cpus_per_node: _AtLeast1
    memory_mib: _AtLeast1
    instance_type: str | None = None
    gpus_per_node: _AtLeast0 = 0
    efa: _Devices = 0
    shm_mib: _AtLeast1 | None = None
    job_role: str | None = None
    timeout_s: Annotated[int, msgspec.Meta(ge=60, le=_MOST)] | None = None
    warn_s: _AtLeast1 = WARN_S
    mounts: tuple[Annotated[str, msgspec.Meta(pattern="^/")], ...] = ()
    tags: dict[str, str] = {}
    elsewhere: tuple[BatchQueue, ...] = ()
    patience_s: _AtLeast1 = 1800


class KubernetesCluster(_Cluster, frozen=True, kw_only=True, tag="kubernetes"):
    """A Kubernetes with JobSet. `image`, by digest, has bash, m5ws and the packages of the training.

    `context`: of the kubeconfig; None stands for the current context. `namespace`: None stands for the context's.
    `queue`: the local queue of Kueue. `cpus_per_node`, `memory_mib`, `gpus_per_node`: the resources of a pod. `efa`:
    its number of EFA devices. `hugepages_mib`: its huge pages of 2 MiB. `shm_mib`: the size of /dev/shm. `scratch` is
    an empty volume, unless another volume contains it. `claims`: the PersistentVolumeClaim of a folder in the pods.
    Without it, a folder of `shared`, or of `mounts`, is the folder of the node. `service_account`: of the pods.
    `secrets`: Secrets whose keys become variables. `node_selector`, `tolerations`: labels of nodes, and keys of taints.
    `grace_s`: seconds between a request to end a pod and its end. `labels`: of the JobSet and its pods.
    """

    python: str = "python3"
    scratch: str = "/m5ws"
    image: Annotated[str, msgspec.Meta(pattern="@sha256:[0-9a-f]{64}$")]
    cpus_per_node: _AtLeast1
    memory_mib: _AtLeast1
    context: str | None = None
    namespace: str | None = None
    queue: str | None = None
    gpus_per_node: _AtLeast0 = 0
    efa: _Devices = 0
    hugepages_mib: _AtLeast0 = 0
    shm_mib: _AtLeast1 | None = None
    mounts: tuple[str, ...] = ()
    claims: dict[str, str] = {}
    service_account: str | None = None
    secrets: tuple[str, ...] = ()
    node_selector: dict[str, str] = {}
    tolerations: tuple[str, ...] = ()
    grace_s: _AtLeast1 = 150
    labels: dict[str, str] = {}


class _TaskFile(_Cluster, frozen=True, kw_only=True):
    """A program of others that starts agents by a task file, which its user submits.

    `task`: keys of the file as the program names them, such as `resources`. m5ws checks none of them.
    """

    python: str = "python3"
    task: dict[str, Any] = {}


class SkyPilotCluster(_TaskFile, frozen=True, kw_only=True, tag="skypilot"):
    """SkyPilot, by a task file for `sky jobs launch`."""


class DstackCluster(_TaskFile, frozen=True, kw_only=True, tag="dstack"):
    """dstack, by a task file for `dstack apply`."""


Cluster = SlurmCluster | HostsCluster | BatchCluster | KubernetesCluster | SkyPilotCluster | DstackCluster

SEARCH_RULES = "2"
"""Version of the rules of `secret_scan`. A new version has files searched again that an older version has passed."""


class NotifySettings(_Section, frozen=True, kw_only=True):
    """Messages about runs. `urls`: variables, as "${NAME}", each with a URL of apprise. `command`: a program that gets
    each message as JSON.

    `on`: the events with a message. `restarted`: a scheduler ended an attempt, and starts the agents again.
    """

    urls: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    on: tuple[Literal["failed", "finished", "restarted"], ...] = ("failed",)


class SecretsSettings(_Section, frozen=True, kw_only=True):
    """`allow`: paths (glob patterns) that may be captured although they look like secrets."""

    allow: tuple[str, ...] = ()


def size_bytes(text: str | int) -> int | None:
    """Return a size in bytes, from "50 GiB", "1.5 TB" or a number of bytes; None if the text is not a size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B|B)?", str(text).strip())
    if match is None:
        return None
    amount, unit, binary = match.groups()
    return int(float(amount) * (1024 if binary else 1000) ** (" KMGT".index(unit) if unit else 0))


class Settings(_Section, frozen=True, kw_only=True):
    """The whole of `m5ws.toml`. `extends`: the profile of a team, absolute or relative to the workspace."""

    name: str = ""
    extends: str | None = None
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
    notify: NotifySettings = NotifySettings()
    secrets: SecretsSettings = SecretsSettings()
    causes: dict[str, Rule] = {}
    clusters: dict[str, Cluster] = {}
