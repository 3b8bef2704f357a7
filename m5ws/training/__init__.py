"""Inside the ranks: the only part of m5ws that imports torch, and that runs in the user's processes.

`rank` starts a script, `session` is what the script sees, backends say what a framework's state is.
"""
