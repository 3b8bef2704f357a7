"""A script that does not use m5ws: it prints its arguments and ends as the first argument demands."""

import os
import signal
import subprocess
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
if sys.argv[1] == "warned":
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        signal.raise_signal(number)
    # A shell cannot trap a signal that it was started to ignore.
    sys.exit(subprocess.run(["sh", "-c", "trap 'echo trapped; exit 0' USR1; kill -USR1 $$; exit 1"]).returncode)
