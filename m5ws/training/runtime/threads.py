"""Torch's number of threads, by which sums are split, as steps go on."""

import torch

from m5ws.records.ledger import Setting
from m5ws.training.runtime.context import ActiveRank


class Threads:
    """Records changes of the number of threads in this rank."""

    def __init__(self, active: ActiveRank) -> None:
        self._active = active
        self._known = active.facts.get("threads")

    def record(self, step: int) -> None:
        """Append the number of threads if it has changed since the last call."""
        now = str(torch.get_num_threads())
        if self._known is not None and now != self._known:
            self._active.emit(Setting, rank=self._active.rank, step=step, name="threads", value=now)
            self._known = now
