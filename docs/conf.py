"""How the documentation is built: ``sphinx-build -n -W -b html docs docs/_build/html``, without a network."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(_HERE), os.path.join(_HERE, "_ext")]

import gpusense  # noqa: E402

project = "gpusense"
author = "the gpusense authors"
copyright = author
version = release = gpusense.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "from_source"]
exclude_patterns = ["_build", "_ext", "_static"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
smartquotes = False  # they turn --option into a dash
html_theme = "furo"
html_title = f"gpusense {version}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]

default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Types of the standard library have no page here.
nitpick_ignore_regex = [
    ("py:class", r"(int|str|bool|float|bytes|object|tuple|dict|list|None|BaseException|TracebackType|Any|Callable)"),
    ("py:class", r"(collections\.abc|typing|types|os)\..*"),
    ("py:class", r"threading\.Thread|gpusense\..*\.(Clock|Driver)|(gpusense\..*\.)?TimedBlock|Direction|Redact|F"),
    ("py:class", r"(gpusense\..*\.)?(KernelFields|TransferFields|ComputeFields)|gpusense\..*\.(Receiver|WorkTable)"),
    ("py:class", r"(Iterable|Iterator|Sequence|Mapping|Literal|IO|PathLike|os\.PathLike\[str\])"),
]
