"""Token ids from a `tokenizer.json`, by the `tokenizers` library if it is installed.

Files alone do not pin a tokenizer: a new version of the library can give other ids for the same files.
"""

import importlib.util
import os
import re
from pathlib import Path

from m5ws.errors import M5Error, MissingExtra


class Tokenizers:
    """Computes token ids."""

    def version(self) -> str | None:
        """Return `tokenizers` with its version, from its folder's name: an import would take 40 ms."""
        spec = importlib.util.find_spec("tokenizers")
        if spec is None or spec.origin is None:
            return None
        site = Path(spec.origin).parent.parent
        names = sorted(name for name in os.listdir(site) if re.fullmatch(r"tokenizers-[^-]+\.dist-info", name))
        return names[0].removesuffix(".dist-info") if names else "tokenizers"

    def ids(self, tokenizer_json: bytes, text: str) -> tuple[int, ...]:
        """Return the ids of `text`, special tokens included. Raises MissingExtra, M5Error for an unreadable file."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtra("pinning a tokenizer's token ids", "tokenizer") from error
        try:
            return tuple(Tokenizer.from_buffer(tokenizer_json).encode(text).ids)
        except Exception as error:  # the library raises nothing narrower
            raise M5Error(
                f"tokenizer.json cannot be read: {error}",
                hint='Correct the file or upgrade `tokenizers`. [tokenizer] probe = "" pins the files alone.',
            ) from error
