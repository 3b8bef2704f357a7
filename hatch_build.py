"""The step of a build that compiles the fingerprint kernel (docs/design/0024-fingerprint-kernel.md).

Without a C compiler or Python's headers, m5ws is installed without it, and NumPy computes the same fingerprints slower.
"""

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags
from setuptools import Distribution, Extension
from setuptools.errors import CompileError, LinkError, PlatformError

_FOLDER = Path("m5ws", "training", "fingerprint")


class KernelHook(BuildHookInterface[Any]):
    """Compiles kernel.c into the package, for all versions of Python from 3.11 on."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        kernel = Path(self.root, _FOLDER, "kernel.abi3.so")
        # On the same file system, so that another build's kernel is replaced at once.
        (work := Path(self.root, "build")).mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            try:
                _compile(Path(self.root, _FOLDER, "kernel.c"), Path(scratch))
            except (CompileError, LinkError, PlatformError) as error:
                # A kernel of another source must not stay.
                kernel.unlink(missing_ok=True)
                self.app.display_warning(f"m5ws is built without its fingerprint kernel: {error}")
                return
            (built,) = Path(scratch).rglob("kernel*.so")
            built.replace(kernel)
        build_data["tag"] = f"cp311-abi3-{next(tag.platform for tag in sys_tags() if 'linux_' in tag.platform)}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(str(_FOLDER / kernel.name))


def _compile(source: Path, folder: Path) -> None:
    extension = Extension("kernel", [str(source)], extra_compile_args=["-O3"], py_limited_api=True)
    command: Any = Distribution({"name": "m5ws", "ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder), str(folder)
    command.ensure_finalized()
    command.run()
