"""One node of an attempt: launch its processes, deliver their events, stop them, keep their results."""
