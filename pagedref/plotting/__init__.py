"""Figures (needs matplotlib: ``pip install 'pagedref[plot]'``); one module for each kind of result."""

from __future__ import annotations
