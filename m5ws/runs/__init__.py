"""Runs, the read side: state, history, steps, lists and conditions."""
