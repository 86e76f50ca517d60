"""The documentation as a site: ``python -m sphinx -W docs site``."""

import re
from importlib.metadata import version as version_of

from sphinx.application import Sphinx

project = "Dovetail"
author = "The Dovetail authors"
project_copyright = "The Dovetail authors, Apache-2.0"
release = version_of("dovetail")

extensions = ["myst_parser", "sphinx_copybutton", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
# GitHub draws such blocks, too.
myst_fence_as_directive = ["mermaid"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]

# Pygments has no lexer for tables.
suppress_warnings = ["misc.highlighting_failure"]

smartquotes_action = "qe"  # two hyphens begin an option; they are not a dash

html_theme = "furo"
html_title = f"Dovetail {release}"
html_copy_source = False
html_static_path = ["style"]
html_css_files = ["narrow.css"]
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True


# The start page is a list of links that any host shows; the site's navigation is made from it.
SECTION = re.compile(r"^## (.+)\n\n((?:- \[.+\]\(.+\.md\)\n)+)", re.M)
PAGE = re.compile(r"\]\((.+)\.md\)$", re.M)


def _navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    if name == "index":
        for caption, links in SECTION.findall(source[0]):
            pages = "\n".join(PAGE.findall(links))
            options = f":caption: {caption}\n:hidden:\n:maxdepth: 1"
            source[0] += f"\n```{{toctree}}\n{options}\n\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    """Connect the function that makes the navigation."""
    app.connect("source-read", _navigation)
