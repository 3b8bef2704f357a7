"""Token ids from a `tokenizer.json`, through the `tokenizers` library where it is installed.

Files alone do not pin what a tokenizer does: a library's new version can give other ids for the same files.
"""

import importlib.util
import os
import re
from pathlib import Path

from m5ws.errors import M5Error, MissingExtra


class Tokenizers:
    """`TokenizerProbe`."""

    def version(self) -> str | None:
        """Return `tokenizers` with its version, read off its folder's name: importing it takes 40 ms."""
        found = importlib.util.find_spec("tokenizers")
        if found is None or found.origin is None:
            return None
        site = Path(found.origin).parent.parent
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
                f"tokenizer.json cannot be used: {error}",
                hint='Correct it or upgrade `tokenizers`; [tokenizer] probe = "" pins the files alone.',
            ) from error
