"""Settings of the documentation site, built by `make docs`. docs/design/0021-documentation-site.md has the reasons."""

from m5ws import __version__

project = "m5ws"
release = __version__
extensions = ["myst_parser"]
# Each heading is a link target under the name that GitHub gives it, so one link serves both.
myst_heading_anchors = 4
# A reference to an unknown page or heading is a warning, and `make docs` makes warnings errors.
nitpicky = True
# Code blocks without a language are commands with their output. `--option` stays two hyphens.
highlight_language = "none"
smartquotes = False
html_theme = "furo"
html_title = f"m5ws {__version__}"
