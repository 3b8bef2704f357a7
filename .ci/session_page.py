#!/usr/bin/env python3
"""Build the page docs/reference/session.md from docstrings: `python .ci/session_page.py`.

A test compares the page with this output, so that docstrings and documentation cannot differ.
"""

import inspect
import sys
from collections.abc import Iterator

from m5ws.training.session.session import Session, seed, session
from m5ws.training.session.step import Step

_HEAD = """\
# The session of a training script

<!-- Made by `python .ci/session_page.py`; a test compares it. Change the docstrings, not this page. -->

[Use your own script](../how-to/use-your-own-script.md#2-with-a-session) has a whole loop. All ranks must make a call
that is *collective*.
"""


def page() -> str:
    """Return the whole page."""
    sections = [_section("##", "m5ws.seed", seed), _section("##", "m5ws.session", session)]
    for name, kind in (("session", Session), ("step", Step)):
        sections.append(f"## {kind.__name__}\n\n{inspect.getdoc(kind)}\n")
        sections += _members(name, kind)
    return "\n".join([_HEAD, *sections])


def _members(name: str, kind: type) -> Iterator[str]:
    """Yield a section for each public property and method, in the order of the class."""
    for member, value in vars(kind).items():
        if not member.startswith("_"):
            yield _section("###", f"{name}.{member}", value)


def _section(level: str, name: str, value: object) -> str:
    call = _parameters(value) if inspect.isfunction(value) else ""
    return f"{level} {name}\n\n```python\n{name}{call}\n```\n\n{inspect.getdoc(value)}\n"


def _parameters(function: object) -> str:
    """Return the parameters with their defaults, without types and `self`."""
    assert callable(function)
    every = inspect.signature(function).parameters.values()
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in every if each.name != "self"]
    return str(inspect.Signature(bare))


if __name__ == "__main__":
    sys.stdout.write(page())
