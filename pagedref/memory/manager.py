"""The memory manager: which sequence has which pages, on demand, shared, and copied before a write (S19-S27)."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.addressing import num_pages
from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory._admission import Pressure
from pagedref.memory._entries import PRESENT, SHARED, WRITABLE, frames_of, pack
from pagedref.memory._plans import CopyPlan, Reservation
from pagedref.memory.batch import Batch
from pagedref.memory.events import Copied, Reserved, Shared

__all__ = ["KVManager"]

Int64Array: TypeAlias = npt.NDArray[np.int64]


class KVManager(Pressure):
    """Decide where the tokens of many sequences lie in one pool; see no key and no value.

    A step of an engine is: `reserve` room for the new tokens, carry out the copies it asks for, write the tokens at
    `slots`, attend over `csr` or `block_table`, and `commit`; or `rollback`.

    Parameters
    ----------
    num_frames : int
        Size of the pool.
    page_size : int
        Slots in a page, >= 1; a power of two or not.
    frame_order : integer array (num_frames,), optional
        Order in which fresh frames are handed out (see `FrameAllocator`).

    policy : str, callable or EvictionPolicy
        Which cached page is given up first (see `eviction`).
    deduplicate : bool
        Whether a page that is completed a second time is given up for the first one; otherwise tables only grow.
    hash_function : callable, optional
        Bytes to bytes, in place of the fast codes of the prefix index (see `prefix`).
    on_event : callable, optional
        Called with an `events` record after each change.

    Notes
    -----
    Every method checks before it acts: one that raises has changed nothing (S26). `seq_ids` is one id or a batch; all
    methods are vectorised over the batch. A manager is used from one thread.

    Examples
    --------
    >>> manager = KVManager(num_frames=8, page_size=4)
    >>> a = manager.add()
    >>> manager.reserve(a, 6).src.size
    0
    >>> manager.slots(a, 6).tolist()
    [0, 1, 2, 3, 4, 5]
    >>> manager.commit(a, 6)
    >>> b = manager.fork(a)                     # shares both pages
    >>> plan = manager.reserve([a, b], 1)       # position 6 lies in a shared page: a gets a copy, b is its last holder
    >>> plan.src.tolist(), plan.dst.tolist()
    ([1], [2])
    >>> manager.slots([a, b], 1).tolist()
    [10, 6]
    >>> manager.commit([a, b], 1)
    >>> manager.block_table([a, b]).tolist()
    [[0, 2], [0, 1]]
    >>> manager.audit()
    """

    def add(self, seq_id: int | None = None) -> int:
        """Begin a sequence without tokens; it takes no frame (S24).

        Parameters
        ----------
        seq_id : int, optional
            An id not in use, in ``[0, 2**62)``; by default the next number never used.

        Returns
        -------
        int
            The id.

        Raises
        ------
        ContractError
            The id is in use or out of range.
        """
        return self._begin(seq_id)[0]

    def free(self, seq_ids: Any) -> None:
        """End sequences and give their frames back, the last page of each first (S31).

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences, each named once; reserved tokens go with them.

        Raises
        ------
        CorruptionError
            A sequence that was freed before (S25).
        ContractError
            An id never used, or one named twice.
        """
        rows = self._sequences.rows("free", seq_ids)
        self._forget_away(rows)
        self._release(rows, 0)
        self._close_streams(rows)
        self._sequences.drop(rows)

    def fork(self, seq_id: int) -> int:
        """Begin a sequence with the same tokens as another: every page is shared, none copied (S27).

        Costs O(pages). Whoever writes first into the page that both would write next gets a copy of it then.

        Parameters
        ----------
        seq_id : int
            A live sequence without reserved tokens.

        Returns
        -------
        int
            Id of the child.

        Raises
        ------
        ContractError
            The parent has reserved tokens (their slots would become the child's too): commit or roll back first.
        """
        parent = int(self._present_rows("fork", [seq_id])[0])
        if ahead := int(self._sequences.end[parent] - self._sequences.length[parent]):
            text = f"fork: seq_id {seq_id} has reserved tokens, got {ahead}, need 0 (commit or roll back first)"
            raise ContractError(text)
        number, child = self._sequences.add("fork", None)
        self._grow_rows()
        shared = self._tables.fork(parent, child)
        self._frames.share(shared)
        self._sequences.length[child] = self._sequences.end[child] = self._sequences.length[parent]
        self._fork_stream(parent, child)
        self._changed(np.array([parent]))
        if self.on_event is not None:
            self.on_event(Shared(number, tuple(shared.tolist())))
        return number

    def reserve(self, seq_ids: Any, num_tokens: Any) -> CopyPlan:
        """Make room for more tokens in each sequence, all or nothing (S24, S26, S27).

        A page is mapped when its first token is reserved. A partly filled last page that is shared is copied, unless
        all its other holders are gone or get their own copies in this same call: the last one writes in place.
        Reserving again before a commit adds to what is reserved.

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences, each named once.
        num_tokens : int or integer array (num_seqs,)
            Tokens to make room for, one number for all or one for each, in ``[0, 2**40]``.

        Returns
        -------
        CopyPlan
            Copies that the caller carries out **before it does anything else** with this manager or the pool. If a
            copy fails, `cancel` takes the reservation back.

        Raises
        ------
        OutOfFrames
            The batch as a whole needs more frames than are free or cached (`needed` counts copies too).
        ContractError
            Unknown or repeated ids, numbers out of range.
        """
        rows = self._present_rows("reserve", seq_ids)
        counts = self._counts("reserve", "num_tokens", num_tokens, rows)
        end = self._sequences.end[rows]
        mapped = self._tables.num_pages[rows]
        new_pages = num_pages(end + counts, self._page_size) - mapped  # (num_seqs,)
        written, old, alone = self._shared_writes(rows, end, counts)
        copied = frames_of(old[~alone])
        num_new = int(new_pages.sum())
        if num_new + copied.size > self._frames.num_available:
            needed, available = num_new + copied.size, self._frames.num_available
            raise OutOfFrames(
                f"reserve: num_tokens needs more frames than are free, got {needed} ({copied.size} for copies), "
                f"need at most {available} (of {self.num_frames})",
                needed=needed,
                available=available,
            )
        # Everything fits: from here on nothing can be refused.
        self._tables.grow(0, int((mapped + new_pages).max()) if rows.size else 0)
        frames = self._frames.alloc(num_new + copied.size)
        plan = CopyPlan(copied, frames[: copied.size])
        if old.size:
            entries = (old | WRITABLE) & ~SHARED
            entries[~alone] = pack(plan.dst, PRESENT | WRITABLE)
            self._tables.entries[written] = entries
            self._frames.free(copied)
            self._unpublish(frames_of(old[alone]))
        if num_new:
            self._tables.extend(rows, new_pages, frames[copied.size :], PRESENT | WRITABLE)
        self._sequences.end[rows] = end + counts
        self._changed(rows)
        self._last = Reservation(plan, rows, end, mapped, written, old, frames)
        if self.on_event is not None:
            seq_ids = tuple(self._sequences.seq_id[rows].tolist())
            self.on_event(Reserved(seq_ids, tuple(counts.tolist()), tuple(frames.tolist())))
            if copied.size:
                self.on_event(Copied(tuple(copied.tolist()), tuple(plan.dst.tolist())))
        return plan

    def cancel(self, plan: CopyPlan) -> None:
        """Take the last reservation back, for a caller whose copies failed (S26).

        Tables, lengths and holders are as they were before it, and its frames are free. What it gave up stays lost:
        cached pages that were evicted for its frames, and the publication of a page that it let its last holder write
        in place. Such a page is still what its sequence reads, but is hit no more.

        Parameters
        ----------
        plan : CopyPlan
            The result of the last `reserve`; nothing else may have changed the manager since.

        Raises
        ------
        ContractError
            The plan is not that of the last change.
        """
        last = self._last
        if last is None or last.plan is not plan:
            raise ContractError("cancel: plan is out of date, got an older one, need that of the last change")
        index, _ = self._tables.tail(last.rows, last.num_pages)
        self._tables.cut(last.rows, last.num_pages, index)
        self._tables.entries[last.written] = last.entries
        self._frames.share(last.plan.src)
        self._frames.free(last.frames[::-1])
        self._sequences.end[last.rows] = last.end
        self._changed(last.rows)

    def slots(self, seq_ids: Any, num_tokens: Any) -> Int64Array:
        """Return the slots of the first reserved tokens, which the caller is about to write (S19).

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences, each named once.
        num_tokens : int or integer array (num_seqs,)
            Tokens of each, at most what is reserved.

        Returns
        -------
        int64 array (sum of num_tokens,)
            Sequence after sequence, in order of position: a slot_mapping.

        Raises
        ------
        ContractError
            More tokens than are reserved.

        Mutates
        -------
        ACCESSED and DIRTY of the pages.
        """
        rows = self._present_rows("slots", seq_ids)
        counts = self._counts("slots", "num_tokens", num_tokens, rows)
        self._need_reserved("slots", "num_tokens", rows, counts)
        return self._slots("slots", rows, self._sequences.length[rows], counts, write=True)

    def commit(self, seq_ids: Any, num_tokens: Any, tokens: Any = None) -> None:
        """Declare that the first reserved tokens are written: they are live from now on, and whole pages published.

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences, each named once.
        num_tokens : int or integer array (num_seqs,)
            Tokens of each, at most what is reserved; the rest stays reserved.
        tokens : integer array (sum of num_tokens,), optional
            Their ids, sequence after sequence. A page can be hit by others (S30) once it is full and all tokens up to
            its end were given here or as a prompt. A prompt is believed: its tokens need not be given again, and where
            they are, they are not compared.

        Raises
        ------
        ContractError
            More tokens than are reserved, or token ids of the wrong type or number.
        """
        rows = self._present_rows("commit", seq_ids)
        counts = self._counts("commit", "num_tokens", num_tokens, rows)
        self._need_reserved("commit", "num_tokens", rows, counts)
        ids = None if tokens is None else self._check_tokens(tokens, counts)
        before = self._sequences.length[rows]
        self._sequences.length[rows] = before + counts
        self._last = None
        self._learn(rows, before, counts, ids)

    def batch(self, seq_ids: Any) -> Batch:
        """Return a handle for a batch that decodes token after token, several times faster than the general way.

        Parameters
        ----------
        seq_ids : integer array (num_seqs,)
            Live sequences, each named once.

        Returns
        -------
        Batch
        """
        return Batch(self, self._present_rows("batch", seq_ids))

    def rollback(self, seq_ids: Any) -> None:
        """Give back what is reserved and not committed; live tokens stay.

        A page that was copied on write stays a private copy: the plan's copies must have been carried out (otherwise
        `cancel`).

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences, each named once.
        """
        rows = self._sequences.rows("rollback", seq_ids)[::-1]  # backwards: the free list is as before the reservation
        self._release(rows, num_pages(self._sequences.length[rows], self._page_size))
        self._sequences.end[rows] = self._sequences.length[rows]

    def _begin(self, seq_id: int | None) -> tuple[int, int]:
        number, row = self._sequences.add("add", seq_id)
        self._grow_rows()
        self._last = None
        return number, row
