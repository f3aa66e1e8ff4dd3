"""The verdict: what holds, what fails, how near to the bound, what kind of mistake it is; for people and machines."""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pagedref.conformance.alarm import ALARM, ErrorRatio
from pagedref.conformance.diagnosis import Named

__all__ = ["STATUSES", "Finding", "Verdict"]

STATUSES = ("holds", "fails", "accepts", "not offered")
"""What can come of a check. ``accepts``: wrong input is taken, or refused in other words than those of the contract."""


@dataclass(frozen=True)
class Finding:
    """One check and what came of it.

    Attributes
    ----------
    group : str
        ``probes``, ``checks``, ``stored forms``, ``faults``, ``laws``, ``index widths`` or ``random cases``.
    name : str
        The boundary.
    status : str
        One of :data:`STATUSES`.
    text : str
        What is wrong, or not offered.
    """

    group: str
    name: str
    status: str
    text: str = ""


@dataclass
class Verdict:
    """What the suite found.

    Attributes
    ----------
    backend, device, profile : str
        What was judged, where, and how long.
    findings : list of Finding
        In the order of the checks.
    named : tuple of Named
        Recognised mistakes.
    hints : list of str
        Faults of public systems whose case fails.
    fractions : dict of str to float
        Largest error of a right answer in parts of the derived bound, by operation.
    ratio : ErrorRatio or None
        Of the alarm.
    script : str
        The smallest random case that fails, as a script.
    notes : list of str
        What the reader should know.
    seconds : float
        Duration.
    versions : dict
        Of the package and of the specification, for machines.
    """

    backend: str
    device: str
    profile: str
    findings: list[Finding] = field(default_factory=list)
    named: tuple[Named, ...] = ()
    hints: list[str] = field(default_factory=list)
    fractions: dict[str, float] = field(default_factory=dict)
    ratio: ErrorRatio | None = None
    script: str = ""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    versions: dict[str, Any] = field(default_factory=dict)

    @property
    def failing(self) -> list[Finding]:
        """Checks that fail."""
        return [finding for finding in self.findings if finding.status == "fails"]

    @property
    def ok(self) -> bool:
        """Whether something was judged and nothing fails."""
        return any(finding.status == "holds" for finding in self.findings) and not self.failing

    @property
    def conclusion(self) -> str:
        """The verdict in a line."""
        if not any(finding.status in ("holds", "fails") for finding in self.findings):
            return "nothing was judged: the backend offers none of the operations that were asked for"
        if self.failing:
            return f"wrong: {len(self.failing)} checks fail"
        if self.ratio is not None and self.ratio.rings:
            return "right, but the alarm rings: long sums lose something at every step"
        return "right: all that is offered agrees with the specification"

    def counts(self) -> dict[str, Counter[str]]:
        """Return how often each status occurs, by group.

        Returns
        -------
        dict of str to Counter
        """
        counted: dict[str, Counter[str]] = {}
        for finding in self.findings:
            counted.setdefault(finding.group, Counter())[finding.status] += 1
        return counted

    def _sections(self, most: int | None) -> list[tuple[str, list[str]]]:
        """Return headings and lines: what every form of the verdict shows."""
        sections: list[tuple[str, list[str]]] = []
        lines = []
        for group, counter in self.counts().items():
            parts = [f"{counter[status]} {status}" for status in STATUSES if counter[status]]
            lines.append(f"{group:<14} " + ", ".join(parts))
        sections.append(("Checks", lines))
        failing = [f"{finding.name}: {finding.text}" for finding in self.failing]
        rest = 0 if most is None else max(len(failing) - most, 0)
        if failing:
            sections.append(("What fails", failing[:most] + ([f"and {rest} more (--json has all)"] if rest else [])))
        border = " · a dialect: convert it at the border"
        diagnosis = [str(named) + (border if named.dialect else "") for named in self.named]
        if self.failing and not diagnosis:
            diagnosis = ["no known mistake explains the numbers"]
        diagnosis += self.hints
        if diagnosis:
            sections.append(("Diagnosis", diagnosis))
        if self.script:
            sections.append(("The smallest random case that fails", self.script.splitlines()))
        others = [f for f in self.findings if f.status in ("accepts", "not offered")]
        grouped: dict[tuple[str, str], list[str]] = {}
        for finding in others:
            grouped.setdefault((finding.status, finding.text), []).append(finding.name)
        lines = [f"{status}: {text or names[0]} ({len(names)} checks)" for (status, text), names in grouped.items()]
        if lines:
            left = 0 if most is None else max(len(lines) - most, 0)
            sections.append(("Not judged, and not refused", lines[:most] + ([f"and {left} more"] if left else [])))
        errors = [f"{name:<14} {fraction:.1%} of the bound at most" for name, fraction in self.fractions.items()]
        if errors:
            sections.append(("Errors of right answers", errors))
        if self.ratio is not None:
            bell = "rings" if self.ratio.rings else "silent"
            line = f"{bell}: errors of long sums are {self.ratio.out:.2g} (out) and {self.ratio.lse:.2g} (lse) times"
            sections.append(("Alarm", [f"{line} those of NumPy in float32; it rings from {ALARM:g}"]))
        if self.notes:
            sections.append(("Notes", self.notes))
        return sections

    def _title(self) -> str:
        return f"{self.backend} on {self.device}, profile {self.profile}, {self.seconds:.1f} s"

    def text(self) -> str:
        """Return the verdict for a terminal.

        Returns
        -------
        str
            Lines; the conclusion is the last.
        """
        lines = [self._title()]
        for heading, rows in self._sections(12):
            lines += ["", heading, *(f"  {row}" for row in rows)]
        return "\n".join([*lines, "", self.conclusion])

    def markdown(self) -> str:
        """Return the verdict as Markdown.

        Returns
        -------
        str
        """
        lines = [f"# pagedref conform: {self.backend}", "", f"**{self.conclusion}**", "", self._title(), ""]
        for heading, rows in self._sections(None):
            lines += [f"## {heading}", ""]
            if rows and heading.startswith("The smallest"):
                lines += ["```python", *rows, "```", ""]
            else:
                lines += [*(f"- {row}" for row in rows), ""]
        return "\n".join(lines)

    def html(self) -> str:
        """Return the verdict as one page of HTML without outside parts.

        Returns
        -------
        str
        """
        body = [f"<h1>{html.escape(self.backend)}</h1>", f"<p class='{'right' if self.ok else 'wrong'}'>"]
        body += [f"{html.escape(self.conclusion)}</p>", f"<p>{html.escape(self._title())}</p>"]
        for heading, rows in self._sections(None):
            body.append(f"<h2>{html.escape(heading)}</h2>")
            if heading.startswith("The smallest"):
                body.append(f"<pre>{html.escape(chr(10).join(rows))}</pre>")
            else:
                body.append("<ul>" + "".join(f"<li>{html.escape(row)}</li>" for row in rows) + "</ul>")
        style = (
            ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
            "padding:0 1rem}pre{overflow-x:auto}.right,.wrong{font-weight:600}.wrong{border-left:.4rem solid;"
            "padding-left:.8rem}"
        )
        head = "<meta charset='utf-8'><meta name='viewport' content='width=device-width,initial-scale=1'>"
        title = f"<title>pagedref conform: {html.escape(self.backend)}</title><style>{style}</style>"
        return f"<!doctype html><html lang='en'><head>{head}{title}</head><body>{''.join(body)}</body></html>\n"

    def json(self) -> str:
        """Return the verdict for machines: one JSON object; infinite numbers are null.

        Returns
        -------
        str
        """
        def number(value: float) -> float | None:
            return value if math.isfinite(value) else None

        data: dict[str, Any] = {
            **self.versions,
            "backend": self.backend,
            "device": self.device,
            "profile": self.profile,
            "ok": self.ok,
            "conclusion": self.conclusion,
            "seconds": round(self.seconds, 3),
            "counts": {group: dict(counter) for group, counter in self.counts().items()},
            "diagnosis": [
                {"names": list(x.names), "text": x.text, "rule": x.rule, "operations": list(x.operations),
                 "probes": list(x.probes), "dialect": x.dialect}
                for x in self.named
            ],
            "hints": self.hints,
            "bound_fractions": {name: number(value) for name, value in self.fractions.items()},
            "alarm": None if self.ratio is None else {
                "out": number(self.ratio.out), "lse": number(self.ratio.lse), "rings": self.ratio.rings,
            },
            "script": self.script,
            "notes": self.notes,
            "findings": [
                {"group": x.group, "name": x.name, "status": x.status, "text": x.text} for x in self.findings
            ],
        }  # fmt: skip
        return json.dumps(data, indent=2)
