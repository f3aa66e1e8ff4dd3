"""Sphinx configuration: the site builds from a checkout without a network."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import pagedref

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "pagedref"
author = "The pagedref contributors"
copyright = author
version = release = pagedref.__version__

extensions = [
    "matplotlib.sphinxext.plot_directive",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "complete",
    "docstrings",
    "mathml",
    "rules",
    "rule_pages",
    "study",
    "walk",
]
html_math_renderer = "mathml"
exclude_patterns = ["_build", "**/sg_execution_times.rst", "sg_execution_times.rst"]  # that page needs a network
nitpicky = True
nitpick_ignore_regex: list[tuple[str, str]] = []

# Names of other projects that these pages link to. The inventories are kept here, as text, so no network is needed.
inventories = Path(__file__).parent / "_inventories"
intersphinx_mapping = {
    "python": ("https://docs.python.org/3/", str(inventories / "python.txt")),
    "numpy": ("https://numpy.org/doc/stable/", str(inventories / "numpy.txt")),
}

# The twin's page needs Numba, and in its simulator kernels stay the plain functions that they are. Without Numba the
# site is built without the docstrings of the twin.
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
try:
    import_module("pagedref_cuda.cache")
except ImportError:
    suppress_warnings = ["autodoc.import_object"]
    nitpick_ignore_regex.append(("py:.*", r"(pagedref_cuda\..*|device)"))

# Pictures in chapters are drawn from live objects when the site is built.
plot_pre_code = """
import matplotlib.pyplot as plt
import numpy as np
from pagedref.memory import KVManager
from pagedref.memory.snapshot import snapshot
from pagedref.plotting.pictures import draw_entry, draw_pool, draw_tables, draw_timeline, draw_weights
"""
plot_formats = [("png", 110)]
plot_html_show_formats = False
plot_html_show_source_link = False

# The tutorials are scripts: run when the site is built, with what they print and draw on the page.
sphinx_gallery_conf = {
    "examples_dirs": ["../examples/tutorials"],
    "gallery_dirs": ["learn"],
    "filename_pattern": r"/\d\d_",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "nested_sections": False,
    "within_subsection_order": "FileNameSortKey",
    "matplotlib_animations": False,
    "abort_on_example_error": True,
}

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # types, shapes and ranges stand in the docstrings
autodoc_default_options = {"members": True}
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style"), "Mutates", "Launch", "Reads/Writes", "Barriers", "Rung"]

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

highlight_language = "none"  # drawings in docstrings are no Python; doctests are found anyway

html_theme = "pydata_sphinx_theme"
html_title = "pagedref"
html_static_path = ["_static"]
html_css_files = ["house.css", "pages.css"]
html_context = {"default_mode": "auto"}  # as the reader's system is
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
alone = "index semantics api cuda house faults glossary interactive gallery references"
html_sidebars = {page: [] for page in alone.split()}
