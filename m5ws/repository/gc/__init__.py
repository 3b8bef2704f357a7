"""Garbage collection: roots, plan, execution."""
