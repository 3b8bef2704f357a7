"""Interface of signatures."""

from pathlib import Path
from typing import Protocol

import msgspec


class SignatureCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the check of a signature. `signer` is the name of the key's owner, if the allowed signers list it.

    `keyid` is the fingerprint of the key inside the signature, "" if there is none.
    """

    good: bool
    keyid: str = ""
    signer: str | None = None


class Signatures(Protocol):
    """Signs bytes for one purpose, and checks signatures (SSH keys)."""

    def sign(self, key: Path, data: bytes) -> bytes:
        """Return an armoured signature with the private key in a file. Raises M5Error."""

    def keyid(self, signature: bytes) -> str:
        """Return the fingerprint of the key in a signature, or ""."""

    def check(self, signature: bytes, data: bytes, allowed: Path | None) -> SignatureCheck:
        """Check a signature: by any key, or, with the allowed-signers file `allowed`, by a key of that file.

        Raises M5Error if the signature could not be checked.
        """
