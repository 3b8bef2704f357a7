"""Pages: no value becomes markup, they need nothing else, and they replace nothing but pages."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from m5ws.control_characters import escaped
from m5ws.errors import UsageError
from m5ws.pages import page
from tests.pages.reading import read

_HOSTILE = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="<>&\"'/=`- !{}%#\n\x00\u202eascriptonload", max_size=40),
    st.sampled_from(["</td><script>alert(1)</script>", '" onload="alert(1)', "<!--", "]]>", "&lt;", "&#60;b&#62;"]),
)


@given(_HOSTILE, _HOSTILE)
def test_texts_and_attributes_are_escaped_in_a_page(text: str, value: str) -> None:
    template = (
        '{% macro b(x) %}<b>{{ x }}</b>{% endmacro %}<p title="{{ value }}">{{ text }}{{ b(text) }}{{ absent }}</p>'
    )
    markup = page._templates().from_string(template).render(text=text, value=value, absent=None)
    reader = read(markup)
    assert reader.tags == [("p", {"title": escaped(value)}), ("b", {})]
    assert reader.text == escaped(text) * 2 and reader.comments == 0
    assert "\x00" not in markup and "\u202e" not in markup


def test_absent_values_have_no_rows_and_unknown_names_are_errors() -> None:
    template = page._templates().from_string('{% from "parts.html" import fields %}{{ fields(facts) }}{{ run }}')
    reader = read(template.render(facts={"loss": None, "step": "3 > 2"}, run=""))
    assert reader.text.split() == ["step3", ">", "2"]
    with pytest.raises(UndefinedError):
        template.render()


def test_writing_a_page_replaces_a_page_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for title in ("one", "two"):
        page.write(path, f"{page.MARK.decode()}{title}")
        assert title in path.read_text()
    path.write_text("my own page")
    for refused in (path, tmp_path, tmp_path / "missing" / "report.html"):
        with pytest.raises(UsageError):
            page.write(refused, page.MARK.decode())
    assert path.read_text() == "my own page" and [one.name for one in tmp_path.iterdir()] == ["report.html"]
