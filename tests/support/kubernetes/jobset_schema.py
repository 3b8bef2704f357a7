"""The problems of a JobSet by the schema of its CustomResourceDefinition: types, unknown fields, and rules in CEL.

An API server does the same, and defaults and webhooks come in addition. Free maps, such as labels, have no fields.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import cel
from jsonschema import Draft202012Validator

_SCHEMA = Path(__file__).with_name("jobset-0.12.0.json")


def problems(jobset: Any, old: Any = None) -> list[str]:
    """Return the problems of a JobSet, which replaces the JobSet `old` if there is one."""
    errors = sorted(_validator().iter_errors(jobset), key=lambda error: [*map(str, error.path)])
    found = [f"{'/'.join(map(str, error.path))}: {error.message[:200]}" for error in errors]
    # The server evaluates the rules of valid objects alone.
    return found or [*_broken_rules(schema(), jobset, old, "")]


@cache
def schema() -> dict[str, Any]:
    """Return the schema, whose metadata has the fields of the metadata of an embedded object."""
    found = cast("dict[str, Any]", json.loads(_SCHEMA.read_text()))
    embedded = found["properties"]["spec"]["properties"]["replicatedJobs"]["items"]["properties"]["template"]
    server = {name: {"type": "string"} for name in ("uid", "resourceVersion", "creationTimestamp")}
    metadata = embedded["properties"]["metadata"]
    found["properties"]["metadata"] = metadata | {"properties": metadata["properties"] | server}
    return found


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(_strict(schema()))


def _strict(part: Any) -> Any:
    """Return a schema that has no unknown fields. A server removes them, or refuses them if a client asks for it."""
    if isinstance(part, list):
        return [_strict(each) for each in part]
    if not isinstance(part, dict):
        return part
    made = {key: _strict(each) for key, each in part.items()}
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    is_closed = "properties" in made and not made.get("x-kubernetes-preserve-unknown-fields")
    if made.get("type") == "object" and is_closed and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


def _broken_rules(part: dict[str, Any], value: Any, old: Any, place: str) -> Iterator[str]:
    """Yield the rules in CEL that a value breaks. A rule with `oldSelf` judges a change alone."""
    for each in part.get("x-kubernetes-validations", ()):
        is_change = "oldSelf" in each["rule"]
        if (not is_change or old is not None) and not cel.evaluate(each["rule"], {"self": value, "oldSelf": old}):
            yield f"{place}: {each['message']}"
    if isinstance(value, dict):
        for name, inner in part.get("properties", {}).items():
            if name in value:
                yield from _broken_rules(inner, value[name], (old or {}).get(name), f"{place}/{name}")
    if isinstance(value, list) and "items" in part:
        olds = old if isinstance(old, list) and len(old) == len(value) else [None] * len(value)
        for number, (inner, before) in enumerate(zip(value, olds, strict=True)):
            yield from _broken_rules(part["items"], inner, before, f"{place}/{number}")
