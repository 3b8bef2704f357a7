"""Typed, content-addressed access to a store (docs/format.md).

Invariant: objects are written before any object that names them, and a reference is written last. So everything
reachable is complete, whenever a writer is killed.
"""
