"""The verdict on a replay, and its reason."""
