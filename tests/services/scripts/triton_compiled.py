"""Compile Triton's kernel for the compute capability of the argument, and print its PTX. No GPU is needed."""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from m5ws.training.fingerprint import tensor_sums, triton_sums

# Without the interpreter, no kernel runs on the processor, and torch takes its place.
assert tensor_sums.load_kernel(torch.device("cpu")) is None
# As for a launch: torch's memory begins at multiples of 16.
aligned = {(argument,): [["tt.divisibility", 16]] for argument in range(2)}
types = {"runs": "*u64", "tiles": "*i64", "tile_words": "constexpr"}
source = ASTSource(triton_sums.sum_tiles, types, {"tile_words": triton_sums.TILE}, aligned)
print(triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32)).asm["ptx"])
