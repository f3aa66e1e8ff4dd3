"""Figures of simulations: waste by kind, who runs over time, hits over capacity, page sizes, frames over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from pagedref.plotting._style import COLOURS, KINDS, MARKERS, figure, label_of, percent, save, thousands, unique
from pagedref.simulate import Replay, Request, Summary, lru_curve, page_uses
from pagedref.simulate.hits import Order

__all__ = ["draw_concurrency", "draw_frames", "draw_hits", "draw_page_sizes", "draw_runs", "draw_waste"]

SHARES = ("token_state_share", "reserved_share", "internal_share", "external_share")


def draw_runs(runs: Sequence[Replay], folder: Any) -> list[str]:
    """Draw what runs side by side show: waste and concurrency, and over page size where that varies.

    Parameters
    ----------
    runs : sequence of Replay
        At least one.
    folder : path
        Where to.

    Returns
    -------
    list of str
        Paths.
    """
    summaries = [run.summary for run in runs]
    paths = [draw_waste(summaries, folder), draw_concurrency(runs, folder)]
    if len({summary.page_size for summary in summaries if summary.policy.startswith("paged")}) > 1:
        paths.append(draw_page_sizes(summaries, folder))
    return paths


def _kind(policy: str) -> int:
    """Return the place of a policy among the kinds of policies."""
    kinds = ("paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle")
    return next((at for at, kind in enumerate(kinds) if policy.startswith(kind)), len(kinds))


def _labels(summaries: Sequence[Summary]) -> list[str]:
    """Return a name for each run."""
    paged = {one.page_size for one in summaries if one.policy.startswith("paged")}
    pools = len({one.slots // max(paged, default=1) for one in summaries}) > 1
    labels = [label_of(one.policy, one.page_size, len(paged) > 1) for one in summaries]
    return unique([f"{label},\n{one.slots:,} slots" if pools else label for label, one in zip(labels, summaries)])


def draw_waste(summaries: Sequence[Summary], folder: Any) -> str:
    """Draw a bar for each run: where the memory went.

    Parameters
    ----------
    summaries : sequence of Summary
        Runs.
    folder : path
        Where to.

    Returns
    -------
    str
        Path.
    """
    made, axes = figure(8.4, 1.5 + 0.62 * len(summaries))
    places = np.arange(len(summaries))
    left = np.zeros(len(summaries))
    for share, (kind, colour, hatch) in zip(SHARES, KINDS, strict=True):
        parts = np.array([getattr(summary, share) or 0.0 for summary in summaries])
        axes.barh(places, parts, 0.68, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.8, label=kind)
        for place, start, part in zip(places, left, parts, strict=True):
            if part >= 0.055:
                box = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}
                ink = "white" if kind == "token states" else "black"
                axes.text(start + part / 2, place, f"{part:.0%}", ha="center", va="center", color=ink, bbox=box)
        left += parts
    axes.set_yticks(places, _labels(summaries))
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    percent(axes.xaxis)
    axes.set_xlabel("share of the pool, over all steps")
    axes.set_title("Where the memory for keys and values goes", pad=30)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.3)
    return save(made, folder, "waste")


def draw_concurrency(runs: Sequence[Replay], folder: Any) -> str:
    """Draw how many requests run at once, over time.

    Parameters
    ----------
    runs : sequence of Replay
        Runs; of more than six the first of each policy.
    folder : path
        Where to.

    Returns
    -------
    str
        Path.
    """
    made, axes = figure(8.4)
    if len(runs) > 6:
        first: dict[str, Replay] = {}
        for run in runs:
            first.setdefault("-".join(run.summary.policy.split("-")[:2]), run)
        runs = list(first.values())[:6]
    kinds = [_kind(run.summary.policy) for run in runs]
    colours = kinds if len(set(kinds)) == len(kinds) else range(len(runs))  # a policy has its colour in every figure
    for colour, run, label in zip(colours, runs, _labels([run.summary for run in runs]), strict=True):
        times, running = _thinned(run.series.column("time"), run.series.column("running"))
        mean = run.summary.mean_running or 0.0
        name = f"{label.replace(chr(10), ' ')}: {mean:,.1f} in the mean"
        axes.step(times, running, where="post", color=COLOURS[colour], label=name, linewidth=1.8)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    thousands(axes.xaxis)
    axes.grid(axis="y", color="#E5E5E5")
    axes.set_xlabel("time, s")
    axes.set_ylabel("requests in memory")
    axes.set_title("How many requests run at once")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return save(made, folder, "concurrency")


def _thinned(times: Sequence[float], values: Sequence[float], most: int = 160) -> tuple[Any, Any]:
    """Return means over equal stretches of time where there are many points."""
    moments, numbers = np.asarray(times), np.asarray(values)
    if moments.size <= most:
        return moments, numbers
    edges = np.linspace(0, moments[-1], most + 1)
    place = np.clip(np.searchsorted(edges, moments, side="right") - 1, 0, most - 1)
    spans = np.diff(moments, append=moments[-1]) + 1e-12
    sums = np.bincount(place, numbers * spans, most)
    weights = np.bincount(place, spans, most)
    there = weights > 0
    return edges[:-1][there], sums[there] / weights[there]


def draw_page_sizes(summaries: Sequence[Summary], folder: Any) -> str:
    """Draw how the size of a page changes what is wasted and how many requests run.

    Parameters
    ----------
    summaries : sequence of Summary
        Runs of paged policies; of others nothing is drawn.
    folder : path
        Where to.

    Returns
    -------
    str
        Path.
    """
    paged = sorted((one for one in summaries if one.policy.startswith("paged")), key=lambda one: one.page_size)
    pools = list(dict.fromkeys(one.slots // 1024 for one in paged))
    made, (left, right) = figure(9.6, 4.2, ncols=2)
    groups: dict[Any, list[Summary]] = {}
    for one in paged:
        groups.setdefault(one.slots // 1024 if len(pools) > 1 else 0, []).append(one)
    for at, (_, group) in enumerate(groups.items()):
        sizes = [one.page_size for one in group]
        style: dict[str, Any] = {"marker": MARKERS[at], "color": COLOURS[at], "linewidth": 1.8}
        style["label"] = f"pool of {group[0].slots:,} tokens"
        waste = [(one.reserved_share or 0) + (one.internal_share or 0) for one in group]
        left.plot(sizes, waste, **style)
        right.plot(sizes, [one.mean_running or 0 for one in group], **style)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        sizes = sorted({one.page_size for one in paged})
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens in a page")
        axes.grid(color="#E5E5E5")
    left.yaxis.set_major_formatter(lambda value, _: f"{value:.1%}")
    left.set_title("Unused ends of pages, of the pool")
    right.set_title("Requests at once, mean")
    if len(groups) > 1:
        left.legend()
    return save(made, folder, "page_size")


def draw_hits(
    trace: Iterable[Request], page_size: int, summaries: Sequence[Summary], order: str, folder: Any
) -> str:
    """Draw the part of the prompts that a cache finds, over its capacity: LRU as a curve, each run as a mark.

    Parameters
    ----------
    trace : iterable of Request
        With names of pages.
    page_size : int
        Tokens of a page.
    summaries : sequence of Summary
        Runs of prefix hits, several capacities and policies.
    order : {"request", "access"}
        Of :mod:`pagedref.simulate.hits`.
    folder : path
        Where to.

    Returns
    -------
    str
        Path.
    """
    uses = page_uses(trace, page_size)
    unlimited = int(np.unique(uses.pages).size)
    low = min([max(1, unlimited // 1000), *(one.slots // page_size for one in summaries)])
    capacities = sorted(set(np.geomspace(low, unlimited, 80).astype(int).tolist()))
    curve = lru_curve(uses, capacities, order=cast("Order", order))
    made, axes = figure()
    axes.plot(capacities, [one.token_hit_rate for one in curve], color=COLOURS[0], linewidth=2, label="lru")
    for at, name in enumerate(dict.fromkeys(one.eviction for one in summaries if one.eviction != "lru"), 1):
        marks = sorted((one for one in summaries if one.eviction == name), key=lambda one: one.slots)
        places = [one.slots // page_size for one in marks]
        rates = [one.token_hit_rate for one in marks]
        axes.plot(places, rates, MARKERS[at], linestyle=":", color=COLOURS[at], markersize=7, label=name)
    most = curve[-1].token_hit_rate
    axes.axhline(most, color="#777777", linewidth=1, linestyle="--")
    axes.text(low, most, f" unlimited: {most:.1%}", va="bottom", ha="left", color="#444444")
    axes.set_xscale("log")
    thousands(axes.xaxis)
    axes.set_ylim(0, max(most * 1.15, 0.01))
    percent(axes.yaxis)
    axes.grid(color="#E5E5E5")
    axes.set_xlabel(f"capacity, pages of {page_size:,} tokens")
    axes.set_ylabel("prompt tokens found")
    axes.set_title("What a prefix cache finds, by its capacity")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return save(made, folder, "hit_rate")


def draw_frames(runs: Sequence[Replay], folder: Any) -> str:
    """Draw who holds which frame, over the first part of the time: a strip for each run, a colour for each request.

    What a request has and has stored nothing in yet is pale: reserved, and empty.

    Parameters
    ----------
    runs : sequence of Replay
        With `Scenario.frame_map`.
    folder : path
        Where to.

    Returns
    -------
    str
        Path.
    """
    made, all_axes = figure(9.6, 0.7 + 2.9 * len(runs), nrows=len(runs), squeeze=False, sharex=True)
    span = max(min(run.summary.makespan or 0.0 for run in runs) / 4, 1e-9)
    for axes, run in zip(all_axes[:, 0], runs, strict=True):
        times = np.array(run.series.column("time"))
        at = np.searchsorted(times, np.linspace(0, span, 480), side="right").clip(max=times.size - 1)
        owners = np.stack([run.frames[place] for place in at], axis=1)  # (frames, moments)
        extent = (0, span, 0, owners.shape[0])
        axes.imshow(_painted(owners), aspect="auto", interpolation="nearest", origin="lower", extent=extent)
        thousands(axes.yaxis)
        label = label_of(run.summary.policy, run.summary.page_size, False).replace("\n", " ")
        axes.set_title(f"{label}: {run.summary.mean_running:,.1f} requests in the mean")
        axes.set_ylabel("frame" if run.summary.policy.startswith("paged") else "place in memory")
    all_axes[-1, 0].set_xlabel("time, s   (a colour is a request; pale: reserved and empty; white: free; grey: cached)")
    return save(made, folder, "frames")


def _painted(owners: Any) -> Any:
    """Return the colours of frames (see `Replay.frames`), shape (frames, moments, 3)."""
    from matplotlib.colors import to_rgb

    palette = np.array([to_rgb(colour) for colour in COLOURS[:6]])
    number, empty = owners // 2, owners % 2 == 1
    ink = np.where(empty, 0.16, 1 - 0.22 * (number // 6 % 3))[..., None]  # neighbours in time differ
    picture = 1 - ink * (1 - palette[number % 6])
    picture[owners == -1] = 1.0
    picture[owners == -2] = 0.82
    return picture
