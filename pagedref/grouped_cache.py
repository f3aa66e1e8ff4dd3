"""A cache for models whose layers have different windows: pages leave each group of layers on its own (S5, S32).

With one table for all layers, a page must stay as long as one layer sees it, and a layer that sees everything keeps all
of them. Here layers of equal windows form groups, each with tables of its own over one pool
(:mod:`pagedref.memory.groups`), and a frame holds a page of one group. Everything else is as in `PagedKVCache`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import backends
from pagedref._open_steps import OpenSteps
from pagedref._pool import FramePool
from pagedref._step import MemoryReport, Step, make_step, report
from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.memory import GroupedKVManager, LayerGroup, equal_groups

__all__ = ["GroupedKVCache", "groups_of"]

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedStep(Step):
    """A step with tables for each group; its own are those of the first."""

    groups: tuple[Step, ...] = ()


def groups_of(windows: Sequence[int | None]) -> tuple[tuple[LayerGroup, ...], list[tuple[int, int]]]:
    """Sort layers into groups of equal windows and equally many layers.

    Parameters
    ----------
    windows : sequence of int or None
        Keys that each layer sees, its own included; None for all.

    Returns
    -------
    groups : tuple of LayerGroup
        Those that see more come first.
    places : list of (int, int)
        For each layer its group, and its number in it.

    Examples
    --------
    >>> groups, places = groups_of([8, None, 8, 8, None, 8])
    >>> [(group.name, group.num_layers) for group in groups], places[:3]
    ([('all', 2), ('8.0', 2), ('8.1', 2)], [(1, 0), (0, 0), (1, 1)])
    """
    order = sorted(set(windows), key=lambda window: -np.inf if window is None else -window)
    layers = [[layer for layer, own in enumerate(windows) if own == window] for window in order]
    named = [LayerGroup("all" if w is None else str(w), len(own), w) for w, own in zip(order, layers, strict=True)]
    groups = equal_groups(named)
    places = [(0, 0)] * len(windows)
    for number, layer in enumerate(layer for own in layers for layer in own):
        places[layer] = divmod(number, groups[0].num_layers)
    return groups, places


class GroupedKVCache(PagedKVCache):
    """Hold keys and values of a model whose layers have different windows.

    Parameters
    ----------
    spec : CacheSpec
        Geometry of the whole model.
    num_frames : int
        Frames of the pool; each holds a page of one group: ``num_layers / groups`` layers.
    windows : sequence of int or None
        Window of each layer.
    backend, poison, k_scale, v_scale
        As in `PagedKVCache`.

    Raises
    ------
    ContractError
        The windows are not one for each layer, or a number is out of range.

    Notes
    -----
    Windows are released at each commit. There is no swapping, and no saving of single sequences.

    Examples
    --------
    Two layers, one with a window of two; six tokens in pages of two:

    >>> cache = GroupedKVCache(CacheSpec(2, 1, 1, page_size=2), num_frames=8, windows=[None, 2])
    >>> a = cache.add()
    >>> step = cache.begin([a], [6])
    >>> ones = np.ones((6, 1, 1), np.float32)
    >>> for layer, window in enumerate([None, 2]):
    ...     cache.append(step, ones, ones, layer=layer)
    ...     out = cache.attend(step, ones, layer=layer, window=window).out
    >>> cache.commit(step)
    >>> cache.block_table([a], layer=0).tolist(), cache.block_table([a], layer=1).tolist()
    ([[0, 1, 2]], [[-1, -1, 5]])
    """

    def __init__(
        self,
        spec: CacheSpec,
        num_frames: int,
        windows: Sequence[int | None],
        *,
        backend: Any = "numpy",
        poison: bool = False,
        k_scale: Any = None,
        v_scale: Any = None,
    ) -> None:
        if len(windows) != spec.num_layers:
            text = f"got {len(windows)}, need one for each of {spec.num_layers} layers"
            raise ContractError(f"GroupedKVCache: windows do not fit the spec, {text}")
        self.spec = spec
        named = isinstance(backend, str)
        self.backend = backends.get(backend) if named else backends.check(backend, type(backend).__name__)
        self.groups, self._places_of_layers = groups_of(windows)
        self.manager: Any = GroupedKVManager(num_frames, spec.page_size, self.groups)
        self.frame_spec = dataclasses.replace(spec, num_layers=self.groups[0].num_layers)
        """Geometry of what lies in a frame."""
        self._poison = poison
        self._steps = OpenSteps()
        self._peak = 0
        self._pool = FramePool(self.frame_spec, num_frames, {"k_scale": k_scale, "v_scale": v_scale}, poison=poison)

    def arrays(self, layer: int = 0) -> tuple[Array, Array]:
        """Return the arrays in which a layer lies; other groups have frames in them, too (see `PagedKVCache`)."""
        self._need_layer("arrays", layer)
        return self._pool.layer(self._places_of_layers[layer][1])

    def block_table(self, seq_ids: Sequence[int], *, layer: int = 0) -> npt.NDArray[np.int32]:
        """Return the frames of live sequences in a layer, -1 for pages that its window has passed (S21).

        Parameters
        ----------
        seq_ids : sequence of int
            Live sequences.
        layer : int
            Whose group of layers it is.

        Returns
        -------
        array (num_seqs, max_pages) of int32
        """
        table: npt.NDArray[np.int32] = self.manager.block_table(seq_ids, group=self._name("block_table", layer))
        return table

    def gather(self, seq_id: int, *, layer: int = 0) -> tuple[Array, Array]:
        """Read all live keys and values of a sequence in one layer; a PageFault where its window has passed some."""
        csr = self.manager.csr([seq_id], group=self._name("gather", layer))
        place = self._places_of_layers[layer][1]
        k, v = self.backend.gather_kv(*self._pool.layer(place), *csr, **self._pool.stored(place))
        return k, v

    def memory_report(self, *, max_model_len: int | None = None) -> MemoryReport:
        """Say where the memory is (see `PagedKVCache`); pages count in each group."""
        found = report(self.manager.stats(), self.frame_spec, self._peak, None)
        contiguous = None if max_model_len is None else found.num_sequences * max_model_len * self.spec.bytes_per_token
        return dataclasses.replace(found, bytes_per_token=self.spec.bytes_per_token, bytes_contiguous=contiguous)

    def save(self, *_: Any, **__: Any) -> None:
        """Refuse: a sequence with holes cannot be restored."""
        raise ContractError("save: cache has groups of layers, got a GroupedKVCache, need a PagedKVCache")

    def restore(self, *_: Any, **__: Any) -> int:
        """Refuse, as `save` does."""
        raise ContractError("restore: cache has groups of layers, got a GroupedKVCache, need a PagedKVCache")

    def _name(self, function: str, layer: int) -> str:
        """Return the name of the group of a layer."""
        self._need_layer(function, layer)
        return self.groups[self._places_of_layers[layer][0]].name

    def _new_step(self, ids: Array, counts: Array) -> Step:
        """Say where reserved tokens go, in every group."""
        steps = tuple(make_step(self.manager, ids, counts, group=group.name) for group in self.groups)
        first = {field.name: getattr(steps[0], field.name) for field in dataclasses.fields(Step)}
        return GroupedStep(**first, groups=steps)

    def _at(self, function: str, step: Step, layer: int) -> tuple[Step, int]:
        """Return the tables that a layer of a step uses, and where its arrays lie in the pool."""
        self._need_layer(function, layer)
        group, place = self._places_of_layers[layer]
        assert isinstance(step, GroupedStep)
        return step.groups[group], place
