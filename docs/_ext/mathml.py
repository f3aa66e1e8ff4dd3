"""Write formulas as MathML, which browsers display themselves: no script, no fonts, no network.

Docutils brings the translator from TeX; a formula that it does not understand is an error of the build.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.math import get_node_equation_number


def translate(tex: str, *, as_block: bool) -> str:
    """Return a formula as a ``<math>`` element."""
    try:
        return str(tex2mathml(tex, as_block=as_block))
    except MathError as problem:
        raise SphinxError(f"formula {tex!r} is not understood: {problem}") from problem


def inline(self: Any, node: nodes.Element) -> None:
    self.body.append(translate(node.astext(), as_block=False))
    raise nodes.SkipNode


def block(self: Any, node: nodes.Element) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math-block"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})</span>')
    self.body.append(translate(node.astext(), as_block=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
