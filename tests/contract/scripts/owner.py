"""Launches the request in a file, and waits until it is killed: `owner.py REQUEST`."""

import os
import sys
import time
from pathlib import Path

from m5ws.launch.local import LocalLauncher
from m5ws.records import codec
from m5ws.records.launch import LaunchRequest

file = sys.argv[1]
process = LocalLauncher(os.environ).launch(codec.decode(Path(file).read_bytes(), LaunchRequest, file))
time.sleep(600)
