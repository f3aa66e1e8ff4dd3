"""The operating system of the KV cache: who owns which frame (S19-S34).

`FrameAllocator` counts the holders of frames, `PageTable` maps the pages of one sequence to them, and `KVManager` keeps
the tables of all sequences. Nothing here sees a key or a value: decisions leave as plans and index arrays, and
`pagedref.kv_cache` carries them out.
"""

from __future__ import annotations

from pagedref.memory._plans import CopyPlan
from pagedref.memory._stats import MemoryStats
from pagedref.memory.frames import FrameAllocator
from pagedref.memory.manager import KVManager
from pagedref.memory.page_table import ACCESSED, DIRTY, PRESENT, SHARED, UNMAPPED, WRITABLE, PageTable

__all__ = [
    "ACCESSED",
    "DIRTY",
    "PRESENT",
    "SHARED",
    "UNMAPPED",
    "WRITABLE",
    "CopyPlan",
    "FrameAllocator",
    "KVManager",
    "MemoryStats",
    "PageTable",
]
