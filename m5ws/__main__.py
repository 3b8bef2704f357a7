"""`python -m m5ws` is `m5ws`."""

import sys

from m5ws.cli import main

if __name__ == "__main__":
    sys.exit(main())
