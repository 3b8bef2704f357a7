"""The policies of docs/reference/policies, with names filled in and statements combined, as its page describes."""

import json
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[3] / "docs" / "reference" / "policies"


def template(name: str, *, bucket: str, prefix: str, arn: str = "") -> dict[str, Any]:
    """Return a template's policy with its placeholders replaced."""
    text = (PAGES / f"{name}.json").read_text(encoding="utf-8")
    for placeholder, value in (("BUCKET", bucket), ("PREFIX", prefix), ("ROLE_ARN", arn)):
        text = text.replace(placeholder, value)
    policy: dict[str, Any] = json.loads(text)
    return policy


def together(*policies: dict[str, Any]) -> str:
    """Return one policy with all statements, since a bucket has one policy."""
    statements = [statement for policy in policies for statement in policy["Statement"]]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})
