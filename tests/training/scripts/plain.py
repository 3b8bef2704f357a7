"""A script that does not use m5ws: it prints its arguments and ends as the first argument demands."""

import os
import signal
import sys

print("called as", __name__, sys.argv, os.path.basename(sys.path[0]))
if sys.argv[1] == "raise without a log":
    sys.stderr.close()
if sys.argv[1].startswith("raise"):
    raise ValueError("something in the script")
if sys.argv[1] == "import":
    sys.path.insert(0, sys.argv[2])
    __import__("from_the_checkout")
if sys.argv[1].startswith("interrupted"):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("saved")
        if sys.argv[1] == "interrupted":
            raise
if sys.argv[1].isdigit():
    sys.exit(int(sys.argv[1]))
if sys.argv[1] == "stopped":
    signal.raise_signal(signal.SIGTERM)
