"""Engines: programs of others that start agents on the nodes of a cluster. One file for each, behind one port.

- `interface`: the port. An engine renders a job, submits it, and reports its state.
- `slurm`, `hosts`, `batch`, `kubernetes`: the engines. `task_files`: engines whose users submit a file.
- `commands`, `starts`, `documents`: programs that an engine runs here or on a login node, starts of agents, YAML.
- `submission`: a job from its run to its submission.
"""
