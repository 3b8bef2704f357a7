"""The output of ranks: its lines, and the parts of it in the store.

- `log_lines`: new lines of a log, with secrets masked.
- `reading`: the lines of an attempt, from this machine or from the store.
- `parts`: the logs of an attempt on a cluster, stored while it runs, for readers on other machines.
"""
