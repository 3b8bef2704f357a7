"""Interface of signatures."""

from pathlib import Path
from typing import Protocol

import msgspec


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """What a signature is worth: whether it is `good`, whose key made it, and who that is, if somebody said so.

    `keyid` is the fingerprint of the key inside the signature, "" if there is none to be found.
    """

    good: bool
    keyid: str = ""
    signer: str | None = None


class Signatures(Protocol):
    """Signs bytes for one purpose, and says what a signature is worth (SSH keys)."""

    def sign(self, key: Path, data: bytes) -> bytes:
        """Return an armoured signature by the private key in a file. Raises M5Error."""

    def keyid(self, signature: bytes) -> str:
        """Return the fingerprint of the key that a signature says it was made with, or ""."""

    def check(self, signature: bytes, data: bytes, allowed: Path | None) -> Signed:
        """Check a signature: by any key, or, if `allowed` says who signs with which keys, by one of these.

        Raises M5Error where it could not be checked.
        """
