"""Proxies between a client and a server, as processes of their own that end with the one that started them.

`FaultProxy` breaks requests; `DelayLine` makes the way long. Both keep what they pass on as it is; for both, point
one at the other's port. Rates can also be set by hand: `curl -X PUT -d '{"rates": {"stall": 0.1}}' ADMIN_URL`.
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
    """A proxy's process. Its stdin is ours: the kernel closes it when we end, however we end."""

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
    """A process that passes HTTP on to `target` ("127.0.0.1:8000"), quiet until it is given rates."""

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
        """Break requests by these settings from now on, and count from zero."""
        self._ask("PUT", msgspec.json.encode(settings))

    def quiet(self) -> None:
        """Pass everything on, and count from zero."""
        self.change(Settings())

    @property
    def counters(self) -> Counters:
        """What was passed on and broken since the last change."""
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
    """A process that relays TCP to `target` and makes each round trip `rtt_ms` longer."""

    def __init__(self, target: str, rtt_ms: float) -> None:
        self._process = _Process("delay_line.py", target, str(rtt_ms))
        self.port = self._process.ports.port
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "DelayLine":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.close()
