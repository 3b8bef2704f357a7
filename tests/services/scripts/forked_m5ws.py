"""m5ws with ranks that are forks: a command for each line of the input. The arguments are modules that forks share."""

import json
import sys

from tests.support.ranks.forks import ForkParents
from tests.support.workspace import command_line

with ForkParents(tuple(sys.argv[1:])) as parents, command_line.forked_ranks(parents):
    for line in sys.stdin:
        done = command_line.call(*json.loads(line))
        print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
