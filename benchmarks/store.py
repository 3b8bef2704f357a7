"""Cost of a store in S3: upload, no-op, download, and an upload after a change, beside tools for the same task.

The no-op is measured twice: right after the upload, and the fourth time, when all caches of a tool are full.

    python benchmarks/store.py [--data large small] [--rounds 3] [--scale 1.0] [--rtt-ms 50] [--requests]
                               [--tls] [--dvc PROGRAM] [--aws PROGRAM]
                               [--endpoint URL --access-key … --secret-key … [--authority FILE]]

`large` is 2 GiB in 8 files, `small` 20,000 files of 4-64 KiB; `--scale` makes both smaller or larger. One in a hundred
changes: of the bytes of each large file, one run of 1 %; of the small files, 1 % drawn at random.

Without --endpoint, a Ceph RGW is started (Debian: ceph-mon ceph-osd radosgw ceph-common). With --tls the tools use
https, and m5ws sends a CRC-64 instead of a signature of the bytes, as with AWS. With --rtt-ms each round trip is that
much longer. --requests counts requests and bytes, in a round of their own, through a proxy. Missing tools are left out,
and listed. DVC needs dvc-s3, in the environment of --dvc.
"""

import argparse
import contextlib
import json
import random
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from store_tools import AwsSync, Dvc, M5ws, M5wsWithoutCache, Raw, Restic, Server, Tool

sys.path.insert(0, str(Path(__file__).parents[1]))

Row = dict[str, float]
_SETTLING_S = 65.0
_TOOLS = ("m5ws", "m5ws without cache", "raw limit", "dvc add+push", "restic", "aws s3 sync")
_OPERATIONS = ("upload", "no-op", "no-op again", "materialise", "upload 1 % changed")


def write_data(kind: str, folder: Path, scale: float) -> None:
    """Write incompressible files, the same for every seed-sharing call."""
    draw = random.Random(7)
    folder.mkdir()
    if kind == "large":
        for number in range(8):
            with open(folder / f"shard-{number}.bin", "wb") as file:
                file.writelines(draw.randbytes(1 << 20) for _ in range(max(1, round(256 * scale))))
        return
    for number in range(round(20_000 * scale)):
        path = folder / f"{number // 500:03d}" / f"{number:06d}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(draw.randbytes(draw.randrange(4 << 10, 64 << 10)))


def change_data(kind: str, folder: Path) -> None:
    """Change one in a hundred."""
    draw = random.Random(8)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if kind == "large":
        for path in files:
            size = path.stat().st_size // 100
            with open(path, "r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(draw.randbytes(size))
        return
    for path in draw.sample(files, max(1, len(files) // 100)):
        path.write_bytes(draw.randbytes(path.stat().st_size))


def measured(work: Callable[[], None]) -> Row:
    """Return seconds on the clock, and CPU seconds and the largest memory of the child processes of `work`."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    work()
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall_s": wall_s, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def one_round(tool: Tool, place: Path, kind: str, around: "Around") -> dict[str, Row]:
    """Measure each operation once; `around` is entered for each."""
    tool.prepare()
    rows = {}
    target = place / "back"

    def materialise() -> None:
        tool.materialise(target)

    for operation in _OPERATIONS:
        if operation == "no-op":
            time.sleep(2.5)  # files that changed a moment ago are not cached, since they could change again unnoticed
        if operation == "no-op again":
            tool.upload()
            tool.upload()
        if operation == "upload 1 % changed":
            change_data(kind, place / "data")
        with around(operation):
            rows[operation] = measured(materialise if operation == "materialise" else tool.upload)
    return rows


@contextlib.contextmanager
def servers(arguments: argparse.Namespace, folder: Path) -> Iterator[Server]:
    """Yield the server of --endpoint, or start a Ceph."""
    if arguments.endpoint:
        authority = arguments.authority
        yield Server(arguments.endpoint, "benchmark", arguments.access_key, arguments.secret_key, authority)
        return
    from tests.support.s3 import ceph

    with ceph.hold(folder / "ceph") as server:
        keys = server.users["admin"]
        endpoint, authority = (server.secure_endpoint, server.authority) if arguments.tls else (server.endpoint, None)
        yield Server(endpoint, "benchmark", keys.access_key, keys.secret_key, authority)


def tools(arguments: argparse.Namespace, server: Server, prefix: str, place: Path) -> dict[str, Tool]:
    """Return the installed tools, each with its own prefix; the caller gives each a directory of its own."""
    found: dict[str, Tool] = {
        "m5ws": M5ws(place, server, prefix),
        "m5ws without cache": M5wsWithoutCache(place, server, prefix),
        "raw limit": Raw(place, server, prefix),
    }
    for name, program, kind in (
        ("dvc add+push", arguments.dvc, Dvc),
        ("restic", shutil.which("restic"), Restic),
        ("aws s3 sync", arguments.aws, AwsSync),
    ):
        if program:
            found[name] = kind(place, server, prefix, program)
    return found


Around = Callable[[str], contextlib.AbstractContextManager[None]]


def counting(server: Server, stack: contextlib.ExitStack) -> tuple[Server, Around, dict[str, Row]]:
    """Return the server behind a counting proxy, a context for each operation, and the counts."""
    from tests.support.network.proxies import FaultProxy

    proxy = stack.enter_context(FaultProxy(server.endpoint.removeprefix("http://")))
    counts: dict[str, Row] = {}

    @contextlib.contextmanager
    def around(operation: str) -> Iterator[None]:
        proxy.quiet()
        yield
        seen = proxy.counters
        counts[operation] = {"requests": seen.requests, "bytes": seen.bytes_up + seen.bytes_down}

    return server.at(proxy.endpoint), around, counts


def quiet(_operation: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=("large", "small"), default=["large", "small"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rtt-ms", type=float)
    parser.add_argument("--requests", action="store_true")
    parser.add_argument("--tools", nargs="+", choices=_TOOLS)
    parser.add_argument("--dvc")
    parser.add_argument("--aws", default=shutil.which("aws"))
    parser.add_argument("--tls", action="store_true", help="use TLS, with unsigned payloads")
    parser.add_argument("--endpoint")
    parser.add_argument("--authority", help="file with the certificate authority of the endpoint")
    parser.add_argument("--access-key", default="")
    parser.add_argument("--secret-key", default="")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.tls and (arguments.rtt_ms or arguments.requests or arguments.endpoint):
        parser.error("--tls cannot be combined with --endpoint, --rtt-ms or --requests")
    results: dict[str, dict[str, dict[str, Row]]] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        server = stack.enter_context(servers(arguments, folder))
        make_bucket(server)
        if arguments.rtt_ms:
            from tests.support.network.proxies import DelayLine

            line = stack.enter_context(DelayLine(server.endpoint.removeprefix("http://"), arguments.rtt_ms))
            server = server.at(line.endpoint)
        for kind in arguments.data:
            write_data(kind, folder / kind, arguments.scale)
            results[kind] = compare(arguments, server, folder, kind)
            print_table(kind, results[kind])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def compare(arguments: argparse.Namespace, server: Server, folder: Path, kind: str) -> dict[str, dict[str, Row]]:
    """Measure every tool, turn by turn, and return the medians by tool and operation."""
    rounds: list[dict[str, dict[str, Row]]] = []
    names = chosen(arguments, server, folder)
    for number in range(arguments.rounds):
        taken = {}
        for name in tuple(names):
            try:
                taken[name] = in_place(arguments, server, folder, kind, name, f"{kind}-{number}", quiet)
            except RuntimeError as error:
                names.remove(name)
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            print(f"{kind} round {number} {name}: {taken[name]}", file=sys.stderr)
        rounds.append(taken)
        clear(folder / "places")
    medians = {
        name: {
            operation: {key: statistics.median(one[name][operation][key] for one in rounds) for key in row}
            for operation, row in rows.items()
        }
        for name, rows in rounds[0].items()
        if name in names
    }
    for name in medians if arguments.requests else ():
        with contextlib.ExitStack() as stack:
            behind, around, counts = counting(server, stack)
            in_place(arguments, behind, folder, kind, name, f"{kind}-counted", around)
        for operation, counted in counts.items():
            medians[name][operation] |= counted
        clear(folder / "places")
    return medians


def clear(places: Path) -> None:
    """Delete the directories of a round; ext4 creates files slowly for a minute after it deleted many."""
    shutil.rmtree(places, ignore_errors=True)
    time.sleep(_SETTLING_S)


def chosen(arguments: argparse.Namespace, server: Server, folder: Path) -> list[str]:
    return [name for name in tools(arguments, server, "", folder) if name in (arguments.tools or [name])]


def in_place(
    arguments: argparse.Namespace, server: Server, folder: Path, kind: str, name: str, prefix: str, around: Around
) -> dict[str, Row]:
    """Do one round of one tool in a directory of its own, below `places`, and leave the server as it was."""
    place = folder / "places" / f"{prefix}-{name.replace(' ', '-')}"
    place.mkdir(parents=True)
    shutil.copytree(folder / kind, place / "data")
    tool = tools(arguments, server, f"{prefix}-{name.replace(' ', '-')}", place)[name]
    rows = one_round(tool, place, kind, around)
    empty_bucket(server)
    return rows


def make_bucket(server: Server) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=server.environment["AWS_SECRET_ACCESS_KEY"],
        verify=server.authority,
    )
    client.create_bucket(Bucket=server.bucket)


def empty_bucket(server: Server) -> None:
    """Remove a tool's objects, so that the server is in the same state for the next tool."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        server.bucket,
        endpoint=server.endpoint,
        region="us-east-1",
        access_key_id=server.environment["AWS_ACCESS_KEY_ID"],
        secret_access_key=server.environment["AWS_SECRET_ACCESS_KEY"],
        client_options={
            "allow_http": True,
            **({"root_certificate": Path(server.authority).read_bytes()} if server.authority else {}),
        },
    )
    for page in obstore.list(store):
        obstore.delete(store, [found["path"] for found in page])


def print_table(kind: str, rows: dict[str, dict[str, Row]]) -> None:
    ours = rows.get("m5ws", {})
    counted = any("requests" in row for row in ours.values())
    print(f"\n{kind}: seconds (CPU seconds of the client){', requests, traffic' if counted else ''}; times ours\n")
    print("| | " + " | ".join(_OPERATIONS) + " |\n|---|" + "---:|" * len(_OPERATIONS))
    for name, operations in rows.items():
        cells = []
        for operation in _OPERATIONS:
            row = operations[operation]
            cell = f"{row['wall_s']:.2f} ({row['cpu_s']:.2f})"
            if "requests" in row:
                cell += f", {row['requests']:,.0f}, {row['bytes'] / 2**20:,.1f} MiB"
            if ours and name != "m5ws":
                cell += f"; {row['wall_s'] / ours[operation]['wall_s']:.1f}x"
            cells.append(cell)
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
