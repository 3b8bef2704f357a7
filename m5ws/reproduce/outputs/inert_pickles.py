"""Pickles, read without running code in them: names of classes and functions become inert records.

No name is looked up or imported. A pickle that would need memory far beyond its size is refused.
https://docs.python.org/3/library/pickle.html#restricting-globals
"""

import functools
import pickle
import pickletools
from collections.abc import Iterator
from typing import IO, Any

import msgspec

from m5ws.reproduce.outputs.named_values import exact_text

_VALUES = 10**6
_NAMES_CHARACTERS = 2**26
_REBUILD = "torch._utils._rebuild_tensor_v2"
_CLOUDPICKLE = "cloudpickle.cloudpickle."
_TRACKER_ID = {f"{_CLOUDPICKLE}_make_skeleton_class": 4, f"{_CLOUDPICKLE}_make_skeleton_enum": 5}
"""Functions that make a class which cloudpickle stores by value, and the number of the argument that is a random id."""
_SETTERS = (f"{_CLOUDPICKLE}_class_setstate", f"{_CLOUDPICKLE}_function_setstate")


class Inert:
    """A class or function that a pickle names, called with `arguments` and given a `state`.

    A class that is stored by value has its own `parts` and `content`.
    """

    title = ""
    parts: tuple[object, ...] = ()
    content: object = None

    def __new__(cls, *arguments: object, **keywords: object) -> "Inert":
        made = super().__new__(cls)
        made.arguments, made.state, made.items, made.pairs = (arguments, keywords), None, [], []
        return made

    arguments: tuple[tuple[object, ...], dict[str, object]]
    state: object
    items: list[object]
    pairs: list[tuple[object, object]]

    def __init__(self, *arguments: object, **keywords: object) -> None:
        pass

    def __call__(self, *arguments: object, **keywords: object) -> "Inert":
        return Inert(self, *arguments, **keywords)

    def __setstate__(self, state: object) -> None:
        self.state = state

    def append(self, item: object) -> None:
        self.items.append(item)

    def extend(self, items: list[object]) -> None:
        self.items.extend(items)

    def __setitem__(self, key: object, value: object) -> None:
        self.pairs.append((key, value))


class Storage(msgspec.Struct, frozen=True):
    """A tensor's bytes, by the name of their zip member, or by their address in memory before PyTorch 1.6."""

    kind: str
    key: str
    elements: int


class Reader(pickle.Unpickler):
    """Reads a pickle without running code of it. `storages` has each storage by its key."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        title = f"{module}.{name}"
        # Each name gets its own object, so that a pickle cannot change the object of another name.
        if title in _TRACKER_ID:
            return functools.partial(_make_class, title)
        return functools.partial(_set_state) if title in _SETTERS else type("Inert", (Inert,), {"title": title})

    def persistent_load(self, pid: Any) -> object:
        if pid[0] == "module":
            return pid[1]
        kind, storage, key, _, elements, *view = pid
        if kind != "storage" or any(part is not None for part in view):
            raise ValueError("not a tensor's storage")
        found = Storage(kind=str(storage.title).rpartition(".")[2], key=str(key), elements=int(elements))
        self.storages.setdefault(found.key, found)
        return found


def _make_class(title: str, *arguments: Any) -> type[Inert]:
    """Return the inert class of a class that is stored by value. Leaves out the random id."""
    parts = (*arguments[: _TRACKER_ID[title]], *arguments[_TRACKER_ID[title] + 1 :])
    return type("Inert", (Inert,), {"title": str(arguments[1]), "parts": parts})


def _set_state(made: Any, state: object) -> object:
    """Give a class or function that is stored by value its content. Raises TypeError for any other object."""
    if isinstance(made, type) and issubclass(made, Inert):
        made.content = state
    elif isinstance(made, Inert):
        made.state = state
    else:
        raise TypeError("not a class or function")
    return made


def load(stream: IO[bytes]) -> tuple[Any, Reader]:
    """Return the object of the next pickle in a stream, and its reader. Raises one of `tensor_files.UNREADABLE`."""
    start = stream.tell()
    _check(stream)
    stream.seek(start)
    reader = Reader(stream)
    return reader.load(), reader


def flat(root: object) -> Iterator[tuple[str, object]]:
    """Yield the values in nested lists and mappings by their dotted names, and where an object contains itself.

    Raises ValueError for too many values or too long names.
    """
    waiting: list[tuple[str, str | None, object]] = [("", "", root)]
    around: dict[int, str] = {}  # Names of the objects that contain the current object, by their ids.
    count = characters = 0
    while waiting:
        name, key, value = waiting.pop()
        if key is None:
            del around[id(value)]
            continue
        value = _plain(value)
        name = f"{name}.{key}" if name else key
        count += 1
        characters += len(name)
        if count > _VALUES or characters > _NAMES_CHARACTERS:
            raise ValueError("too many values")
        below = _below(value)
        if below is None:
            yield name, value
        elif id(value) in around:
            yield name, ("same object as", around[id(value)])
        else:
            # A framework that restores a tuple may save it as a list.
            yield name, {} if type(value) is dict else [] if type(value) in (list, tuple) else _title(value)
            around[id(value)] = name
            waiting.append((name, None, value))
            waiting += [(name, key, part) for key, part in reversed(below)]


def _check(stream: IO[bytes]) -> None:
    """Refuse a pickle that would make the reader allocate memory far beyond its size. Raises ValueError."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise ValueError("its pickle numbers objects that are missing")
        if opcode.name.startswith("EXT"):
            raise ValueError("its pickle names registered extensions")


def _plain(value: object) -> object:
    """Return the bytes that an inert record stands for in protocol 2, which torch.save uses; else the value."""
    if isinstance(value, Inert) and value.state is None and value.title == "_codecs.encode":
        arguments, _ = value.arguments
        if arguments[1:] in (("latin1",), ("latin-1",)):
            return str(arguments[0]).encode("latin-1")
    return value


def _below(value: object) -> list[tuple[str, object]] | None:
    """Return the named parts of a value, None if it has none."""
    if isinstance(value, dict):
        return [(_key(key), part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(str(number), part) for number, part in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [(str(number), part) for number, part in enumerate(sorted(map(exact_text, value)))]
    if isinstance(value, type) and issubclass(value, Inert):
        return [(str(number), part) for number, part in enumerate((*value.parts, value.content) if value.parts else ())]
    if not isinstance(value, Inert) or is_tensor(value):
        return None
    called, keywords = value.arguments
    parts: list[tuple[str, object]] = [(f"({number})", part) for number, part in enumerate(called)]
    parts += [(f"({name})", part) for name, part in keywords.items()]
    parts += [(str(number), part) for number, part in enumerate(value.items)]
    parts += [(_key(key), part) for key, part in value.pairs]
    parts += [("(class)", type(value))] if type(value).parts else []
    return parts if value.state is None else [*parts, ("(state)", value.state)]


def _title(value: object) -> str:
    return str(getattr(value, "title", type(value).__name__))


def _key(key: object) -> str:
    if isinstance(key, Inert):
        return f"[{' '.join(f'{name}={exact_text(value)}' for name, value in flat(key))}]"
    return key if isinstance(key, str) else f"[{exact_text(key)}]"


def is_tensor(value: Inert) -> bool:
    """Return True for the record of a tensor, whose first arguments are storage, offset, size and stride."""
    called = value.arguments[0]
    return value.title == _REBUILD and len(called) >= 4 and isinstance(called[0], Storage)
