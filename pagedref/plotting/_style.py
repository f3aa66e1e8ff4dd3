"""The look of all figures: colours that everybody can tell apart, few lines, large letters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagedref.errors import BackendUnavailable

__all__ = ["COLOURS", "KINDS", "MARKERS", "figure", "label_of", "save"]

# Okabe and Ito's palette: told apart by everybody, also in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# The four kinds of slots, from what counts to what is lost: name, colour, hatching.
KINDS = (
    ("token states", "#0072B2", ""),
    ("reserved", "#56B4E9", "//"),
    ("internal", "#E69F00", "\\\\"),
    ("external", "#DDDDDD", "xx"),
)
LABELS = {
    "contiguous-max": "contiguous,\nmaximum", "contiguous-pow2": "contiguous,\npower of two",
    "contiguous-oracle": "contiguous,\noracle",
}  # fmt: skip
SETTINGS = {
    "font.size": 11, "axes.titlesize": 13, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "figure.dpi": 100,
    "savefig.dpi": 150, "hatch.linewidth": 0.6, "legend.frameon": False, "svg.fonttype": "none",
}  # fmt: skip


def figure(width: float = 8.0, height: float = 4.5, **arguments: Any) -> tuple[Any, Any]:
    """Return a new figure and its axes, drawn without a screen.

    Parameters
    ----------
    width, height : float
        Inches.
    **arguments
        Of ``Figure.subplots``.

    Returns
    -------
    figure, axes

    Raises
    ------
    BackendUnavailable
        matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        text = "plotting: matplotlib is missing, got no module, need pip install 'pagedref[plot]'"
        raise BackendUnavailable(text) from error
    mpl.rcParams.update(SETTINGS)
    made = Figure(figsize=(width, height), layout="constrained")
    return made, made.subplots(**arguments)


def save(made: Any, folder: Any, name: str) -> str:
    """Write a figure, and return its path.

    Parameters
    ----------
    made : figure
        What to write.
    folder : path
        Where to; made if it is not there.
    name : str
        Name of the file without its end.

    Returns
    -------
    str
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    made.savefig(path / f"{name}.png")
    return str(path / f"{name}.png")


def label_of(policy: str, page_size: int, several: bool) -> str:
    """Return a name for people: of pages the size where it differs from run to run.

    Parameters
    ----------
    policy : str
        Of a scenario.
    page_size : int
        Tokens in a page.
    several : bool
        Whether it differs.

    Returns
    -------
    str
    """
    for name, label in LABELS.items():
        if policy.startswith(name):
            return label
    return f"paged, {page_size} a page" if several or "-" in policy else "paged"


def thousands(axis: Any) -> None:
    """Write the numbers of an axis with commas."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def percent(axis: Any) -> None:
    """Write the numbers of an axis, parts of one, as percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1, decimals=0))


def unique(labels: Sequence[str]) -> list[str]:
    """Return labels of which no two are alike: equal ones get numbers."""
    return [f"{label} ({labels[:at].count(label) + 1})" if labels.count(label) > 1 else label
            for at, label in enumerate(labels)]  # fmt: skip
