"""The environment of a run: observe, compare, rebuild."""
