"""docs/reference/environment.md matches the code: facts, variables and rules."""

import re
from pathlib import Path

from m5ws.environment.drift import table
from m5ws.environment.nccl import rules as network
from m5ws.environment.observe import container, hardware, native_libraries, variables
from m5ws.training.runtime.facts import versions
from tests.support.machine import nccl_facts
from tests.support.paths import ROOT

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "environment.md"


def variable_list() -> str:
    return ", ".join(f"`{name}`" for name in variables.BUILT_IN)


def rule_table() -> str:
    rows = [f"| {rule.part} | `{rule.pattern}` | {rule.rating} | {rule.why} |" for rule in table().rule]
    return "\n".join(["| part | names | rating | why |", "|---|---|---|---|", *rows])


def network_table() -> str:
    rows = []
    for rule in network.rules():
        value = "unset" if rule.unset else " ".join((*rule.value, *(f"not {each}" for each in rule.unless)))
        where = ", ".join(f"{name} {bound}" for name, bound in rule.where.items())
        rows.append(f"| `{rule.variable}` | `{value}` | `{where}` | {rule.effect} | {rule.why} |")
    return "\n".join(["| variable | value | if | effect | why |", "|---|---|---|---|---|", *rows])


def section(text: str, name: str) -> str:
    match = re.search(rf"<!-- {name}: begin -->\n(.*?)\n?<!-- {name}: end -->", text, re.DOTALL)
    assert match, name
    return match[1]


def test_the_page_lists_the_variables_of_the_code() -> None:
    assert section(PAGE.read_text(), "variables") == variable_list()


def test_the_page_lists_the_drift_rules_of_the_code() -> None:
    assert section(PAGE.read_text(), "rules") == rule_table()


def test_the_page_lists_the_network_rules_of_the_code() -> None:
    assert section(PAGE.read_text(), "network rules") == network_table()


def test_every_fact_is_documented() -> None:
    root = Path("/")
    facts = {**hardware.cpu(root), **hardware.gpu(root), **container.facts(root, {}), **hardware.aws(root)}
    logged = {name for path in (ROOT / "tests/data/nccl").glob("*.log") for name in nccl_facts.read(path.read_text())}
    for name in {*facts, *native_libraries.network({}, root), *versions(), *logged, "nccl.log", "nccl.limits"}:
        assert f"`{name}`" in PAGE.read_text(), name


def write() -> None:
    """Write the generated sections of the page: `python tests/environment/test_environment_docs.py`."""
    text = PAGE.read_text()
    for name, content in (("variables", variable_list()), ("rules", rule_table()), ("network rules", network_table())):
        pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
        text = re.sub(pattern, lambda match, put=content: f"{match[1]}{put}\n{match[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    PAGE.write_text(text)


if __name__ == "__main__":
    write()
