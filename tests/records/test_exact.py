"""Floats as text: the round trip keeps all bits."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.cli.terminal import output
from m5ws.records import exact


@given(bits=st.integers(0, 2**64 - 1) | st.sampled_from([0x7FF8 << 48, 0xFFF8 << 48, 0x7FF0 << 48, 0xFFF0 << 48]))
def test_every_float_survives_encoding_and_is_accepted_by_every_reader(bits: int) -> None:
    data = bits.to_bytes(8, "big")
    value = struct.unpack(">d", data)[0]
    text = exact.encode(value)
    assert struct.pack(">d", exact.decode(text)) == data
    assert output.number(text) == f"{value:.6g}"


@pytest.mark.parametrize("text", ["nan:", "nan:00", "nan:3ff0000000000000", "nan:zz", "x"])
def test_text_that_is_no_exact_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        exact.decode(text)
