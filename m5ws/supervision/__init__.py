"""Failures of runs and their causes. Nothing here is on the step path.

- `causes`: the class of a failure and the rank that it began on, by rules (`causes.toml`) and the logs of all ranks.
- `diagnosis`: the same for an attempt, with the records of its ranks.
"""
