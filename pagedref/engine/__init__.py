"""Continuous batching: requests come and go at any step, over one pool of frames (S29-S34).

`Engine` takes requests, asks :mod:`pagedref.scheduling` who runs next, runs one ragged batch through the model, and
hands out tokens and text as they come.
"""

from __future__ import annotations

from pagedref.engine._frames import FrameUse
from pagedref.engine._metrics import EngineMetrics
from pagedref.engine._outputs import Completion, Delta, Sample, Usage
from pagedref.engine._settings import EngineConfig
from pagedref.engine.engine import Engine

__all__ = ["Completion", "Delta", "Engine", "EngineConfig", "EngineMetrics", "FrameUse", "Sample", "Usage"]
