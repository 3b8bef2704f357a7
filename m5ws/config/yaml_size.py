"""A bound for YAML with aliases: a few hundred bytes can stand for 2**60 values.

The document is composed to nodes first, whose aliases share them, and the values that it stands for are counted. So the
work is proportional to the text.
"""

MOST_VALUES = 10**5
_PREFIX = "aliases and merge keys stand for more than"


class TooManyValues(ValueError):
    """A YAML text stands for more than MOST_VALUES values, or contains itself."""

    def __init__(self) -> None:
        super().__init__(f"{_PREFIX} {MOST_VALUES:,} values")


def refuse_large(text: str) -> None:
    """Raise TooManyValues if the aliases of a YAML text stand for too many values; ValueError for invalid YAML."""
    if "*" not in text:
        return
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(YAML(typ="safe", pure=True).compose_all(text))
    except YAMLError as error:
        raise ValueError(str(error)) from error
    sizes = dict[int, int]()
    if sum(_size(node, sizes) for node in documents if node is not None) > MOST_VALUES:
        raise TooManyValues


def _size(node: object, sizes: dict[int, int]) -> int:
    """Return the number of values of a node, each alias counted as its whole target. A node in itself is too large."""
    if id(node) not in sizes:
        sizes[id(node)] = MOST_VALUES + 1
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in _children(node))
    return sizes[id(node)]


def _children(node: object) -> list[object]:
    """Return the nodes of a sequence, the keys and values of a mapping; nothing for a scalar, whose value is text."""
    value = getattr(node, "value", None)
    if not isinstance(value, list):
        return []
    return [child for item in value for child in (item if isinstance(item, tuple) else (item,))]
