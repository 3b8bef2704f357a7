"""Checks of a machine right before a run, and of a user's own job at a small size.

`doctor` checks the set-up of a workspace. These checks measure: space, memory, clocks, GPUs, and known arithmetic.
"""
