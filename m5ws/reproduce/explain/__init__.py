"""The place of a divergence within its step, and its cause."""
