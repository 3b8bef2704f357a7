"""Folder of the project, for processes that tests start."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""PYTHONPATH of a process that imports the package and the tools of the tests."""
