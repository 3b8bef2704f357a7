"""Resolver of YAML 1.1 as PyYAML reads it, which most scripts use.

ruamel.yaml's own rules for 1.1 take `1e-4` for a number and `n` for a boolean. To PyYAML both are text.
"""

import re
from typing import Any

from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

_FLOAT = re.compile(r"[-+]?[\d_]*\.[\d_]*([eE][-+]\d+)?|[-+]?\d[\d_]*(:[0-5]?\d)+\.[\d_]*|[-+]?\.(?i:inf|nan)")


class PyYamlResolver(VersionedResolver):
    """Types of plain scalars. The version of the reader must be 1.1."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node."""
        tag = super().resolve(kind, value, implicit)
        is_text = (str(tag).endswith(":float") and not _FLOAT.fullmatch(value)) or (
            str(tag).endswith(":bool") and len(value) == 1
        )
        return Tag(suffix="tag:yaml.org,2002:str") if is_text and implicit[0] else tag
