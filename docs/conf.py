"""The documentation as a site: ``python -m sphinx -W docs site``."""

from importlib.metadata import version as version_of

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

smartquotes_action = "qe"  # two hyphens begin an option; they are no dash

html_theme = "furo"
html_title = f"Dovetail {release}"
html_copy_source = False
html_static_path = ["style"]
html_css_files = ["narrow.css"]
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
