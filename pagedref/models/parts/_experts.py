"""Experts: a router chooses some networks for each token, and their results are weighed and added.

Each expert runs once for all tokens that chose it. What a token gets is added up in the order of its experts' numbers,
so it does not depend on the other tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.layers.choose import softmax, top_k
from pagedref.models.config import Experts
from pagedref.models.parts._build import Build
from pagedref.models.parts._network import Network
from pagedref.models.parts._run import Run

__all__ = ["ExpertNetwork", "choose_experts"]

Array = npt.NDArray[Any]
_TINY = 1e-20


def choose_experts(logits: Array, experts: Experts, correction: Array | None = None) -> tuple[Array, Array]:
    """Choose the experts of each token, and their weights.

    Parameters
    ----------
    logits : array (tokens, count) of float
        What the router says.
    experts : Experts
        The rules.
    correction : array (count,) of float, optional
        Added to the scores for choosing only.

    Returns
    -------
    weights : array (tokens, per_token) of float
        In the type of `logits`.
    chosen : array (tokens, per_token) of int64
        Of equals the first.

    References
    ----------
    DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437, 2024, section 2.1.2.

    Examples
    --------
    Two groups of two; a token takes one group, the one with the largest score, and in it one expert.

    >>> rules = Experts(4, 1, 8, groups=2, groups_per_token=1)
    >>> choose_experts(np.log(np.array([[1.0, 4.0, 2.0, 3.0]])), rules)[1].tolist()
    [[1]]
    """
    if experts.scoring == "softmax_chosen":
        values, chosen = top_k(logits, experts.per_token)
        return softmax(values) * logits.dtype.type(experts.scale), chosen
    scores: Array = softmax(logits) if experts.scoring == "softmax" else _sigmoid(logits)
    ranked: Array = scores if correction is None else scores + correction
    if experts.groups > 1:
        groups = ranked.reshape(len(ranked), experts.groups, -1)  # (tokens, groups, members)
        best = groups.max(axis=2) if experts.group_score == "max" else np.sort(groups, axis=2)[:, :, -2:].sum(axis=2)
        kept = np.zeros(best.shape, bool)
        np.put_along_axis(kept, top_k(best, experts.groups_per_token)[1], True, axis=1)
        ranked = np.where(kept[:, :, None], groups, -np.inf).reshape(ranked.shape)
    chosen = top_k(ranked, experts.per_token)[1]
    weights = np.take_along_axis(scores, chosen, axis=1)
    if experts.renormalise:
        weights = weights / (weights.sum(axis=1, keepdims=True) + weights.dtype.type(_TINY))
    return weights * weights.dtype.type(experts.scale), chosen


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        result: Array = 1 / (1 + np.exp(-x))
    return result


class ExpertNetwork:
    """Transform each row by the experts that it chooses, and by the shared network if there is one.

    Parameters
    ----------
    build : Build
        Gives the weights.
    prefix : str
        Of the layer.
    experts : Experts
        The rules.
    """

    def __init__(self, build: Build, prefix: str, experts: Experts) -> None:
        self._rules = experts
        self._router = build.linear(prefix, "router")
        build.drop(prefix, "router")
        self._correction = build.array(f"{prefix}router_correction") if experts.correction else None
        self._experts = [
            Network(build, f"{prefix}experts_", lambda stack, at=number: stack[at], experts.limit)  # type: ignore[misc]
            for number in range(experts.count)
        ]
        build.drop(f"{prefix}experts_", *(("gate", "up", "down") if build.config.gated else ("up", "down")))
        self._shared = Network(build, f"{prefix}shared_") if experts.shared_size else None

    def __call__(self, x: Array, tokens: int, run: Run) -> Array:
        """Return what the experts make of the first `tokens` rows; arguments as in :class:`Network`."""
        scratch = run.scratch
        logits = self._router(x, scratch.rows("router", self._router.padded_features, tokens), tokens, run.crew)
        weights, chosen = choose_experts(logits, self._rules, self._correction)
        total = np.zeros((tokens, x.shape[1]), x.dtype)
        for number in np.unique(chosen).tolist():
            rows, at = np.nonzero(chosen == number)
            own = scratch.rows("expert rows", x.shape[1], tokens)
            own[: len(rows)] = x[rows]
            total[rows] += weights[rows, at, None] * self._experts[number](own, len(rows), run)
        if self._shared is not None:
            total += self._shared(x, tokens, run)
        return total
