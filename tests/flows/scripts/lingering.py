"""A script of which rank 1 does not end: `train.py finishes` or `train.py fails`."""

import os
import sys
import threading
import time

if os.environ["RANK"] == "1":
    threading.Thread(target=time.sleep, args=(1000,)).start()
    if sys.argv[1] == "fails":
        raise ValueError("no data")
