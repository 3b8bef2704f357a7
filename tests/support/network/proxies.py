"""Proxies between a client and a server, in processes that end with the process that started them.

`FaultProxy` breaks requests; `DelayLine` adds latency. Both pass on other bytes unchanged, and one can use the other's
port as its target. Rates can also be set by hand: `curl -X PUT -d '{"rates": {"stall": 0.1}}' ADMIN_URL`.
"""

import http.client
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import msgspec

from tests.support.network.fault_plan import Counters, Settings
from tests.support.paths import ROOT

_HERE = Path(__file__).parent


class _Ports(msgspec.Struct):
    port: int
    admin_port: int = 0


class _State(msgspec.Struct):
    settings: Settings
    counters: Counters


class _Process:
    """A proxy's process. The kernel closes its stdin when the test process ends, also after a kill."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert self._process.stdout is not None
        self.ports = msgspec.json.decode(self._process.stdout.readline(), type=_Ports)

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


class FaultProxy:
    """A process that passes HTTP on to `target` ("127.0.0.1:8000"). It breaks nothing before rates are set."""

    def __init__(self, target: str) -> None:
        self._process = _Process("fault_proxy.py", target)
        self.port = self._process.ports.port
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self._process.ports.admin_port}/"

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.close()

    def change(self, settings: Settings) -> None:
        """Break requests by these settings from now on, with counters at zero."""
        self._ask("PUT", msgspec.json.encode(settings))

    def quiet(self) -> None:
        """Break nothing, with counters at zero."""
        self.change(Settings())

    @property
    def counters(self) -> Counters:
        """Counters of requests and faults since the last change."""
        return self._ask("GET").counters

    def _ask(self, method: str, said: bytes | None = None) -> _State:
        connection = http.client.HTTPConnection("127.0.0.1", self._process.ports.admin_port, timeout=30)
        try:
            connection.request(method, "/", body=said)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, answer.reason
            return msgspec.json.decode(text, type=_State)
        finally:
            connection.close()


class DelayLine:
    """A process that relays TCP to `target`, adds `rtt_ms` to each round trip, and has a rate in each direction."""

    def __init__(self, target: str, rtt_ms: float, mb_per_s: float | None = None) -> None:
        rate = (str(mb_per_s),) if mb_per_s is not None else ()
        self._process = _Process("delay_line.py", target, str(rtt_ms), *rate)
        self.port = self._process.ports.port
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "DelayLine":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.close()
