"""Sphinx's settings: the pages of this folder as one searchable site, with README.md as its front page."""

import tomllib
from pathlib import Path

project = "Minicluster"
version = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"{project} {version}"
myst_heading_anchors = 4
"""Headings get GitHub's anchors; a link to one that is not there is a warning, which fails the build."""
suppress_warnings = ["misc.highlighting_failure"]
"""Cells with magics are not Python; they are shown without colours."""
