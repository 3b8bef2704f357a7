"""References of a store: snapshots, and runs with their checkpoints, output files and notes."""
