"""Records in threads: any thread may be the first to decode a kind."""

import subprocess
import sys

# In each child no kind of record has a decoder yet. The exit status shows a crash.
_FIRST_USE = """
import os, sys, threading
from m5ws.records import codec
from m5ws.records.snapshot import Code, Snapshot
from m5ws.records.environment import Declared, Determinism
from m5ws.records.tree import Entry, Slice, Tree

# Threads change places often.
sys.setswitchinterval(1e-6)
digest = "0" * 64
part = Slice(object=digest, offset=0, size_bytes=1, digest=digest)
tree = Tree(entries=(Entry(path=b"a", mode="file", size_bytes=1, digest=digest, parts=(part,)),))
code = Code(commit=None, dirty=False, tree=digest)
snapshot = Snapshot(
    code=code, config=digest, tokenizer=None, datasets=(), declared=Declared(), determinism=Determinism()
)
stored = [(codec.encode(record), type(record)) for record in (tree, snapshot)]
gate = threading.Barrier(8)

def read(order):
    gate.wait()
    for data, kind in stored[::order]:
        codec.decode(data, kind)

def first_use():
    threads = [threading.Thread(target=read, args=(1 if number % 2 else -1,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)

ends = set()
for _ in range(100):
    child = os.fork() or first_use()
    ends.add(os.waitpid(child, 0)[1])
print(ends)
"""


def test_threads_can_decode_a_record_type_for_the_first_time_in_parallel() -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST_USE], capture_output=True, text=True, check=True)
    assert done.stdout == "{0}\n", done.stderr
