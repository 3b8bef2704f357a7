"""Interface of the bit comparison of tensors."""

from typing import Protocol

from m5ws.records.verdict import ElementDifferences


class CompareBits(Protocol):
    """Compares elements by their bits (training/tools/compare_bits.py)."""

    def __call__(self, a: bytearray, b: bytearray, dtype: str, first: int) -> ElementDifferences:
        """Compare two buffers of equal length. `dtype` is torch's name, `first` the index of their first element."""
