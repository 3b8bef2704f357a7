"""Characters that control a terminal or the order of text, which no output shows as they are."""

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 except newline and tab, DEL, C1, line and paragraph separators, bidirectional controls, lone surrogates."""


def escaped(text: str) -> str:
    """Return text with each control character escaped, such as `\\x1b`."""
    return CONTROL.sub(lambda match: _escape(ord(match[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
