"""The place in a step where a replay diverged, and its cause."""
