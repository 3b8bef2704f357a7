"""Launches the request in a file, and waits until it is killed: `owner.py KIND REQUEST`."""

import os
import sys
import time
from pathlib import Path

from m5ws.launch.interface import Launcher
from m5ws.launch.local import LocalLauncher
from m5ws.records import codec
from m5ws.records.launch import LaunchRequest
from tests.support.ranks.forks import ForkLauncher, ForkParents

kind, file = sys.argv[1:]
launcher: Launcher = LocalLauncher(os.environ) if kind == "real" else ForkLauncher(ForkParents(), os.environ)
process = launcher.launch(codec.decode(Path(file).read_bytes(), LaunchRequest, file))
time.sleep(600)
