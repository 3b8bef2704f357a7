"""The workspace: the directory with `m5ws.toml`, its settings, and the adapters that they select.

This is the only module that reads environment variables (`VARIABLES` lists them) and that chooses adapters. Each
adapter is imported in the method that makes it, so that a command imports only the adapters that it uses. Every
directory under `.m5ws` is created at its first write.
"""

import logging
import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m5ws.access import user_name
from m5ws.config import reader
from m5ws.config.settings import Settings
from m5ws.errors import MissingExtra, NotFound, UsageError
from m5ws.launch.interface import Launcher
from m5ws.records.launch import ALONE, Observing, Place
from m5ws.records.store import Format
from m5ws.store.interface import ObjectStore
from m5ws.tracking.interface import Tracker

if TYPE_CHECKING:
    from m5ws.agent.ports import Ports
    from m5ws.checkpoints.export.export import Tools
    from m5ws.environment.observe.machine import Machine
    from m5ws.environment.rebuild.virtual_environments import VirtualEnvironments
    from m5ws.preflight.node import Machine as CheckedMachine
    from m5ws.records.job import Job
    from m5ws.repository.repository import Repository
    from m5ws.snapshot.sources.dvc import Dvc
    from m5ws.snapshot.sources.git import Git
    from m5ws.snapshot.sources.git_history import GitHistory
    from m5ws.snapshot.sources.tokenizer import Tokenizers
    from m5ws.supervision.notify import Notifier

_log = logging.getLogger(__name__)
FILE, STATE = "m5ws.toml", ".m5ws"
VARIABLES = {
    "XDG_CACHE_HOME": "Parent of the caches: machine facts from torch, copies of remote objects, environments.",
    "XDG_STATE_HOME": "Parent of the work directories of runs, if `m5ws.toml` sets none.",
    "M5WS_CONTAINER_IMAGE": "Image by digest of the container around m5ws, set by the program that starts it.",
    "MLFLOW_TRACKING_URI": "The MLflow server, if `m5ws.toml` sets none.",
}


@dataclass(frozen=True)
class Workspace:
    """A workspace with its settings, and the environment that launched processes inherit."""

    root: Path
    settings: Settings
    environment: Mapping[str, str] = field(repr=False)
    scratch: Path | None = None
    """A folder on the local disk of a node, in the place of `.m5ws` and of the folder for work directories."""
    job: "Job | None" = None
    """The job of an engine that runs this process."""
    place: Place = ALONE
    """The place of this machine among the nodes of a job."""

    def __post_init__(self) -> None:
        if urls := self.settings.notify.urls:
            from m5ws import secret_scan

            secret_scan.learn(filter(None, (self.environment.get(reader.VARIABLE.sub(r"\1", url)) for url in urls)))

    @property
    def name(self) -> str:
        """The display name: `name` in `m5ws.toml`, or the directory's name."""
        return self.settings.name or self.root.name

    @property
    def home(self) -> Path:
        """The directory `.m5ws` with all of m5ws's own files. `prepare` creates it."""
        return self.root / STATE if self.scratch is None else self.scratch

    @property
    def index_path(self) -> Path:
        """The file with the digests of unchanged files."""
        return self.home / "index"

    def attempt_dir(self, run_id: str, attempt: int) -> Path:
        """Return the directory of an attempt: its spools, logs and outputs."""
        return self.home / "runs" / run_id / f"{attempt:04d}"

    @property
    def store_url(self) -> str:
        """The store's URL with all options to open it. A relative path is resolved against the workspace."""
        return self._located(self.settings.store.url)

    def _located(self, url: str) -> str:
        from m5ws.store import url_of

        if "://" not in url:
            return str(self.root / url)
        # The options of the workspace's own store do not apply to another store.
        own = url == self.settings.store.url
        return url_of(url, self.settings.store) if own else url

    @property
    def cache_dir(self) -> Path | None:
        """The cache of the store's objects. None for a store in a directory, unless the settings name a cache.

        An agent always has one, because all nodes read the store.
        """
        if named := self.settings.store.cache:
            return self.root / Path(named).expanduser()
        return None if self.store_dir is not None and self.scratch is None else self._user_cache

    @property
    def files(self) -> tuple[Path, int]:
        """The directory of the cache for remote datasets, and its maximum size in bytes. All stores have the cache."""
        return self.cache_dir or self._user_cache, self.settings.store.cache_limit_bytes or 0

    @property
    def store_dir(self) -> Path | None:
        """The directory of the store; None for a store in a bucket."""
        url = self.store_url.removeprefix("file://")
        return None if "://" in url else Path(url)

    @property
    def environments_dir(self) -> Path:
        """The directory of rebuilt environments."""
        return self._user_cache.with_name("m5ws-environments")

    @property
    def _user_cache(self) -> Path:
        """The cache that all workspaces of a user share on this machine, or all agents beside their scratch folders."""
        if self.scratch is not None:
            return self.scratch.parent / "cache"
        return self._user_dir("XDG_CACHE_HOME", ".cache") / "m5ws"

    @property
    def work_root(self) -> Path:
        """The parent of the work directories of attempts. All workspaces of a user share it."""
        if self.scratch is not None:
            return self.scratch / "work"
        if named := self.settings.run.work_dir:
            return self.root / Path(named).expanduser()
        return self._user_dir("XDG_STATE_HOME", ".local/state") / "m5ws" / "work"

    def _user_dir(self, variable: str, default: str) -> Path:
        # The XDG base directory specification ignores a path that is not absolute.
        base = Path(self.environment.get(variable, ""))
        return base if base.is_absolute() else Path.home() / default

    @property
    def tracking_uri(self) -> str:
        """The MLflow store: of `m5ws.toml`, else of MLFLOW_TRACKING_URI, else a file of this workspace."""
        own = f"sqlite:///{self.root / STATE / 'mlflow' / 'mlflow.db'}"
        return self.settings.mlflow.tracking_uri or self.environment.get("MLFLOW_TRACKING_URI") or own

    def prepare(self) -> Path:
        """Create `.m5ws` with its ignore rule if it does not exist, and return it."""
        self.home.mkdir(exist_ok=True)
        ignore = self.home / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        return self.home

    def repository(
        self,
        url: str | None = None,
        *,
        create: bool = False,
        for_dry_run: bool = False,
        near: bool = True,
        store_format: Format | None = None,
    ) -> "Repository":
        """Open the store, or create it in `store_format` with `create`. Raises NotFound if it does not exist.

        `url` names another store. A relative path is resolved against the workspace. With `for_dry_run`, a missing
        store is returned as it would be created. Without `near`, and of another store, all data is read from the store
        itself and not from this machine's cache.
        """
        from m5ws.repository.repository import Repository
        from m5ws.store import open_store
        from m5ws.store.s3 import joined

        store = open_store(self.store_url if url is None else self._located(url))
        if create or for_dry_run:
            self.prepare()
        joined.recall(self.home / "joined", store)
        read = self._near(store) if near and url is None else store
        if create:
            # Data is not written into a store that no longer exists: its format is read from the store itself.
            repository = Repository.create(store, store_format).with_store(read)
            joined.join(self.home / "joined", store)
        else:
            try:
                repository = Repository.open(read)
            except NotFound as error:
                if not for_dry_run:
                    raise NotFound(str(error), hint="`m5ws snapshot` creates the store.") from error
                repository = Repository.for_dry_run(read, store_format)
        if repository.note:
            _log.warning(repository.note)
        return repository

    def _near(self, store: ObjectStore) -> ObjectStore:
        from m5ws.store.cache.cache import cached

        limit_bytes = self.settings.store.cache_limit_bytes or 0
        references = self._user_cache.with_name("m5ws-references")
        return store if self.cache_dir is None else cached(store, self.cache_dir, limit_bytes, references)

    def open_repository(self, *, create: bool = False) -> "Repository":
        """Open the store, and deliver the data that ended runs left on this machine. Raises NotFound."""
        repo = self.repository(create=create)
        self.deliver(repo)
        return repo

    def deliver(self, repo: "Repository") -> None:
        """Deliver the ledgers that ended runs left on this machine, and in the background their pages."""
        from m5ws.agent import recovery, untracked

        recovery.deliver(repo, self.home, self.kept)
        untracked.deliver(self.tracker, self.home)

    def kept(self, folder: Path) -> "Repository":
        """Open a store in a directory of this machine. Raises NotFound if it does not exist."""
        from m5ws.repository.repository import Repository
        from m5ws.store import open_store

        return Repository.open(open_store(os.fspath(folder)))

    def source(self) -> "Git":
        from m5ws.snapshot.sources.git import Git

        return Git(self.environment)

    def author(self) -> str | None:
        """Return git's user, the author of notes; None without git, a repository or a user."""
        from m5ws.snapshot.sources.git import Git, GitError

        try:
            return Git(self.environment).author(self.root)
        except GitError:
            return None

    def history(self) -> "GitHistory":
        """Return the commit history of the repository around this workspace, which is read on use."""
        from m5ws.snapshot.sources.git_history import GitHistory

        return GitHistory(self.root)

    def datasets(self) -> "Dvc | None":
        """Return the source of datasets that DVC tracks; None if `m5ws.toml` disables it."""
        if not self.settings.data.dvc:
            return None
        from m5ws.snapshot.sources.dvc import Dvc

        return Dvc()

    def tokenizers(self) -> "Tokenizers":
        """Return the probe for the token ids of the probe text."""
        from m5ws.snapshot.sources.tokenizer import Tokenizers

        return Tokenizers()

    def observer(self) -> "Machine":
        """Return the observer of this machine, as this workspace's training processes will see it."""
        from m5ws.environment.observe.machine import Machine

        return Machine(
            root=self.root, variable_names=self.settings.environment.variables, base=self.environment, provides=False
        )

    def environments(self) -> "VirtualEnvironments":
        """Return the builder of recorded environments."""
        from m5ws.environment.rebuild.virtual_environments import VirtualEnvironments
        from m5ws.launch import local

        return VirtualEnvironments(self.environments_dir, self.environment, local.LocalLauncher, self._observing())

    def _observing(self) -> Observing:
        return Observing(root=str(self.root), variables=self.settings.environment.variables)

    def launcher(self) -> Launcher:
        """Return the launcher of this machine. In an image, processes get the variables that are recorded.

        If the store is a bucket, they get the variables with its credentials too.
        """
        from m5ws.containers.launcher import ContainerLauncher
        from m5ws.environment.observe import variables
        from m5ws.launch import local

        names = variables.allowed(self.settings.environment.variables)
        credentials = ("AWS_*",) if self.store_dir is None else ()
        homes = self._user_cache.with_name("m5ws-homes")
        return ContainerLauncher(local.LocalLauncher(self.environment), self.environment, (*names, *credentials), homes)

    def tracker(self, uri: str | None = None) -> Tracker | None:
        """Return the MLflow tracker, or the tracker of another MLflow at `uri`; None if `m5ws.toml` disables it."""
        if uri is None and not self.settings.mlflow.enabled:
            return None
        from m5ws.tracking.mlflow.tracker import Mlflow

        experiment = self.settings.mlflow.experiment or self.name
        store_id = self.settings.mlflow.store_id
        return Mlflow(uri or self.tracking_uri, experiment, self.store_url, self.home / "runs", self._remedy, store_id)

    @property
    def _remedy(self) -> str:
        """The command that delivers to MLflow, from the current directory, and the variables that it needs."""
        from m5ws.secret_scan import masked

        words = ["m5ws", "ui", "--deliver"]
        if not Path.cwd().is_relative_to(self.root):
            words[1:1] = ["-C", str(self.root)]
        needed = [name for name in sorted(self.environment) if name.startswith("MLFLOW_TRACKING_")]
        uri = f"MLFLOW_TRACKING_URI={self.environment.get('MLFLOW_TRACKING_URI')}"
        if self.settings.mlflow.tracking_uri or masked(uri) == uri:
            words[:0] = [uri] if "MLFLOW_TRACKING_URI" in needed and not self.settings.mlflow.tracking_uri else []
            needed = [name for name in needed if name != "MLFLOW_TRACKING_URI"]
        return f"`{shlex.join(words)}`" + (f" (with {', '.join(needed)} as in this environment)" if needed else "")

    def ports(self, repo: "Repository") -> "Ports":
        """Return the ports for operations on runs."""
        from m5ws.agent.ports import Ports

        return Ports(
            repo=repo,
            launcher=self.launcher(),
            observing=self._observing(),
            tracker=self.tracker(),
            environment=self.environment,
            work_root=self.work_root,
            allow_local=self.settings.environment.allow_local,
            history=self.history(),
            keep_work=self.settings.run.keep_work,
            inexact=self.settings.run.inexact,
            inputs=self.settings.run.inputs,
            stuck=self.settings.run.stuck_limits,
            restart=self.settings.run.restart,
            loss=self.settings.run.loss,
            preflight=self.machine(repo).check if self.settings.run.preflight == "node" else None,
            job=self.job,
            place=self.place,
            files=self.files,
            causes=self.settings.causes,
            notifier=self.notifier(),
            starts_dir=self.scratch.parent if self.scratch is not None else None,
            **self.creator(),
        )

    def notifier(self) -> "Notifier":
        """Return the sender of messages about runs."""
        from m5ws.supervision.notify import Notifier

        return Notifier(self.settings.notify, self.home / "notify", self.root, self.environment)

    def machine(self, repo: "Repository") -> "CheckedMachine":
        """Return this machine for checks before a run, with the folders that a run writes to."""
        from m5ws.preflight.node import Machine

        return Machine(
            repo=repo, home=self.home, work_root=self.work_root, store_dir=self.store_dir, cache_dir=self.cache_dir,
            cache_limit_bytes=self.settings.store.cache_limit_bytes or 0, environment=dict(self.environment),
        )  # fmt: skip

    def creator(self) -> dict[str, str]:
        """Return the user and the host of this process for the record of a run; nothing if `m5ws.toml` disables it."""
        if not self.settings.run.record_user:
            return {}
        return {"user": user_name(os.getuid()), "host": socket.gethostname()}


def find(start: Path, environment: Mapping[str, str] = os.environ) -> Workspace:
    """Return the workspace around `start`: the nearest directory upwards with an `m5ws.toml`.

    Raises NotFound if there is none, ConfigError (with file and line) for an error in the file, UsageError for a path
    that is not UTF-8: no record of a run can contain it.
    """
    folder = start.absolute()
    if not folder.is_dir():
        raise NotFound(f"no such directory: {start}", hint="Give `-C` a directory in a workspace.")
    root = next((outer for outer in (folder, *folder.parents) if (outer / FILE).is_file()), None)
    if root is None:
        raise NotFound(f"no {FILE} in {folder} or a folder above", hint="`m5ws init` creates a workspace here.")
    if os.fsencode(root).decode("utf-8", "ignore") != str(root):
        raise UsageError(f"the path of the workspace is not UTF-8: {str(root)!a}", hint="Rename its folder.")
    return Workspace(root, reader.read(root / FILE), dict(environment))


# --- functions of `training` for stored tensors, outside of ranks --------------------------------


def _tool(feature: str, extra: str, module: str, name: str) -> Any:
    """Return a function of a module. Raises MissingExtra if a module that it imports is not installed."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise MissingExtra(feature, extra) from error


def export_tools() -> "Tools":
    """Return the functions that exports and loads need, each imported on use."""
    from m5ws.checkpoints.export.export import Tools

    weights, tools = "m5ws.training.backends.deepspeed.weights", "m5ws.training.tools"
    return Tools(
        rebuild=partial(_tool, "reading the weights of a DeepSpeed checkpoint", "train", weights, "consolidate"),
        load=partial(_tool, "loading tensors", "train", f"{tools}.load_tensors", "load"),
    )
