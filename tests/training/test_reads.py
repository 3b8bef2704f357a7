"""A process notes each file that Python reads outside the known places, and no other file."""

import os
import py_compile
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from m5ws.launch import read_notes
from m5ws.records import codec
from m5ws.records import reads as recorded
from tests.support.ranks.orders import orders

_BEGIN = """
import os, sys
from pathlib import Path
from m5ws.records import codec
from m5ws.records.launch import Context
from m5ws.training.runtime import reads
reads.note_reads(codec.decode(Path(sys.argv[1]).read_bytes(), Context, ""), os.environ)
out, work = sys.argv[2], os.getcwd()
"""


class Notes:
    """The notes of one process, by kind."""

    def __init__(self, notes: list[tuple[str, str]]) -> None:
        self.read = [text for kind, text in notes if kind == recorded.READ]
        self.hosts = [text for kind, text in notes if kind == recorded.HOST]
        self.written = [text for kind, text in notes if kind == recorded.WRITTEN]
        self.more = any(kind == recorded.MORE for kind, _ in notes)


def _run(tmp_path: Path, code: str, environment: Mapping[str, str] | None = None) -> Notes:
    """Run code with the hook, in a work directory. `out` is a folder elsewhere that has `a.bin`."""
    context = orders(tmp_path / "run")
    for folder in ("run/work", "out"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "out" / "a.bin").write_bytes(bytes(64))
    file = tmp_path / "context"
    file.write_bytes(codec.encode(context))
    command = [sys.executable, "-c", _BEGIN + textwrap.dedent(code), str(file), str(tmp_path / "out")]
    inherited = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    subprocess.run(command, cwd=context.work_dir, env=inherited, check=True)
    return Notes([*read_notes.NoteReader(Path(context.spool_dir) / read_notes.NAME).read()])


_READS = {
    "open": "open(f'{out}/a.bin').close()",
    "twice": "for _ in range(3): open(f'{out}/a.bin').close()",
    "bytes": "open(os.fsencode(f'{out}/a.bin'), 'rb').close()",
    "path": "Path(out, 'a.bin').read_bytes()",
    "descriptor": "os.close(os.open(f'{out}/a.bin', os.O_RDONLY))",
    "both ways": "open(f'{out}/a.bin', 'r+b').close()",
    "relative": "os.chdir(out); open('a.bin').close()",
    "roundabout": "open(f'/usr/..{out}/../out/a.bin').close()",
    "mmap": "import mmap; f = open(f'{out}/a.bin', 'rb'); mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)[:8]",
    "memmap": "import numpy; numpy.memmap(f'{out}/a.bin', mode='r')[:8]",
    "link": "os.symlink(f'{out}/a.bin', 'link'); open('link').close()",
    "linked folder": "os.symlink(out, 'folder'); open('folder/a.bin').close()",
    "fork": "pid = os.fork()\nif pid == 0:\n    open(f'{out}/a.bin').close(); os._exit(0)\nos.waitpid(pid, 0)",
    "thread": "import threading; t = threading.Thread(target=Path(out, 'a.bin').read_bytes); t.start(); t.join()",
    "appended": "f = open(f'{out}/a.bin', 'a+'); f.seek(0); f.read()",
    "made if missing": "os.close(os.open(f'{out}/a.bin', os.O_RDWR | os.O_CREAT))",
    "behind a link": "os.makedirs(f'{out}/d/e'); os.symlink(f'{out}/d/e', 'l'); open('l/../../a.bin').close()",
    "database": "import contextlib, sqlite3\n"
    "with contextlib.suppress(sqlite3.Error): sqlite3.connect(f'file:{out}/a.bin?mode=ro', uri=True).execute('.')",
    "copy": "import shutil; shutil.copyfile(f'{out}/a.bin', 'copy')",
}


@pytest.mark.parametrize("name", _READS)
def test_a_file_elsewhere_is_noted_once_however_python_reads_it(tmp_path: Path, name: str) -> None:
    assert _run(tmp_path, _READS[name]).read == [str(tmp_path / "out" / "a.bin")]


_OWN = {
    "work": "Path('x').write_text('1'); open('x').close(); os.listdir('.')",
    "installed": "import email.mime.text, numpy.fft, importlib.metadata; importlib.metadata.version('numpy')",
    "system": "open('/etc/hosts').close(); open('/proc/self/status').close(); os.listdir('/usr/lib')",
    "devices": "open('/dev/null').close(); os.listdir('/dev')",
    "descriptors": "f = open('x', 'w'); open(f'/proc/self/fd/{f.fileno()}').close(); open(f.fileno()).close()",
    "above": "os.listdir('/'); os.listdir('../..')",
    "missing": "import contextlib\nwith contextlib.suppress(OSError): open(f'{out}/missing').close()",
    "written": "Path(out, 'new').write_text('1'); Path(out, 'new').read_text()",
    "made folder": "os.mkdir(f'{out}/d'); Path(out, 'd', 'x').write_text('1'); Path(out, 'd', 'x').read_text()",
    "temporary": "import tempfile\nwith tempfile.NamedTemporaryFile(dir=out) as f: open(f.name).close()",
    "moved": "Path(out, 'n').write_text('1'); os.replace(f'{out}/n', f'{out}/m'); Path(out, 'm').read_text()",
    "cache": "import ctypes\nd = Path(os.environ['TRITON_CACHE_DIR']); list(d.iterdir()); (d / 'k').read_text()",
    "fifo": "os.mkfifo(f'{out}/p'); os.close(os.open(f'{out}/p', os.O_RDONLY | os.O_NONBLOCK))",
    "odd": "import contextlib\nwith contextlib.suppress(Exception): open('a\\0b')\n"
    "with contextlib.suppress(Exception): open([])\nwith contextlib.suppress(Exception): os.listdir(3.5)",
    "program": "import subprocess; subprocess.run(['true'], check=True)",
    "own address": "import socket; from m5ws.launch import network\n"
    "for a in network.own_addresses():\n"
    "    s = socket.create_server((a, 0)); socket.create_connection(s.getsockname())",
    "loopback": "import socket; socket.getaddrinfo('localhost', 80); socket.getaddrinfo(socket.gethostname(), None)",
}


@pytest.mark.parametrize("name", _OWN)
def test_a_file_of_the_run_its_python_or_the_system_is_not_noted(tmp_path: Path, name: str) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "k").write_text("compiled")
    notes = _run(tmp_path, _OWN[name], {"TRITON_CACHE_DIR": str(cache)})
    assert (notes.read, notes.hosts, notes.more) == ([], [], False)


def test_compiled_code_elsewhere_is_noted_by_its_source(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "helper.py").write_text("VALUE = 1\n")
    py_compile.compile(str(tmp_path / "out" / "helper.py"))
    notes = _run(tmp_path, "sys.path.insert(0, out); import helper")
    assert str(tmp_path / "out" / "helper.py") in notes.read
    assert not [path for path in notes.read if path.endswith(".pyc")]
    (tmp_path / "out" / "a.b.c.d.pyc").write_bytes(b"data")
    assert _run(tmp_path, "open(f'{out}/a.b.c.d.pyc').close()").read[-1] == str(tmp_path / "out" / "a.b.c.d.pyc")


def test_a_listed_folder_and_a_program_elsewhere_are_noted(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    program = tmp_path / "out" / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    code = "import subprocess; list(os.scandir(out)); os.listdir(out); subprocess.run([f'{out}/tool'], check=True)"
    assert _run(tmp_path, code).read == [str(tmp_path / "out"), str(program)]


def test_a_host_is_noted_once_by_its_name(tmp_path: Path) -> None:
    code = """
    import contextlib, socket
    for host in ("Data.Example.invalid", "data.example.invalid."):
        with contextlib.suppress(OSError):
            socket.create_connection((host, 443), timeout=0.01)
    for address in (("192.0.2.1", 443), ("198.51.100.7", 80), ("127.0.0.1", 9)):
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.settimeout(0.01)
            connection.connect(address)
    """
    assert _run(tmp_path, code).hosts == ["data.example.invalid", "198.51.100.7"]


def test_a_process_notes_a_bounded_number_of_files(tmp_path: Path) -> None:
    code = """
    reads._MOST = 20
    os.makedirs("made")
    os.chdir(out)
    for number in range(30):
        os.close(os.open(f"{number}.bin", os.O_RDONLY))
    """
    (tmp_path / "out").mkdir()
    for number in range(30):
        (tmp_path / "out" / f"{number}.bin").write_bytes(b"")
    notes = _run(tmp_path, code)
    assert (len(notes.read), notes.more) == (20, True)


def test_workers_of_a_later_epoch_write_no_note_again(tmp_path: Path) -> None:
    code = """
    import collections
    for epoch in range(3):
        pid = os.fork()
        if pid == 0:
            open(f"{out}/a.bin").close()
            os._exit(0)
        os.waitpid(pid, 0)
    """
    assert len(_run(tmp_path, code).read) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_a_data_loader_reads_are_noted(tmp_path: Path, workers: int) -> None:
    code = f"""
    import torch
    class Files(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, index):
            with open(f"{{out}}/{{index}}.txt") as file:
                return int(file.read())
    for epoch in range(2):
        assert sum(int(x.sum()) for x in torch.utils.data.DataLoader(Files(), 2, num_workers={workers})) == 28
    """
    (tmp_path / "out").mkdir()
    for index in range(8):
        (tmp_path / "out" / f"{index}.txt").write_text(str(index))
    notes = _run(tmp_path, code)
    assert sorted(set(notes.read)) == [str(tmp_path / "out" / f"{index}.txt") for index in range(8)]
