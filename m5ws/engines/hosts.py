"""A list of hosts without a scheduler, which are reached by ssh. All agents are started at once.

On each host, a process (starts.py) starts the agent, and starts it again if its status asks for that. It has its own
session, so that it lives on when the connection ends. Its folder `~/.m5ws/jobs/NAME/NODE` has the script, the output,
the process id, and the exit status at the end. The shell that writes the status gets no signals.
"""

import shlex
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import blake3
import msgspec

from m5ws.config.settings import HostsCluster
from m5ws.engines import commands, starts
from m5ws.engines.interface import EngineUnavailable, JobRequest, JobState, NodeOutput, Standing

_HINT = "`ssh HOST true` must work without a question, and m5ws must be installed on each host of [clusters]."
_PORTS = 20_000
_RUN_S = 900.0
_SCRIPT = """\
#!/bin/bash
export M5WS_NODE=$1 M5WS_NODES={nodes} M5WS_JOB={name} M5WS_MASTER={master}:{port}
{setup}exec {agent}
"""
_START = """\
mkdir -p {folder} && cd {folder} && cat > job || exit
(setsid bash -c 'bash job {node} & echo $! > pid; wait $!; echo $? > status' > output 2>&1 < /dev/null &)
until [ -s pid ]; do sleep 0.05; done
"""
_STATE = """\
cd {folder} 2> /dev/null || exit 0
cat status 2> /dev/null || (kill -0 $(cat pid) && echo running || echo killed) 2> /dev/null
"""
_CANCEL = """\
cd {folder} 2> /dev/null && [ ! -e status ] && kill -TERM $(cat pid) 2> /dev/null
exit 0
"""


class Hosts(msgspec.Struct, frozen=True):
    """`Engine` with the settings of a list of hosts."""

    settings: HostsCluster

    def render(self, request: JobRequest) -> str:
        """As `Engine.render`. Raises EngineUnavailable for more nodes than hosts."""
        own, hosts = self.settings, self._hosts(request.nodes)
        agent = starts.command(own.python or sys.executable, request.agent, signal.SIGTERM, own.restarts)
        digest = int(blake3.blake3(request.name.encode()).hexdigest()[:8], 16)
        return _SCRIPT.format(
            nodes=request.nodes,
            name=request.name,
            master=own.master or hosts[0].rpartition("@")[2],
            port=_PORTS + digest % 6_000 * 2,
            setup="".join(f"{line}\n" for line in own.setup),
            agent=shlex.join(agent),
        )

    def check(self, request: JobRequest, script: str) -> None:
        lines = [*self.settings.setup, shlex.join((*request.agent, "--check"))]
        nodes = ["\n".join((f"export M5WS_NODE={node}", *lines)) for node in range(request.nodes)]
        self._on_each(self._hosts(request.nodes), nodes)

    def submit(self, request: JobRequest, script: str, after: str | None = None) -> str:
        assert after is None  # There is no queue.
        starts = [_START.format(folder=_folder(request.name, node), node=node) for node in range(request.nodes)]
        try:
            self._on_each(self._hosts(request.nodes), starts, script)
        except EngineUnavailable:
            # An agent that did start would wait for the other agents.
            with suppress(EngineUnavailable):
                self.cancel(request.name)
            raise
        return request.name

    def state(self, name: str) -> JobState:
        hosts = self.settings.hosts
        printed = self._on_each(hosts, [_STATE.format(folder=_folder(name, node)) for node in range(len(hosts))])
        found = {host: word.strip() for host, word in zip(hosts, printed, strict=True) if word.strip()}
        standing: Standing = "unknown" if not found else "running" if "running" in found.values() else "ended"
        text = ", ".join(f"{host}: {word}" for host, word in found.items())
        return JobState(standing=standing, text=text)

    def run(self, words: tuple[str, ...], nodes: int) -> list[NodeOutput]:
        def output(numbered: tuple[int, str]) -> NodeOutput:
            node, host = numbered
            lines = (f"export M5WS_NODE={node}", *self.settings.setup, commands.accept_one(words))
            try:
                ran = commands.over_ssh(host, ("bash", "-c", "\n".join(lines)))
                return NodeOutput(node=host, text=commands.output(ran, hint=_HINT, timeout_s=_RUN_S))
            except EngineUnavailable as error:
                return NodeOutput(node=host, problem=str(error))

        with ThreadPoolExecutor(max_workers=16) as pool:
            return list(pool.map(output, enumerate(self._hosts(nodes))))

    def cancel(self, name: str) -> None:
        hosts = self.settings.hosts
        self._on_each(hosts, [_CANCEL.format(folder=_folder(name, node)) for node in range(len(hosts))])

    def _on_each(self, hosts: Sequence[str], lines: Sequence[str], text: str = "") -> list[str]:
        """Run lines of shell on each host at the same time, and return their outputs. Raises EngineUnavailable."""
        with ThreadPoolExecutor(max_workers=16) as pool:
            words = [commands.over_ssh(host, ("bash", "-c", each)) for host, each in zip(hosts, lines, strict=True)]
            return list(pool.map(lambda each: commands.output(each, text, _HINT), words))

    def _hosts(self, nodes: int) -> tuple[str, ...]:
        hosts = self.settings.hosts
        if nodes > len(hosts):
            raise EngineUnavailable(f"the job needs {nodes} hosts, and [clusters] lists {len(hosts)}")
        return hosts[:nodes]


def _folder(name: str, node: int) -> str:
    """Return the folder of a node in a job, as shell. Hosts may share a home."""
    return f"~/.m5ws/jobs/{name}/{node}"
