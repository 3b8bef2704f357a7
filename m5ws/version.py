"""The version of m5ws."""

__version__ = "0.1.0"
