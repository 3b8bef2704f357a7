"""Failures of runs and their causes. Nothing here is on the step path.

- `causes`: the class of a failure and the rank that it began on, by rules (`causes.toml`) and the logs of all ranks.
- `diagnosis`: the cause of a failed attempt, from its logs and the records of its ranks.
- `cases`: anonymised cases of failures, for the rules of a later version.
- `clocks`: clocks of nodes against each other, from steps that their ranks have in common.
- `memory`: earlier incidents in the store that match a new incident.
- `progress`: the progress of ranks, and ranks that make none.
- `processes`: the process of a rank from outside: its stack and its state.
- `vote`: the ranks for which the rest of an attempt waits.
- `losses`: rules for the loss of a run.
- `restarts`: the decision about a restart after a failure.
- `messages`: messages about runs.
- `notify`: the targets of messages.
- `outbox`: messages of this machine that wait for a target.
"""
