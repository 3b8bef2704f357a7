"""The session: steps, records, checkpoints, forks."""
