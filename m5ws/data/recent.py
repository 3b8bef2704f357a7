"""The values that were used most recently, such as open files. Threads may share them; copies of a process do not."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

_Value = TypeVar("_Value")


class Recent(Generic[_Value]):
    """At most `most` values by key. Pickled, it is empty."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Any, _Value] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Any, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, or make it, in the place of the value that was used longest ago."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = make()
        with self._lock:
            self._kept[key] = value
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return value

    def __reduce__(self) -> Any:
        return Recent, (self._most,)
