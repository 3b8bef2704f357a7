"""Trace of single steps in a rank: inputs and outputs of each module and each backward operation. No I/O here.

A trace stays on the machine, beside the attempt's spools. A verdict contains the explanation that it gives.
"""

from typing import Literal

import msgspec

from m5ws.records.ledger import Event

Kind = Literal["batch", "enter", "leave", "backward", "gradient", "update", "warning", "cut"]
"""`enter`, `leave`: begin and end of a module's forward pass. `gradient`: a parameter's gradient is complete. `update`:
inputs of the optimizer. `warning`: torch warned of a nondeterministic operation. `cut`: the trace reached its limit."""


class TraceEntry(Event, tag="seen", frozen=True, kw_only=True):
    """One entry of a trace, in order of time.

    `name` is the path of the module in the model without its wrappers (`""` for the model itself), or the parameter's
    name. `call` counts from 1 within the step. `what` describes the module and its settings. `op` is an operation of
    autograd, or the operations of a module at its end. `given` and `made` have fingerprints of inputs and outputs by
    name, with element types and shapes. `drew` names the generators that a module used.
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
