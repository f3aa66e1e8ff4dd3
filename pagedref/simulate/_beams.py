"""Which beam goes on from which: a beam search over a model of which only chance is known."""

from __future__ import annotations

import numpy as np

from pagedref.memory import KVManager

__all__ = ["Beams"]


class Beams:
    """Draw the genealogy of a beam search.

    Parameters
    ----------
    width : int
        Beams.
    seed : int
        Of the draws.

    Notes
    -----
    The costs (negative log-probabilities) of the continuations of a beam are drawn anew in each step, as the points of
    a Poisson process; of all continuations of all beams the `width` cheapest in sum go on. The rate of the process
    changes all costs alike and so does not matter: the model has no parameter. A real model is less fair, its best
    continuations are closer together or further apart from step to step, so its beams share less or more than these.
    """

    def __init__(self, width: int, seed: int = 0) -> None:
        self.width, self.seed = width, seed
        self._costs: dict[int, tuple[int, np.ndarray[tuple[int], np.dtype[np.float64]]]] = {}

    def go_on(self, manager: KVManager, number: int, produced: int, runs: list[int]) -> list[int]:
        """Replace beams by forks of those from which the next ones go on, once for each output.

        Parameters
        ----------
        manager : KVManager
            Where the beams live.
        number, produced : int
            The request, and the outputs that it has.
        runs : list of int
            Its beams.

        Returns
        -------
        list of int
            The new ones.
        """
        done, costs = self._costs.get(number, (0, np.zeros(self.width)))
        if done == produced:
            return runs
        draws = np.random.default_rng((self.seed, number, produced))
        steps = draws.exponential(size=(self.width, self.width)).cumsum(axis=1)
        sums = (costs[:, None] + steps).ravel()
        chosen = np.sort(np.argpartition(sums, self.width - 1)[: self.width])
        self._costs[number] = (produced, sums[chosen])
        parents = chosen // self.width  # ascending
        kept: list[int] = []
        for at, parent in enumerate(parents.tolist()):
            first = at == 0 or parent != parents[at - 1]
            kept.append(runs[parent] if first else manager.fork(runs[parent]))
        gone = [run for run in runs if run not in set(kept)]
        if gone:
            manager.free(gone)
        return kept

    def forget(self, number: int) -> None:
        """Drop what is known of a request.

        Parameters
        ----------
        number : int
            The request.
        """
        self._costs.pop(number, None)
