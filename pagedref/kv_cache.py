"""PagedKVCache: the memory manager and the arrays, joined; what a user holds.

The manager decides who owns which frame and never sees a number; the operations of a backend move and use numbers and
never see a manager. Here both meet: a step reserves slots, carries out copies on write, appends, attends and commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import backends
from pagedref._latent_pages import LatentPages
from pagedref._open_steps import OpenSteps
from pagedref._pool import FramePool
from pagedref._step import MemoryReport, Step, make_step, report
from pagedref.attention.state import AttentionState
from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError
from pagedref.memory import KVManager
from pagedref.ragged import int_array

__all__ = ["MemoryReport", "PagedKVCache", "Step"]

Array = npt.NDArray[Any]


class PagedKVCache(LatentPages):
    """Hold the keys and values of many sequences in one pool of frames.

    Parameters
    ----------
    spec : CacheSpec
        Geometry.
    num_frames : int
        Size of the pool.
    backend : str or object
        Name of a backend, or the backend itself.
    frame_order : array (num_frames,) of int, optional
        Order in which fresh frames are handed out.
    poison : bool
        Fill the pool with NaN, and every frame again when it is freed: a read of something that is not live shows.
    k_scale, v_scale : float or array of float32, optional
        Scales of a quantised cache that are fixed before the first write (S17).

    Raises
    ------
    ContractError
        If a number is out of range.
    BackendUnavailable
        If the backend cannot run here.

    Notes
    -----
    Use it from one thread.

    Examples
    --------
    One layer, one head of one number; three tokens in pages of two:

    >>> cache = PagedKVCache(CacheSpec(1, 1, 1, page_size=2), num_frames=4)
    >>> a = cache.add()
    >>> step = cache.begin([a], [3])
    >>> ones = np.ones((3, 1, 1), np.float32)
    >>> cache.append(step, ones, 2 * ones)
    >>> cache.attend(step, ones).out.ravel().tolist()
    [2.0, 2.0, 2.0]
    >>> cache.commit(step)
    >>> cache.block_table([a]).tolist(), cache.memory_report().frames_held
    ([[0, 1]], 2)
    >>> b = cache.fork(a)
    >>> cache.memory_report().frames_held
    2
    """

    def __init__(
        self,
        spec: CacheSpec,
        num_frames: int,
        *,
        backend: Any = "numpy",
        frame_order: Any = None,
        poison: bool = False,
        k_scale: Any = None,
        v_scale: Any = None,
    ) -> None:
        self.spec = spec
        named = isinstance(backend, str)
        self.backend = backends.get(backend) if named else backends.check(backend, type(backend).__name__)
        self.manager = KVManager(num_frames, spec.page_size, frame_order=frame_order)
        self._poison = poison
        self._steps = OpenSteps()
        self._peak = 0
        self._pool = FramePool(spec, num_frames, {"k_scale": k_scale, "v_scale": v_scale}, poison=poison)

    def __repr__(self) -> str:
        return f"PagedKVCache({self.spec!r}, {self.manager!r})"

    def arrays(self, layer: int = 0) -> tuple[Array, Array]:
        """Return the key and value arrays of a layer.

        Parameters
        ----------
        layer : int
            ``0 .. num_layers - 1``.

        Returns
        -------
        k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
            Views: writing to them writes the cache.

        Raises
        ------
        ContractError
            There is no such layer.
        """
        self._need_layer("arrays", layer)
        return self._pool.layer(layer)

    def add(self) -> int:
        """Begin a sequence without tokens and return its id."""
        return self.manager.add()

    def seq_len(self, seq_id: int) -> int:
        """Return the number of live tokens of a sequence."""
        return self.manager.seq_len(seq_id)

    def fork(self, seq_id: int) -> int:
        """Begin a sequence that shares all pages of another; pages are copied when one of them is written (S27).

        Parameters
        ----------
        seq_id : int
            A live sequence without an open step.

        Returns
        -------
        int
            Id of the child.
        """
        return self.manager.fork(seq_id)

    def free(self, seq_ids: int | Sequence[int]) -> None:
        """End sequences and give back the frames that nobody else holds.

        Parameters
        ----------
        seq_ids : int or sequence of int
            Live sequences; a step in which one of them takes part is aborted.
        """
        before = self.manager.occupied if self._poison else None
        self.manager.free(seq_ids)
        ended = np.atleast_1d(seq_ids).tolist()
        for step in self._steps.of(ended):
            self.manager.rollback([seq_id for seq_id in step.seq_ids if seq_id not in ended])
            self._steps.close(step)
        self._poison_freed(before)

    def begin(self, seq_ids: Sequence[int], num_tokens: Sequence[int]) -> Step:
        """Make room for new tokens and say where they go; shared pages are copied first.

        Parameters
        ----------
        seq_ids : sequence of int
            Live sequences without an open step, each named once.
        num_tokens : sequence of int
            New tokens of each, >= 0.

        Returns
        -------
        Step
            To be committed or aborted.

        Raises
        ------
        OutOfFrames
            The pool cannot hold the new tokens; nothing was changed (S26).
        ContractError
            Unknown or repeated ids, negative numbers, or a sequence with an open step.
        """
        ids, counts = int_array("begin", "seq_ids", seq_ids), int_array("begin", "num_tokens", num_tokens)
        if ids.shape != counts.shape:
            got = f"{counts.shape} and {ids.shape}"
            raise ContractError(f"begin: num_tokens does not fit seq_ids, got {got}, need one for each")
        open_tokens = self.manager.reserved(ids)
        if open_tokens.any():
            at = int(ids[np.argmax(open_tokens > 0)])
            raise ContractError(f"begin: seq_ids names a sequence with an open step, got {at}, need commit or abort")
        plan = self.manager.reserve(ids, counts)
        self._copy(plan, lambda: self.manager.cancel(plan))
        self._peak = max(self._peak, self.manager.num_frames - self.manager.num_available)
        step = self._new_step(ids, counts)
        self._steps.open(step)
        return step

    def append(self, step: Step, k: Array, v: Array, *, layer: int = 0) -> None:
        """Write the keys and values of the new tokens of an open step.

        Parameters
        ----------
        step : Step
            From `begin`.
        k : array (tokens, num_kv_heads, head_dim)
            New keys, sequence after sequence.
        v : array (tokens, num_kv_heads, v_head_dim)
            New values.
        layer : int
            Layer.
        """
        self._steps.need("append", step)
        tables, place = self._at("append", step, layer)
        self.backend.append_kv(k, v, *self._pool.layer(place), tables.slot_mapping, **self._pool.stored(place))

    def attend(self, step: Step, q: Array, *, layer: int = 0, **variants: Any) -> AttentionState:
        """Attend with the new tokens of a step to all tokens of their sequences.

        Parameters
        ----------
        step : Step
            An open step whose keys and values of this layer are written.
        q : array (tokens, num_qo_heads, head_dim)
            Queries, sequence after sequence.
        layer : int
            Layer.
        **variants
            Keywords of ``paged_decode`` or ``paged_prefill``.

        Returns
        -------
        AttentionState
            ``out`` (tokens, num_qo_heads, v_head_dim) and ``lse`` (tokens, num_qo_heads).

        Notes
        -----
        ``paged_decode`` where each sequence has one new token and neither `mask` nor `causal` is given, else
        ``paged_prefill``.
        """
        self._steps.need("attend", step)
        tables, place = self._at("attend", step, layer)
        pages = (*self._pool.layer(place), tables.kv_indptr, tables.kv_indices, tables.kv_last_page_len)
        variants |= self._pool.stored(place)
        if "mask" not in variants and "causal" not in variants and all(count == 1 for count in step.num_tokens):
            state: AttentionState = self.backend.paged_decode(q, *pages, **variants)
        else:
            state = self.backend.paged_prefill(q, step.qo_indptr, *pages, **variants)
        return state

    def commit(self, step: Step, tokens: Any = None) -> None:
        """Make the new tokens of a step live.

        Parameters
        ----------
        step : Step
            An open step, written in every layer.
        tokens : array (tokens,) of int, optional
            Their ids: whole pages can then be hit by other prompts (S30). What was given as a prompt need not be.
        """
        self._steps.need("commit", step)
        self.manager.commit(step.seq_ids, step.num_tokens, tokens)
        self._steps.close(step)

    def attach_prefix(self, seq_id: int, tokens: Any, **options: Any) -> int:
        """Give a sequence without tokens the longest prefix of its prompt that lies in the pool (S28-S30).

        Parameters
        ----------
        seq_id : int
            A live sequence without tokens.
        tokens : array (n,) of int
            The prompt.
        **options
            As in ``KVManager.attach_prefix``; a partial tail is copied here (if that fails, nothing is attached).

        Returns
        -------
        int
            Tokens that need not be computed; the sequence has them now.
        """
        hit = self.manager.attach_prefix(seq_id, tokens, **options)
        self._copy(hit, lambda: self.manager.truncate(seq_id, 0))
        return hit.num_tokens

    def abort(self, step: Step) -> None:
        """Give back what an open step reserved; live tokens stay."""
        self._steps.need("abort", step)
        before = self.manager.occupied if self._poison else None
        self.manager.rollback(step.seq_ids)
        self._steps.close(step)
        self._poison_freed(before)

    def block_table(self, seq_ids: Sequence[int]) -> npt.NDArray[np.int32]:
        """Return the frames of live sequences, one row for each, padded with -1 (S21).

        Parameters
        ----------
        seq_ids : sequence of int
            Live sequences.

        Returns
        -------
        array (num_seqs, max_pages) of int32
        """
        return self.manager.block_table(seq_ids)

    def gather(self, seq_id: int, *, layer: int = 0) -> tuple[Array, Array]:
        """Read all live keys and values of a sequence in one layer.

        Parameters
        ----------
        seq_id, layer : int
            A live sequence, and one of its layers.

        Returns
        -------
        k, v : arrays (tokens, num_kv_heads, dim)
        """
        csr = self.manager.csr([seq_id])
        k, v = self.backend.gather_kv(*self.arrays(layer), *csr, **self._pool.stored(layer))
        return k, v

    def memory_report(self, *, max_model_len: int | None = None) -> MemoryReport:
        """Say where the memory is.

        Parameters
        ----------
        max_model_len : int, optional
            Maximum length of a sequence, for the comparison with contiguous reservation.

        Returns
        -------
        MemoryReport
            Of the live sequences, committed tokens only.
        """
        return report(self.manager.stats(), self.spec, self._peak, max_model_len)

    def audit(self) -> None:
        """Prove the books of the manager (S25), or raise CorruptionError with everything that is wrong."""
        self.manager.audit()

    def _new_step(self, ids: Array, counts: Array) -> Step:
        """Say where reserved tokens go."""
        return make_step(self.manager, ids, counts)

    def _at(self, function: str, step: Step, layer: int) -> tuple[Step, int]:
        """Return the tables that a layer of a step uses, and where its arrays lie in the pool."""
        self._need_layer(function, layer)
        return step, layer
