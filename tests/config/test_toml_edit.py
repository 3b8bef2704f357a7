"""Values set in TOML files of each form: the result has the values, and all other bytes stay the same."""

import re
import tomllib
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from m5ws.config.toml_edit import with_value

_NAMES = ("nccl", "cuda", "ofi-nccl")
_OWN = re.compile(r"""\s*(\[?['"]?environment|['"]?image|['"]?wanted|['"]?(nccl|cuda|ofi-nccl))\b""")
"""The beginning of a line that belongs to the edited keys."""
_OTHER_ROOT = ("name = 'x'", "# root", "text = '''\n[environment]\nno = 1\n'''", "list = [\n  [\n  'a'],\n]", "")
_OTHER_TABLES = (
    "[run]\nseed = 1 # one",
    "# of the tables\n[[more]]\na = 1\n[[more]]\na = 2",
    "[notes]\na = '''\n[environment.wanted]\n'''\nb = [\n  'x', # [environment]\n]",
    '  [indented]\n  a = "x\\u2028"\n# a\u2028[environment]',
)
_VERSIONS = st.text("0123456789.ab", min_size=1, max_size=6)
_PINS = st.fixed_dictionaries({}, optional={"image": _VERSIONS}), st.dictionaries(st.sampled_from(_NAMES), _VERSIONS)
_QUOTES = st.sampled_from(("'{}'", '"{}"', '"""{}"""'))


def _forms(image: str, wanted: dict[str, str]) -> list[tuple[str, str]]:
    """Return the section [environment] in each form, as lines of the root and lines of tables."""
    own = [f"image = {image}  # keep", "locks = [\n  'a', # [environment]\n]"] if image else ["# nothing"]
    versions = [f"{name} = {value}" for name, value in wanted.items()]
    inline = f"{{ {', '.join(versions)} }}"
    dotted = [f"wanted.{line} # n" for line in versions]
    both = [*([f"image = {image}"] if image else []), *([f"wanted = {inline}"] if wanted else [])]
    section, below = ["[environment]", *own], ["[environment.wanted] # below", *versions, "", "# about the next table"]
    return [
        ("", ""),
        ("", "\n".join([*section, f"wanted = {inline}"])),
        ("", "\n".join([*section, *dotted, "", "# about the next table"])),
        ("", "\n".join([*section, *below])),
        ("", "\n".join([*below, "[between]", *section])),
        ("", "\n".join(["['environment']", *own])),
        ("", "\n".join(below)),
        (f"environment = {{ {', '.join(both)} }}", ""),
        ("\n".join(f"environment.{line}" for line in [*own[:1], *dotted] if "=" in line), ""),
        ("\n".join(f"environment.{line}" for line in own[:1] if "=" in line), "\n".join(below)),
    ]


@st.composite
def _files(draw: st.DrawFn) -> str:
    image, wanted = draw(_PINS[0]), draw(_PINS[1])
    quoted = {name: draw(_QUOTES).format(value) for name, value in (image | wanted).items()}
    forms = _forms(quoted.get("image", ""), {name: quoted[name] for name in wanted})
    root, tables = draw(st.sampled_from(forms))
    roots = draw(st.permutations([root, *draw(st.lists(st.sampled_from(_OTHER_ROOT), unique=True))]))
    others = draw(st.lists(st.sampled_from(_OTHER_TABLES), unique=True))
    place = draw(st.integers(0, len(others)))
    text = "\n".join([*filter(None, roots), *others[:place], *filter(None, [tables]), *others[place:]])
    text += draw(st.sampled_from(("", "\n", "\n\n# end")))
    return text.replace("\n", draw(st.sampled_from(("\n", "\r\n"))))


def _without_own_lines(text: str) -> list[str]:
    return [line for line in re.findall(r"[^\n]*\n|[^\n]+", text) if not _OWN.match(line)]


@given(text=_files(), image=_PINS[0], wanted=_PINS[1])
@example(text="", image={"image": "a"}, wanted={"nccl": "1"})
@example(text="environment = {}", image={}, wanted={"nccl": "1"})
def test_the_values_are_set_and_all_other_lines_stay_the_same(
    text: str, image: dict[str, str], wanted: dict[str, str]
) -> None:
    expected: dict[str, Any] = tomllib.loads(text)
    section = expected.setdefault("environment", {}) if image or wanted else {}
    section |= image
    if wanted:
        section["wanted"] = section.get("wanted", {}) | wanted
    values: dict[tuple[str, ...], str] = {("environment", "wanted", name): value for name, value in wanted.items()}
    values |= {("environment", name): value for name, value in image.items()}
    edited = text
    for key, value in values.items():
        edited = with_value(edited, key, value)
    assert tomllib.loads(edited) == expected
    before, after = _without_own_lines(text), _without_own_lines(edited)
    if "environment" in tomllib.loads(text) or not values:
        # A file without a last line end gets one before a line that follows.
        assert "".join(after).removesuffix("\n").removesuffix("\r") == "".join(before).removesuffix("\n").removesuffix(
            "\r"
        )
    else:
        assert edited.startswith(text)
    if "\r\n" in text:
        assert re.search(r"(?<!\r)\n", edited) is None
    for key, value in values.items():
        assert with_value(edited, key, value) == edited
