"""Lines of shell that start an agent, wait for its end, and start it again where its status asks for that.

Lines of users come before. Their options end there: by `set -e`, a signal would end a shell that waits for an agent.
"""

PLAIN = "set +euo pipefail; unset IFS asked\n"
"""A line that ends the options of lines before."""
_WAIT = """\
{agent} &
wait $!
# A signal ends the first wait.
while kill -0 $! 2> /dev/null; do wait $!; done
wait $!
status=$?
"""
_LOOP = f"""{PLAIN}\
trap 'asked=yes; kill -TERM $! 2> /dev/null' TERM INT
for start in $(seq 0 {{restarts}}); do
    [ -z "$asked" ] || break
    {{wait}}
    [ -z "$asked" ] || break
    # Above 130, a signal killed the agent.
    [ $status = 75 ] || [ $status -gt 130 ] || break
done
"""
_ONCE = f"""{PLAIN}\
trap 'kill -USR2 $! 2> /dev/null' TERM
{{wait}}# Above 130, a signal killed the agent.
[ $status -gt 130 ] && status=75
exit $status
"""


def loop(agent: str, restarts: int) -> str:
    """Return lines that run an agent until it ends for good, with its last status in `status`.

    SIGTERM and SIGINT reach the agent, and end the loop.
    """
    return _LOOP.format(restarts=restarts, wait=_WAIT.format(agent=agent).rstrip().replace("\n", "\n    "))


def once(agent: str) -> str:
    """Return lines that run an agent once. Status 75 asks for the next start, also after a signal killed the agent.

    SIGTERM becomes the warning of a scheduler: the agent saves a last checkpoint, and asks for the next start.
    """
    return _ONCE.format(wait=_WAIT.format(agent=agent))
