"""Groups of layers with different windows, as several page tables for each sequence over one pool (S5, S29, S32).

In a hybrid model some layers see all keys and others a window. A single table would keep every page of every layer for
ever. Here each group has its own table of a sequence and lets go of the pages that its window has passed, and all
groups take frames of equal bytes from **one** pool, so that a frame freed by one is at once good for any other::

    position                0 ......................................... n
    table of "global"      [f0] [f3] [f6] [f9] [f12]      window None: every page
    table of "local"        -    -    -   [f7] [f10]      window 5: holes behind the window

**Equal bytes.** All groups have the same number of layers: layer number i of every group lies in the i-th array of the
pool, in the frames that its own table names. `equal_groups` splits groups of different sizes into sets of as many
layers as divide all of them: 5 global and 25 local layers become one set of 5 and five of 5.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory._admission import Admitted, check_amounts
from pagedref.memory._group_views import GroupViews
from pagedref.memory._match import Match
from pagedref.memory._plans import CopyPlan
from pagedref.memory.prefix import PrefixHit

__all__ = ["GroupedKVManager", "LayerGroup", "equal_groups"]


@dataclasses.dataclass(frozen=True)
class LayerGroup:
    """Layers that see the same keys, and so share one page table.

    Parameters
    ----------
    name : str
        What `group=` names.
    num_layers : int
        How many, >= 1, of equal bytes for each token.
    window : int, optional
        Keys that a query sees, its own included, >= 1 (S5); by default all.

    Raises
    ------
    ContractError
        An empty name, or a number out of range.
    """

    name: str
    num_layers: int
    window: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ContractError(f"LayerGroup: name is no name, got {self.name!r}, need a text")
        for field in ("num_layers", "window"):
            value = getattr(self, field)
            if field == "window" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ContractError(f"LayerGroup: {field} is out of range, got {value!r}, need an integer >= 1")


def equal_groups(groups: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Split groups into sets of equally many layers, as many as divide all of them.

    Parameters
    ----------
    groups : iterable of LayerGroup
        Groups of any sizes.

    Returns
    -------
    tuple of LayerGroup
        A group that is split is called ``"name.0"``, ``"name.1"``, ..., and set i has its layers from
        ``i * num_layers`` on.

    Examples
    --------
    >>> sets = equal_groups([LayerGroup("global", 5), LayerGroup("local", 25, window=1024)])
    >>> [(group.name, group.num_layers, group.window) for group in sets][:3]
    [('global', 5, None), ('local.0', 5, 1024), ('local.1', 5, 1024)]
    """
    given = tuple(groups) if isinstance(groups, Iterable) else (groups,)
    if not all(isinstance(group, LayerGroup) for group in given):
        raise ContractError(f"equal_groups: groups are none, got {given!r:.60}, need LayerGroups")
    layers = math.gcd(*(group.num_layers for group in given))
    return tuple(
        dataclasses.replace(group, num_layers=layers, name=group.name if parts == 1 else f"{group.name}.{part}")
        for group in given
        for parts in [group.num_layers // layers]
        for part in range(parts)
    )


class GroupedKVManager(GroupViews):
    """Decide where the tokens of many sequences lie, with one page table for each group of layers.

    The verbs are those of `KVManager`; what looks at tables takes `group=`, which may be left out where there is only
    one. An operation concerns all groups, or is refused and changes none (S26). Windows are released at each commit.

    Parameters
    ----------
    num_frames, page_size : int
        Of the one pool, and of all tables.
    groups : sequence of LayerGroup
        Of different names and equally many layers.
    frame_order, policy, deduplicate, hash_function
        See `KVManager`.
    on_event : callable, optional
        Called with the name of a group and an `events` record after each change.

    Raises
    ------
    ContractError
        No group, a name twice, or groups whose frames would differ in bytes.

    Notes
    -----
    A copy plan joins those of all groups: a frame is copied whole, whichever group it belongs to.

    Examples
    --------
    >>> groups = [LayerGroup("global", 1), LayerGroup("local", 1, window=3)]
    >>> manager = GroupedKVManager(num_frames=8, page_size=2, groups=groups)
    >>> a = manager.add()
    >>> plan = manager.reserve(a, 6)
    >>> manager.commit(a, 6)
    >>> manager.block_table(a, group="global").tolist(), manager.block_table(a, group="local").tolist()
    ([[0, 1, 2]], [[-1, -1, 5]])
    >>> manager.num_free
    4
    >>> manager.audit()
    """

    def add(self, seq_id: int | None = None) -> int:
        """Begin a sequence without tokens (see `KVManager.add`)."""
        number = self._first.add(seq_id)
        for member in self._members[1:]:
            member.add(number)
        self._last = None
        return number

    def fork(self, seq_id: int) -> int:
        """Begin a sequence with the same tokens: every page of every group is shared (see `KVManager.fork`)."""
        children = [member.fork(seq_id) for member in self._members]
        self._last = None
        return children[0]

    def free(self, seq_ids: Any) -> None:
        """End sequences and give their frames of all groups back (see `KVManager.free`)."""
        for member in self._members:
            member.free(seq_ids)
        self._last = None

    def reserve(self, seq_ids: Any, num_tokens: Any) -> CopyPlan:
        """Make room for more tokens in every group, or in none (S26).

        Parameters
        ----------
        seq_ids, num_tokens
            See `KVManager.reserve`.

        Returns
        -------
        CopyPlan
            The copies of all groups, group after group.

        Raises
        ------
        OutOfFrames
            All groups together need more frames than are free or cached.
        """
        needed = self.frames_to_reserve(seq_ids, num_tokens)
        if needed > self.num_available:
            raise OutOfFrames(
                f"reserve: num_tokens needs more frames than are free, got {needed} in {len(self._members)} groups, "
                f"need at most {self.num_available} (of {self.num_frames})",
                needed=needed,
                available=self.num_available,
            )
        plans = [member.reserve(seq_ids, num_tokens) for member in self._members]
        plan = CopyPlan(np.concatenate([p.src for p in plans]), np.concatenate([p.dst for p in plans]))
        self._last = plan, plans
        return plan

    def cancel(self, plan: CopyPlan) -> None:
        """Take the last reservation back as if it had never been (see `KVManager.cancel`)."""
        if self._last is None or self._last[0] is not plan:
            raise ContractError("cancel: plan is out of date, got an older one, need that of the last change")
        for member, part in zip(self._members[::-1], self._last[1][::-1]):
            member.cancel(part)
        self._last = None

    def commit(self, seq_ids: Any, num_tokens: Any, tokens: Any = None) -> None:
        """Declare that reserved tokens are written in every layer, and release what no window sees any more.

        Whole pages are published first (S30), so a page that leaves its window stays cached and can be hit.

        Parameters
        ----------
        seq_ids, num_tokens, tokens
            See `KVManager.commit`.
        """
        for member in self._members:
            member.commit(seq_ids, num_tokens, tokens)
        for member in self._members:
            if member.window is not None:
                member.release_window(seq_ids, member.window)
        self._last = None

    def rollback(self, seq_ids: Any) -> None:
        """Give back what is reserved and not committed (see `KVManager.rollback`)."""
        for member in self._members[::-1]:  # backwards: the free list is as before the reservation
            member.rollback(seq_ids)
        self._last = None

    def truncate(self, seq_ids: Any, lengths: Any) -> None:
        """Cut sequences off.

        Parameters
        ----------
        seq_ids, lengths
            See `KVManager.truncate`.

        Raises
        ------
        PageFault
            A query at the new end would see pages that a window has released: rejected tokens are better rolled back
            than committed and cut off.
        """
        for member in self._members:
            member.refuse_released(seq_ids, lengths)
        for member in self._members:
            member.truncate(seq_ids, lengths)
        self._last = None

    def evict(self, n: int) -> int:
        """Give up cached frames of any group; return how many (see `KVManager.evict`)."""
        count = self._first.evict(n)
        self._last = None
        return count

    def clear_prefixes(self) -> int:
        """Forget everything that is only cached; return how many frames that were."""
        return self.evict(self._frames.num_cached)

    # -- prefixes and admission

    def attach_prefix(
        self, seq_id: int, tokens: Any, *, recompute_last: bool = True, resumed: bool = False, **keys: Any
    ) -> PrefixHit:
        """Give a sequence without tokens the longest prefix that all groups have what they need of (S29).

        A group without a window needs all its pages, one with a window those that a query at the end of the hit still
        sees; the pages before them are holes from the start (S32). Whole pages only.

        Parameters
        ----------
        seq_id, tokens, recompute_last, resumed, **keys
            See `KVManager.attach_prefix`.

        Returns
        -------
        PrefixHit
        """
        if ahead := self.seq_len(seq_id) + int(self.reserved(seq_id)[0]):
            raise ContractError(f"attach_prefix: seq_id {seq_id} has tokens or room for them, got {ahead}, need none")
        matches, pages = self._find("attach_prefix", tokens, recompute_last, keys)
        return self._attach(seq_id, matches, pages, resumed)

    def admit(
        self,
        tokens: Any,
        num_tokens: int | None = None,
        *,
        watermark: int = 0,
        resumed: bool = False,
        seq_id: int | None = None,
        recompute_last: bool = True,
        **keys: Any,
    ) -> Admitted:
        """Begin a sequence with what is there of its prompt and room for what comes next, in all groups or none.

        Parameters
        ----------
        tokens, num_tokens, watermark, resumed, seq_id, recompute_last, **keys
            See `KVManager.admit`.

        Returns
        -------
        Admitted

        Raises
        ------
        OutOfFrames
            All groups together do not fit now. Nothing was changed, nothing counted.
        """
        check_amounts("admit", num_tokens, watermark)
        matches, pages = self._find("admit", tokens, recompute_last, keys)
        need = self._need(matches, pages, num_tokens, watermark)
        if not need.fits:
            raise OutOfFrames(
                f"admit: tokens need more frames than are free, got {need.needed} ({need.new} new, {need.revived} "
                f"cached hits, {need.watermark} to be left), need at most {need.available} (of {self.num_frames})",
                needed=need.needed,
                available=need.available,
            )
        number = self.add(seq_id)
        hit = self._attach(number, matches, pages, resumed)
        return Admitted(number, hit, self.reserve(number, self._wanted(matches, pages, num_tokens)))

    def _attach(self, seq_id: int, matches: list[Match], pages: int, resumed: bool) -> PrefixHit:
        """Share what was found; cannot fail."""
        hit = self._hit(pages, [m.take(seq_id, match, pages) for m, match in zip(self._members, matches)])
        if not resumed:
            self._counted += (1, matches[0].tokens.size, hit.num_tokens)
        self._last = None
        return hit
