"""`m5ws.Workspace`: the snapshots and runs of a workspace, or of a store, for notebooks and scripts.

Each call does the same as a command of m5ws, by the same functions. Nothing is held open between two calls.
"""

import logging
import os
from pathlib import Path

from m5ws import workspace as workspaces
from m5ws.config.settings import MlflowSettings, Settings, StoreSettings
from m5ws.errors import CorruptObject, UsageError
from m5ws.library import actions
from m5ws.library.run import Run
from m5ws.repository.references import ids
from m5ws.repository.repository import Repository
from m5ws.runs import run_table

_log = logging.getLogger(__name__)


class Workspace:
    """The workspace around a directory, as for the command `m5ws -C DIRECTORY`, or a store by its URL.

    A URL has `://`, such as `s3://bucket/prefix` or `file:///path/of/store`. With it, no directory and no m5ws.toml is
    used: runs can be read and noted, and `snapshot` raises UsageError. Raises NotFound if there is no m5ws.toml in the
    directory or above it, and ConfigError for an error in it.
    """

    def __init__(self, location: str | os.PathLike[str] = ".") -> None:
        self._location = os.fspath(location)
        self._has_files = "://" not in self._location
        if self._has_files:
            self._workspace = workspaces.find(Path(self._location))
        else:
            settings = Settings(store=StoreSettings(url=self._location), mlflow=MlflowSettings(enabled=False))
            self._workspace = workspaces.Workspace(Path.cwd(), settings, dict(os.environ))

    def __repr__(self) -> str:
        shown = str(self._workspace.root) if self._has_files else self._location
        return f"m5ws.Workspace({shown!r})"

    def snapshot(self, message: str | None = None) -> str:
        """Take a snapshot of the workspace's files, and return its id, as `m5ws snapshot` does.

        Notes about the files go to the log, as warnings. Raises UsageError, NotFound and the other errors of the
        command: secrets in files, a store that does not answer.
        """
        if not self._has_files:
            raise UsageError(f"{self!r} is a store without files", hint="Give the directory of a workspace.")
        repo = self._workspace.repository(create=True)
        return actions.take_snapshot(self._workspace, repo, message, None, _log.warning).id

    def runs(self, where: str | None = None, limit: int = 20) -> list[Run]:
        """Return the newest runs, at most `limit` (0: all), each before its replays, as `m5ws ls --runs` lists them.

        `where` is a condition of `m5ws ls --where`. A damaged run has the state "damaged". Raises UsageError for an
        invalid condition, and NotFound if there is no store yet.
        """
        if limit < 0:
            raise UsageError(f"limit is {limit}, but must be at least 0", hint="0 returns all runs.")
        repo = self._open()
        return [Run(self._workspace, repo, row) for row in run_table.newest(repo, limit, condition=where).rows]

    def run(self, name: str) -> Run:
        """Return the run with this id, unique prefix of an id, or name.

        Raises NotFound, AmbiguousId, and CorruptObject for a damaged run.
        """
        repo = self._open()
        run_id = ids.resolve(repo, name, ("run",))[1]
        (row,) = run_table.describe(repo, [run_id])
        if row.problem is not None:
            raise CorruptObject(row.problem)
        return Run(self._workspace, repo, row)

    def _open(self) -> Repository:
        # The runs of the current directory belong to its own store, and not to the store of a URL.
        return self._workspace.open_repository() if self._has_files else self._workspace.repository()
