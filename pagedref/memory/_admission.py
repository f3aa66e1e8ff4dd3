"""Admission and preemption of a manager: what a prompt needs now, and what a sequence would give back (S34)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pagedref.addressing import num_pages
from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory._entries import PRESENT, WRITABLE, frames_of, pack
from pagedref.memory._match import Match, find_match
from pagedref.memory._numbers import whole_number
from pagedref.memory._plans import CopyPlan, Reservation
from pagedref.memory._swapping import Swapping
from pagedref.memory.events import Reserved
from pagedref.memory.prefix import PrefixHit
from pagedref.memory.pressure import Claim, Need, choose_victims
from pagedref.memory.radix import RadixTree
from pagedref.ragged import int_array

__all__ = ["Admitted", "Pressure", "check_amounts"]

NONE = np.empty(0, dtype=np.int64)
DEFAULTS: dict[str, Any] = {"adapter": None, "salt": None, "media": (), "recompute_last": True}


class Admitted(NamedTuple):
    """A request that got its first frames.

    Attributes
    ----------
    seq_id : int
        Its sequence; `hit` tokens of it are live, the next ones reserved.
    hit : PrefixHit
        What was found.
    plan : CopyPlan
        Copies to carry out first.
    """

    seq_id: int
    hit: PrefixHit
    plan: CopyPlan


def check_amounts(function: str, num_tokens: Any, watermark: Any) -> None:
    """Refuse what is no number of tokens to store now, or no number of frames to leave.

    Parameters
    ----------
    function : str
        What the error text names.
    num_tokens, watermark
        See `Pressure.need`.
    """
    if num_tokens is not None:
        whole_number(function, "num_tokens", num_tokens)
    whole_number(function, "watermark", watermark)


class Pressure(Swapping):
    """Decide who gets in and who goes; see `KVManager`.

    Parameters
    ----------
    num_frames, page_size, **options
        Of `PrefixSharing`.
    """

    def need(self, tokens: Any, num_tokens: int | None = None, *, watermark: int = 0, **keys: Any) -> Need:
        """Say what the admission of a prompt takes now; nothing changes (S26).

        Parameters
        ----------
        tokens, **keys
            The prompt, and `adapter`, `salt`, `media`, `recompute_last` of `attach_prefix`.
        num_tokens : int, optional
            How many tokens beyond the hit are to be stored now; by default all.
        watermark : int
            Frames that must stay available.

        Returns
        -------
        Need
        """
        check_amounts("need", num_tokens, watermark)
        return self._need(self._find("need", tokens, **keys), num_tokens, watermark)

    def admit(
        self,
        tokens: Any,
        num_tokens: int | None = None,
        *,
        watermark: int = 0,
        resumed: bool = False,
        seq_id: int | None = None,
        **keys: Any,
    ) -> Admitted:
        """Begin a sequence with what is there of its prompt and room for what comes next; all or nothing (S26, S34).

        Parameters
        ----------
        tokens, num_tokens, watermark, **keys
            See `need`.
        resumed : bool
            Whether the request was here before: it is not counted again.
        seq_id : int, optional
            Its id, as for `add`.

        Returns
        -------
        Admitted

        Raises
        ------
        OutOfFrames
            It does not fit now. Nothing was changed, nothing counted: hit pages that are only cached count as needed.
        ContractError
            An argument has the wrong type or range; nothing was changed.
        """
        check_amounts("admit", num_tokens, watermark)
        match = self._find("admit", tokens, **keys)
        need = self._need(match, num_tokens, watermark)
        if not need.fits:
            raise OutOfFrames(
                f"admit: tokens need more frames than are free, got {need.needed} ({need.new} new, {need.revived} "
                f"cached hits, {need.watermark} to be left), need at most {need.available} (of {self.num_frames})",
                needed=need.needed,
                available=need.available,
            )
        number, row = self._begin(seq_id)
        hit = self._attach(row, match, True, False, resumed)
        plan = self._reserve_fresh(row, self._wanted(match, num_tokens))
        return Admitted(number, hit, plan)

    def _reserve_fresh(self, row: int, num_tokens: int) -> CopyPlan:
        """Make room behind whole pages: nothing is copied, and that it fits was checked."""
        end, first = int(self._sequences.end[row]), int(self._tables.num_pages[row])
        pages = -(-(end + num_tokens) // self._page_size)
        frames = self._frames.alloc(pages - first)
        self._tables.grow(0, pages)
        self._tables.entries[row, first:pages] = pack(frames, PRESENT | WRITABLE)
        self._tables.num_pages[row] = pages
        self._sequences.end[row] = end + num_tokens
        plan = CopyPlan(NONE, NONE)
        one = np.array([[row], [end], [first]], dtype=np.int64)
        self._last = Reservation(plan, one[0], one[1], one[2], (NONE, NONE), NONE.view(np.uint64), frames)
        if self.on_event is not None:
            seq_id = int(self._sequences.seq_id[row])
            self.on_event(Reserved((seq_id,), (num_tokens,), tuple(frames.tolist())))
        return plan

    def frames_to_reserve(self, seq_ids: Any, num_tokens: Any) -> int:
        """Return how many frames `KVManager.reserve` would take: fresh pages, and copies of shared ones.

        Parameters
        ----------
        seq_ids, num_tokens
            As there, and checked as there.

        Returns
        -------
        int
        """
        rows = self._present_rows("reserve", seq_ids)
        counts = self._counts("reserve", "num_tokens", num_tokens, rows)
        end = self._sequences.end[rows]
        _, _, alone = self._shared_writes(rows, end, counts)
        pages = num_pages(end + counts, self._page_size) - self._tables.num_pages[rows]
        return int(pages.sum()) + int(np.count_nonzero(~alone))

    def frames_released_by(self, seq_ids: Any) -> int:
        """Return how many frames become available when sequences go: those that nobody else holds.

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences, each named once.

        Returns
        -------
        int
        """
        rows = self._sequences.rows("frames_released_by", seq_ids)
        named = frames_of(self._tables.entries[rows])
        frames, mentions = np.unique(named[named >= 0], return_counts=True)
        return int(np.count_nonzero(self.refcount[frames] == mentions))

    def preemption(self, missing: int, seq_ids: Any, priorities: Any = None) -> list[int]:
        """Choose victims among running sequences so that frames become available (S34); nothing changes.

        Parameters
        ----------
        missing : int
            Frames that are wanted.
        seq_ids : integer array (num_seqs,)
            Who runs, the oldest first, each named once.
        priorities : integer array (num_seqs,), optional
            Their classes, high ones kept longer; by default all equal.

        Returns
        -------
        list of int
            Who goes, in order; the engine frees or swaps them.

        Raises
        ------
        ContractError
            A sequence that does not live or is named twice, or numbers that are not integers or not one for each.
        """
        missing = whole_number("preemption", "missing", missing)
        ids = self._sequences.seq_id[self._sequences.rows("preemption", seq_ids)].tolist()
        given = [0] * len(ids) if priorities is None else priorities
        classes = int_array("preemption", "priorities", given).tolist()
        if len(classes) != len(ids):
            raise ContractError(f"preemption: priorities has the wrong length, got {len(classes)}, need {len(ids)}")
        claims = [
            Claim(seq_id, priority, age, self.frames_released_by(seq_id), self.is_pinned(seq_id))
            for age, (seq_id, priority) in enumerate(zip(ids, classes, strict=True))
        ]
        return choose_victims(claims, missing)

    def radix(self) -> RadixTree:
        """Return the published pages that a prompt can hit as a radix tree, one namespace for each root message.

        Pages that have no frame any more are left out with all behind them, as in `match_prefix`; so are pages with
        media, whose tokens alone do not name them.

        Returns
        -------
        RadixTree
            A copy of now. Its `longest_match` says to the token how far a prompt agrees.
        """
        tree = RadixTree(self.page_size)
        if self._publisher is None:
            return tree
        index = self._publisher.index
        alive = index.alive()
        inner = set(index.parent[: alive.size][alive].tolist())
        for leaf in np.flatnonzero(alive).tolist():
            if leaf in inner or index.root_name(leaf) is not None:
                continue
            chain, node = [], leaf
            while (name := index.root_name(node)) is None:
                chain.append(node)
                node = int(index.parent[node])
            chain.reverse()
            lost = [at for at, page in enumerate(chain) if index.first_frame[page] < 0 or page in index.media]
            tree.insert(index.tokens[chain[: lost[0] if lost else None]].reshape(-1), namespace=name)
        return tree

    def _find(self, function: str, tokens: Any, **keys: Any) -> Match:
        """Look a prompt up."""
        return find_match(self._prefix(), function, tokens, **(DEFAULTS | keys if keys else DEFAULTS))

    def _wanted(self, match: Match, num_tokens: int | None) -> int:
        """Return the tokens beyond the hit that are to be stored now."""
        rest = int(match.tokens.size) - int(match.frames.size) * self._page_size
        return rest if num_tokens is None else min(num_tokens, rest)

    def _need(self, match: Match, num_tokens: int | None, watermark: int) -> Need:
        """Return what a match needs."""
        hits = int(match.frames.size)
        new = -(-self._wanted(match, num_tokens) // self._page_size)  # behind whole pages
        revived = self._frames.num_cached_of(match.frames) if hits else 0
        return Need(new, revived, self.num_available, watermark)

    def _begin(self, seq_id: int | None) -> tuple[int, int]:
        """Begin a sequence (`KVManager.add`): its id and row."""
        raise AssertionError("the manager begins sequences")
