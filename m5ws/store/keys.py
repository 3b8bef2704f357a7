"""What a key may look like, in every store: relative, and of characters that mean nothing to a shell, a URL or a file
system. A key that could name something outside the store is refused before any store sees it.
"""

from m5ws.errors import UsageError

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


def checked(key: str) -> str:
    """Return `key`. Raises UsageError if it is none (docs/format.md)."""
    if not key or not _SAFE.issuperset(key) or any(part in ("", ".", "..") for part in key.split("/")):
        raise UsageError(f"not a store key: {key!r}", hint="m5ws writes no such name: `m5ws fsck` says what is wrong.")
    return key
