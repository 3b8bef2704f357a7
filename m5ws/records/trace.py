"""What a rank writes down when it looks into single steps: what went into each module and each backward operation, and
what came out. No I/O here.

It stays on the machine, beside the attempt's spools; what is found in it goes into a verdict (`explanations`).
"""

from typing import Literal

import msgspec

from m5ws.records.ledger import Event

Kind = Literal["batch", "enter", "leave", "backward", "gradient", "update", "warning", "cut"]
"""`enter`, `leave`: of a module's forward pass. `gradient`: a parameter has its own. `update`: what the optimizer is
about to use. `warning`: torch says that an operation is not deterministic. `cut`: there was more to write down."""


class Seen(Event, tag="seen", frozen=True, kw_only=True):
    """One thing that happened in a step, in the order in which it did.

    `name` is the module's path in the model without its wrappers (`""` for the model itself), or the parameter's;
    `call` counts from 1 within the step. `what` describes the module and its settings, `op` an operation of autograd;
    of a module that is left, its operations. `given` and `made` hold fingerprints, with element types and shapes, by
    what they are of; `drew` names the generators that a module drew from.
    """

    step: int
    kind: Kind
    name: str = ""
    call: int = 1
    what: str = ""
    op: str = ""
    given: dict[str, str] = msgspec.field(default_factory=dict)
    made: dict[str, str] = msgspec.field(default_factory=dict)
    drew: tuple[str, ...] = ()
