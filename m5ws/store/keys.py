"""Validation of store keys: relative, and of characters without a meaning in a shell, a URL or a file system.

A key that could name a file outside the store is refused before a store uses it.
"""

from m5ws.errors import UsageError

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


def checked(key: str) -> str:
    """Return `key`. Raises UsageError if it is not a valid key (docs/format.md)."""
    if not key or not _SAFE.issuperset(key) or any(part in ("", ".", "..") for part in key.split("/")):
        raise UsageError(
            f"not a store key: {key!r}", hint="m5ws writes no such key. Run `m5ws fsck` to find the damaged record."
        )
    return key
