"""How Sphinx makes the site of what `docs/site` has laid out (`make docs`)."""

from importlib.metadata import version as version_of

project = "Tandem"
version = release = version_of("tandem")
language = "en"

extensions = ["myst_parser"]
nitpicky = True
# Anchors of headings are those that a code host gives them.
myst_heading_anchors = 6
myst_enable_extensions = ["strikethrough"]

# A figure's or a placeholder's `…` is no mistake of the page that shows it.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"

# An option begins with two hyphens, not with a dash.
smartquotes = False

html_theme = "furo"
html_title = f"Tandem {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# Only asked for by `make docs-links`: the pages name them, the site needs none of them.
linkcheck_timeout = 15
linkcheck_workers = 4
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1|HOST|URL)\b"]
