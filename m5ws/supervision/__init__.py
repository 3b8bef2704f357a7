"""Failures of runs and their causes. Nothing here is on the step path.

- `causes`, `diagnosis`, `clocks`, `cases`, `memory`: the cause of a failed attempt, and earlier incidents that match.
- `progress`, `processes`, `evidence`, `flight_recorder`, `last_collectives`, `vote`: ranks that make no progress.
- `slow_ranks`, `losses`, `restarts`: slow ranks, rules for the loss of a run, and the decision about a restart.
- `messages`, `notify`, `outbox`: messages to people about runs.
"""
