"""Turn numbers into links: the rule ``S5`` and the fault ``P08`` in prose, and ``:law:`L3``` where a law is meant.

A rule leads to its page (rule_pages.py), a fault to its place in faults.rst. A number without a label is a warning.
``:report:`owner/name#12``` links to a public report.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

RULE = re.compile(r"\b(?:S[1-9][0-9]?|P[0-9]{2})\b")
NOT_IN = (nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.doctest_block, addnodes.pending_xref)


def link(number: str, source: str) -> addnodes.pending_xref:
    """Make a reference to the page of a rule or the label of a fault, shown as the bare number."""
    label = number.lower() if number[0] == "P" else f"rule-{number.lower()}"
    target = addnodes.pending_xref(
        "", refdomain="std", reftype="ref", reftarget=label, refdoc=source, refexplicit=True, refwarn=True
    )
    target += nodes.inline(number, number, classes=["rule"])
    return target


class LinkRules(SphinxTransform):
    """Replace rule numbers in running text by links."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            parent = text.parent
            if isinstance(parent, NOT_IN) or (parent.parent is not None and isinstance(parent.parent, NOT_IN)):
                continue
            pieces: list[nodes.Node] = []
            start = 0
            for found in RULE.finditer(str(text)):
                pieces.append(nodes.Text(str(text)[start : found.start()]))
                pieces.append(link(found[0], self.env.docname))
                start = found.end()
            if pieces:
                pieces.append(nodes.Text(str(text)[start:]))
                parent.replace(text, pieces)


def law(name: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = ()) -> Any:
    """Link to a law: ``:law:`L3```."""
    return [link(text, inliner.document.settings.env.docname)], []


def report(name: str, rawtext: str, text: str, lineno: int, inliner: Any, *_: Any, **__: Any) -> Any:
    """Link to an issue or pull request: ``:report:`owner/name#12```."""
    repository, _, number = text.partition("#")
    return [nodes.reference(rawtext, text, refuri=f"https://github.com/{repository}/issues/{number}")], []


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(LinkRules)
    app.add_role("law", law)
    app.add_role("rule", law)
    app.add_role("report", report)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
