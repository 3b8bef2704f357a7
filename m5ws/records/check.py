"""Record of one check of `m5ws doctor`."""

from typing import Literal

import msgspec

State = Literal["ok", "missing", "broken", "not needed"]
"""`not needed`: the thing is not on this machine, and this workspace does not use it."""


class Check(msgspec.Struct, frozen=True):
    """State of one thing that m5ws uses. `remedy` is empty unless the thing is missing or broken."""

    name: str
    state: State
    detail: str
    remedy: str = ""

    @property
    def passed(self) -> bool:
        return self.state in ("ok", "not needed")
