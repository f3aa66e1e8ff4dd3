"""Prove that the prefix index, the frames and the tokens known of sequences agree (S25, S28, S30)."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.memory._entries import frames_of
from pagedref.memory._publish import Publisher
from pagedref.memory._sequences import Sequences
from pagedref.memory._tables import TableStore
from pagedref.memory.frames import FrameAllocator

__all__ = ["index_problems"]

SHOWN = 8
Mask: TypeAlias = npt.NDArray[np.bool_]


def index_problems(
    publisher: Publisher,
    frames: FrameAllocator,
    sequences: Sequences,
    tables: TableStore,
    elsewhere: Mask | None = None,
) -> list[str]:
    """List what contradicts itself in the prefix index; costs O(nodes + frames + entries).

    Parameters
    ----------
    publisher : Publisher
        The index, and what is known of tokens.
    frames, sequences, tables
        The rest of a manager's state.
    elsewhere : bool array (num_frames,), optional
        Frames that are published in the index of another manager of this pool.

    Returns
    -------
    list of str
        One line for each kind of fault; empty when all is well.
    """
    index, streams = publisher.index, publisher.streams
    found: list[str] = []
    alive = index.alive()  # (nodes,)
    parents = index.parent[: alive.size]

    def check(what: str, wrong: Any) -> None:
        places = np.flatnonzero(wrong)[:SHOWN].tolist()
        if places:
            found.append(f"{what}: {places}")

    published = index.node_of >= 0
    kept = frames._kept if elsewhere is None else frames._kept & ~elsewhere
    check("frames are published and not kept, or kept and not published", published != kept)
    check("free frames are published", published & (frames.refcount == 0) & ~_inside(frames))
    named = index.node_of[published]
    if named.size and not alive[named].all():
        return [*found, "frames are published under nodes that are gone"]
    hung = np.zeros(frames.num_frames, dtype=np.int64)
    for node in np.flatnonzero(alive & (index.first_frame[: alive.size] >= 0)).tolist():
        for frame in index.frames_of(node):
            hung[frame] += 1
            if index.node_of[frame] != node:
                found.append(f"frame {frame} hangs on node {node} and is published under {index.node_of[frame]}")
    check("frames hang on no node or on several", hung != published)
    below = np.bincount(parents[alive & (np.arange(alive.size) > 0)], minlength=alive.size)
    on = streams.cursor[streams.cursor >= 0]
    below += np.bincount(on, minlength=alive.size)
    below[0] += 1
    check("nodes miscount what is below them", alive & (below != index.children[: alive.size]))
    bare = alive & (index.first_frame[: alive.size] < 0) & (index.children[: alive.size] == 0)
    check("nodes are needed by nobody", bare)
    check("nodes have parents that are gone", alive & ~alive[np.where(alive, parents, 0)])
    found += index.table_problems(alive)
    return found + _streams(publisher, sequences, tables)


def _inside(frames: FrameAllocator) -> Mask:
    """Return which frames the policy holds."""
    inside = np.zeros(frames.num_frames, dtype=np.bool_)
    inside[frames.policy.frames()] = True
    return inside


def _streams(publisher: Publisher, sequences: Sequences, tables: TableStore) -> list[str]:
    """Follow every stream from its cursor to its root, against the table of its sequence."""
    index, streams, found = publisher.index, publisher.streams, []
    for row in np.flatnonzero(streams.cursor >= 0).tolist():
        seq_id, pages = int(sequences.seq_id[row]), int(streams.published[row])
        node, depth = int(streams.cursor[row]), 0
        if seq_id < 0:
            found.append(f"row {row} has a stream and no sequence")
            continue
        if pages * index.page_size > sequences.length[row]:
            found.append(f"sequence {seq_id} has {pages} pages published and {sequences.length[row]} tokens committed")
        named = frames_of(tables.entries[row, : tables.num_pages[row]])
        while index.root_name(node) is None:
            page = pages - 1 - depth
            frame = int(named[page]) if 0 <= page < named.size else -1
            if frame >= 0 and index.node_of[frame] not in (-1, node):
                found.append(f"page {page} of sequence {seq_id} is published under another page's node")
            node, depth = int(index.parent[node]), depth + 1
        if depth != pages:
            found.append(f"sequence {seq_id} stands {depth} pages deep and has {pages} published")
    return found[:SHOWN]
