# The kernel of `run_sums`, compiled from kernel.c. It is missing where m5ws was installed without a C compiler.

from numpy import uint64
from numpy.typing import NDArray

def sums(runs: NDArray[uint64], level: int = ..., /) -> None: ...
def levels() -> tuple[str, ...]: ...
