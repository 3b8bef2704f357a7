"""Pages: they need nothing else, and replace nothing but pages."""

from pathlib import Path

import pytest

from m5ws.errors import UsageError
from m5ws.pages import page
from m5ws.pages.markup import tag
from tests.pages.test_markup import read


def test_a_page_loads_nothing_and_has_its_parts() -> None:
    table = page.table(("a", "b"), [("1", tag("td", "2", class_="changed"))])
    data = page.page("A <title>", page.section("Part", table, page.fields({"x": "1", "y": None}))).decode()
    reader = read(data)
    names = [name for name, _ in reader.tags]
    assert names.count("table") == 2 and names.count("td") == 3 and "A <title>" in reader.text
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(names)
    assert not any({"src", "href", "action"} & set(found) for _, found in reader.tags)
    policy = next(found["content"] for _, found in reader.tags if found.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")


def test_what_is_empty_is_left_out() -> None:
    assert page.table(("a",), []) is None and page.fields({"a": None}) is None
    assert page.section("Part", None, None) is None


def test_a_page_is_replaced_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for title in ("one", "two"):
        page.write(path, page.page(title))
        assert title in path.read_text()
    path.write_text("my own page")
    for refused in (path, tmp_path, tmp_path / "missing" / "report.html"):
        with pytest.raises(UsageError):
            page.write(refused, page.page("three"))
    assert path.read_text() == "my own page" and [one.name for one in tmp_path.iterdir()] == ["report.html"]
