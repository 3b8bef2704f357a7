"""Tensors of every kind in a training, with random bits."""

import math

import torch

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
)


def random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of random bits, with NaNs of all payloads, signed zeros and infinities."""
    count = math.prod(shape)
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype).view(shape)


def buffers() -> dict[str, torch.Tensor]:
    """Return tensors by name, of every element type, shape and order in memory."""
    tensors = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        tensors[name] = random((3, 5), dtype)
        tensors[f"{name}_scalar"] = random((), dtype)
        tensors[f"{name}_turned"] = random((4, 3), dtype).T
    base = torch.randn(40)
    return tensors | {
        "empty": torch.empty(0),
        "empty_rows": torch.empty(3, 0, 2, dtype=torch.complex64),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "every_third": torch.randn(30)[::3],
        "odd_offset": random((9,), torch.uint8)[1:],
        "head_of_storage": base[:25],
        "tail_of_storage": base[15:],
        "windows_of_storage": base.unfold(0, 8, 4),
        "expanded": torch.randn(1, 4).expand(3, 4),
        "expanded_scalar": torch.randn(()).expand(2, 3),
        "conjugated": torch.randn(3, 2, dtype=torch.complex64).conj(),
        "adjoint": torch.randn(3, 2, dtype=torch.complex128).mH,
        "negated": torch.randn(4, dtype=torch.complex64).conj().imag,
    }


def wipe(tensor: torch.Tensor) -> None:
    """Set the memory of a tensor to zero. An expanded tensor has less memory than elements."""
    tensor.untyped_storage().fill_(0)  # type: ignore[attr-defined]
