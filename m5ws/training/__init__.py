"""Inside the ranks: the only part of m5ws that imports torch, and that runs in the user's processes.

`rank` starts a script, `session` is the script's interface, backends handle the state of one framework each.
"""
