"""HTML elements. Text becomes markup here alone, and every text is escaped."""

import html
from collections.abc import Iterable

import msgspec

from m5ws.control_characters import escaped

_VOID = frozenset(("br", "meta", "line", "circle", "polyline", "rect"))


class Markup(msgspec.Struct, frozen=True):
    """HTML that `tag` made. A plain text is never markup."""

    text: str


Child = Markup | str | None | Iterable["Markup | str | None"]
"""The content of an element: markup as it is, text to be escaped, None for nothing."""


def tag(name: str, *children: Child, **attributes: str | float | None) -> Markup:
    """Return an element. Attributes of None are left out. `_` in a name becomes `-`; a last one is removed."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    opening = "".join([name, *(f' {key}="{escape(str(value))}"' for key, value in named.items())])
    if name in _VOID:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{''.join(map(_text, children))}</{name}>")


def escape(text: str) -> str:
    """Return text as HTML shows it, with control characters in visible form."""
    return html.escape(escaped(text), quote=True)


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child.text
    if isinstance(child, str):
        return escape(child)
    return "".join(map(_text, child))
