"""A script with a fork that leaves the script before the script's own process does: forked.py HOW."""

import os
import sys

child = os.fork()
if child == 0:
    if sys.argv[1] == "raise":
        raise ValueError("in the fork")
    sys.exit(None if sys.argv[1] == "end" else 3)
print("the fork ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
