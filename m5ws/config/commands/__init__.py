"""Command lines of training scripts: their launchers, and the arguments of the script."""
