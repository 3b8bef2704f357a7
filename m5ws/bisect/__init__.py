"""The input that makes two runs differ, found by hybrid runs."""
