"""What only some models have: attention through latents, and experts."""

from __future__ import annotations

from dataclasses import dataclass

from pagedref.models.fields import refuse, whole

__all__ = ["Experts", "Latent"]


@dataclass(frozen=True)
class Latent:
    """Say how attention goes through one latent for all heads (MLA, S13).

    Parameters
    ----------
    rank : int
        Numbers of a latent.
    nope_dim, rope_dim : int
        Numbers of a query or key without rotation, and rotated.
    v_dim : int
        Numbers of a value.
    q_rank : int, optional
        Numbers of the queries' own latent; ``None`` where queries come straight from the hidden state.
    interleaved : bool
        Whether rotary pairs are neighbours.
    """

    rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_rank: int | None = None
    interleaved: bool = True

    def __post_init__(self) -> None:
        for name in ("rank", "nope_dim", "rope_dim", "v_dim"):
            whole({name: getattr(self, name)}, name)
        if self.rope_dim % 2:
            refuse("ModelConfig", "qk_rope_head_dim", "is odd", self.rope_dim, "an even number: pairs are turned")


@dataclass(frozen=True)
class Experts:
    """Say how a feed-forward network is split into experts, of which each token takes some.

    Parameters
    ----------
    count, per_token : int
        Experts, and how many a token takes.
    size : int
        Width of one expert.
    shared_size : int
        Width of the network that every token takes besides, 0 for none.
    dense_layers : int
        The first layers, which have no experts.
    scoring : str
        What the router's numbers become: ``softmax``, ``sigmoid``, or ``softmax_chosen`` (over the chosen ones only).
    renormalise : bool
        Whether the weights of the chosen are divided by their sum.
    scale : float
        Factor on the weights.
    groups, groups_per_token : int
        Experts stand in this many groups of equal size, of which a token chooses some first.
    group_score : str
        What a group is chosen by: ``max``, or ``top2``, the sum of its two best.
    correction : bool
        Whether each expert has a number that is added for choosing only.
    limit : float, optional
        The gate is ``min(g, limit) sigmoid(1.702 g) (clip(u) + 1)`` instead of that of the activation.
    """

    count: int
    per_token: int
    size: int
    shared_size: int = 0
    dense_layers: int = 0
    scoring: str = "softmax"
    renormalise: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_per_token: int = 1
    group_score: str = "max"
    correction: bool = False
    limit: float | None = None

    def __post_init__(self) -> None:
        for name in ("count", "per_token", "size", "groups", "groups_per_token"):
            whole({name: getattr(self, name)}, name)
        if self.scoring not in ("softmax", "sigmoid", "softmax_chosen"):
            refuse("ModelConfig", "scoring", "is unknown", self.scoring, "softmax, sigmoid or softmax_chosen")
        if self.group_score not in ("max", "top2"):
            refuse("ModelConfig", "group_score", "is unknown", self.group_score, "max or top2")
        if self.count % self.groups or self.groups_per_token > self.groups:
            got = (self.count, self.groups, self.groups_per_token)
            refuse("ModelConfig", "groups of experts", "do not fit", got, "groups of equal size, and not more than all")
        members = self.count // self.groups
        if self.per_token > members * self.groups_per_token:
            most = members * self.groups_per_token
            refuse("ModelConfig", "experts of a token", "are too many", self.per_token, f"at most {most}")
        if self.groups > 1 and self.group_score == "top2" and members < 2:
            refuse("ModelConfig", "groups of experts", "are too small", members, "2 experts or more in each")
