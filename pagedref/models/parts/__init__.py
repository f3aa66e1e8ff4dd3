"""The small parts of which every transformer here is put together, as its configuration says.

A layer is norms, an attention and a feed-forward network. There are two attentions (keys and values, or latents) and
three networks (gated, plain, experts); each takes its weights when it is made, and its rows and a
``Run`` (cache, step, threads, scratch memory, rotations) when it is called. No part knows a family, a page or a frame.
"""

from __future__ import annotations

from pagedref.models.parts._attention import Attention
from pagedref.models.parts._build import ARITHMETIC, Build
from pagedref.models.parts._experts import ExpertNetwork, choose_experts
from pagedref.models.parts._latent import LatentAttention
from pagedref.models.parts._network import Network
from pagedref.models.parts._run import Run, Scratch

__all__ = [
    "ARITHMETIC",
    "Attention",
    "Build",
    "ExpertNetwork",
    "LatentAttention",
    "Network",
    "Run",
    "Scratch",
    "choose_experts",
]
