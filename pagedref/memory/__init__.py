"""The operating system of the KV cache: who owns which frame (S19-S34).

`FrameAllocator` counts the holders of frames, `PageTable` maps the pages of one sequence to them, and `KVManager` keeps
the tables of all sequences: it shares prefixes, gives up cached pages, swaps, admits and chooses victims. Nothing here
sees a key or a value: decisions leave as plans and index arrays, and `pagedref.kv_cache` carries them out.
"""

from __future__ import annotations

from pagedref.memory._admission import Admitted
from pagedref.memory._match import PrefixStats
from pagedref.memory._plans import CopyPlan
from pagedref.memory._stats import MemoryStats
from pagedref.memory.batch import Batch, BatchStep
from pagedref.memory.eviction import ARC, FIFO, LFU, LRU, S3FIFO, Clock, EvictionPolicy, Priority
from pagedref.memory.frames import FrameAllocator
from pagedref.memory.groups import GroupedKVManager, LayerGroup, equal_groups
from pagedref.memory.manager import KVManager
from pagedref.memory.page_table import (
    ACCESSED,
    DIRTY,
    PINNED,
    PRESENT,
    SHARED,
    SWAPPED,
    UNMAPPED,
    WRITABLE,
    PageTable,
)
from pagedref.memory.prefix import Media, PrefixHit, page_keys
from pagedref.memory.pressure import Need

__all__ = [
    "ACCESSED",
    "ARC",
    "DIRTY",
    "FIFO",
    "LFU",
    "LRU",
    "PINNED",
    "PRESENT",
    "S3FIFO",
    "SHARED",
    "SWAPPED",
    "UNMAPPED",
    "WRITABLE",
    "Admitted",
    "Batch",
    "BatchStep",
    "Clock",
    "CopyPlan",
    "EvictionPolicy",
    "FrameAllocator",
    "GroupedKVManager",
    "KVManager",
    "LayerGroup",
    "Media",
    "MemoryStats",
    "Need",
    "PageTable",
    "PrefixHit",
    "PrefixStats",
    "Priority",
    "equal_groups",
    "page_keys",
]
