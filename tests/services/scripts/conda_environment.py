"""Install packages of a local channel into a folder, by rattler, the library of pixi.

`CHANNEL PREFIX SPEC…`, or `CHANNEL PREFIX FILE.txt` with the packages of an explicit list and their hashes.
"""

import asyncio
import os
import sys
from pathlib import Path

from rattler import install, solve
from rattler.explicit_environment import ExplicitEnvironmentSpec
from rattler.index import index_fs


def _listed(file: str) -> list[str]:
    pairs = [package.url.split("#sha256:") for package in ExplicitEnvironmentSpec.from_path(Path(file)).packages]
    return [f'{Path(url).name.rsplit("-", 2)[0]}[url="{url}",sha256="{digest}"]' for url, digest in pairs]


async def _main(channel: str, prefix: str, *specs: str) -> None:
    await index_fs(channel)
    wanted = _listed(specs[0]) if specs[0].endswith(".txt") else list(specs)
    records = await solve(sources=[f"file://{channel}"], specs=wanted, platforms=["linux-64", "noarch"])
    await install(records, target_prefix=prefix, cache_dir=f"{prefix}-cache", show_progress=False)


asyncio.run(_main(*sys.argv[1:]))
os._exit(0)  # Threads of rattler outlive the loop, and were seen to abort the interpreter's own end.
