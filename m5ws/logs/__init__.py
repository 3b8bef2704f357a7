"""The output of ranks: its lines, and the parts of it in the store.

- `log_lines`: new lines of a log, with secrets masked.
- `reading`: the lines of an attempt, of this machine from its files and of other nodes from the store.
- `parts`: the logs of a node, stored while an attempt runs, for readers on other machines.
"""
