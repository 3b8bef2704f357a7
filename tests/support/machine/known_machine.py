"""An observer of this machine without a process of its own."""

from collections.abc import Mapping

from m5ws.environment.observe.machine import Machine
from m5ws.records.environment import Observed, Origin


class KnownMachine(Machine):
    """A `Machine` with fixed facts. Observing the real facts takes a process that imports torch."""

    def observe(self, environment: Mapping[str, str]) -> Observed:
        return Observed(facts={"python": "3.11"})

    def origins(self, image: str | None) -> dict[str, Origin]:
        return {}
