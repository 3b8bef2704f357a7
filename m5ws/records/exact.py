"""Exact text of a float in the ledger: `float.hex()`, or `nan:` and the bits of a NaN.

Round trip: `decode(encode(x))` has the bits of `x`, for every float.
"""

import math
import struct

_NAN = "nan:"


def encode(value: float) -> str:
    """Return a float's exact text. NaNs differ in their bits, so their text has them."""
    if math.isnan(value):
        return f"{_NAN}{struct.pack('>d', value).hex()}"
    return float(value).hex()


def decode(text: str) -> float:
    """Return the float of an exact text. Raises ValueError or OverflowError for other text."""
    if not text.startswith(_NAN):
        return float.fromhex(text)
    bits = bytes.fromhex(text.removeprefix(_NAN))
    if len(bits) != 8 or not math.isnan(value := float(struct.unpack(">d", bits)[0])):
        raise ValueError(f"{text!r} is not a NaN")
    return value
