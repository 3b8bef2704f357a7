"""Failures of runs and their causes. Nothing here is on the step path.

- `causes`: the class of a failure and the rank that it began on, by rules (`causes.toml`) and the logs of all ranks.
- `cases`: anonymised cases of failures, for the rules of a later version.
- `clocks`: clocks of nodes against each other, from steps that their ranks have in common.
- `diagnosis`: the same for an attempt, with the records of its ranks.
"""
