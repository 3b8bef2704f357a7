"""Record of one check of `m5ws doctor` or `m5ws preflight`."""

from typing import Literal

import msgspec

State = Literal["ok", "warning", "failed", "missing", "broken", "not needed"]
"""`not needed`: the thing is not on this machine, and this workspace does not use it. `warning`: a run can start."""


class Check(msgspec.Struct, frozen=True):
    """State of one thing that m5ws uses. `remedy` is empty unless a person has something to do."""

    name: str
    state: State
    detail: str
    remedy: str = ""

    @property
    def passed(self) -> bool:
        return self.state in ("ok", "warning", "not needed")
