"""Copies between stores, and prefetch."""
