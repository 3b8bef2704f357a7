"""Attempts, the write side of runs: plan, fence, begin, supervise, end; forks, sweeps and removals."""
