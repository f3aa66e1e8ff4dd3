"""A second derivation of every transformer here: dense, float64, one row, one head and one key at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pagedref.models.config import Experts, ModelConfig

Array = np.ndarray[Any, Any]


def dense_logits(config: ModelConfig, weights: dict[str, Array], ids: Any) -> Array:
    """Logits (tokens, vocab) in float64."""
    return _Dense(config, {name: weight.astype(np.float64) for name, weight in weights.items()}).logits(ids)


def _activation(kind: str, x: float) -> float:
    if kind == "silu":
        return x / (1 + math.exp(-x)) if x > -700 else 0.0
    if kind == "gelu":
        return x * (1 + math.erf(x / math.sqrt(2))) / 2
    if kind == "gelu_tanh":
        return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    assert kind == "relu"
    return max(x, 0.0)


def slope(head: int, heads: int, most: float) -> float:
    """ALiBi: as if the heads were a power of two; those beyond it take the odd ones of twice that power."""
    power = 1
    while 2 * power <= heads:
        power *= 2
    exponent = most * (head + 1) / power if head < power else most * (2 * (head - power) + 1) / (2 * power)
    return float(2.0**-exponent)


class _Dense:
    def __init__(self, config: ModelConfig, weights: dict[str, Array]) -> None:
        self.config, self.weights = config, weights

    def product(self, name: str, x: Array) -> Array:
        return np.asarray(self.weights[name] @ x + self.weights.get(f"{name}_bias", 0.0))

    def norm(self, name: str, x: Array, *, kind: str = "", eps: float | None = None) -> Array:
        eps = self.config.norm_eps if eps is None else eps
        if (kind or self.config.norm) == "rms":
            weight = self.weights[name] + self.config.norm_offset
            return np.asarray(x / math.sqrt(float(np.mean(x * x)) + eps) * weight)
        spread = math.sqrt(float(np.var(x)) + eps)
        return (x - np.mean(x)) / spread * self.weights[name] + self.weights.get(f"{name}_bias", 0.0)

    def turn(self, x: Array, layer: int, position: int, *, interleaved: bool = False) -> Array:
        rope = self.config.rope(layer)
        if rope is None:
            return x
        x, pairs = x.copy(), len(rope.inv_freq)
        for pair in range(pairs):
            a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
            number = (x[a] + 1j * x[b]) * np.exp(1j * position * rope.inv_freq[pair]) * rope.magnitude
            x[a], x[b] = number.real, number.imag
        return x

    def logits(self, ids: Any) -> Array:
        config, w = self.config, self.weights
        rows = []
        for position, token in enumerate(ids):
            x = w["embed"][token] * config.embed_scale
            if config.learned_positions is not None:
                x = x + w["positions"][position + config.learned_positions]
            rows.append(self.norm("embed_norm", x) if config.embed_norm else x)
        for layer in range(config.num_layers):
            rows = self.layer(layer, rows)
        head = w["embed" if config.tie_embeddings else "lm_head"]
        found = np.array([head @ self.norm("final_norm", x) for x in rows])
        cap = config.logit_softcap
        return found if cap is None else cap * np.tanh(found / cap)

    def layer(self, layer: int, rows: list[Array]) -> list[Array]:
        config, p = self.config, f"layers.{layer}."

        def normed(kind: str, x: Array) -> Array:
            return self.norm(p + kind, x) if kind in config.norms else x

        attend = self.attention if config.latent is None else self.latent_attention
        added = attend(layer, [normed("attn_norm", x) for x in rows])
        after = []
        for x, more in zip(rows, added, strict=True):
            middle = x + normed("attn_post_norm", more)
            source = x if config.parallel else middle
            kind = "attn_norm" if config.parallel and "mlp_norm" not in config.norms else "mlp_norm"
            after.append(middle + normed("mlp_post_norm", self.network(layer, normed(kind, source))))
        return after

    def score(self, layer: int, head: int, product: float, distance: int, default: float) -> float:
        config = self.config
        score = product * (default if config.sm_scale is None else config.sm_scale)
        if config.softcap is not None:
            score = config.softcap * math.tanh(score / config.softcap)
        if config.alibi is not None:
            score -= slope(head, config.num_qo_heads, config.alibi) * distance
        return score

    def mean(self, layer: int, head: int, scores: list[float], values: list[Array]) -> Array:
        extra = [float(self.weights[f"layers.{layer}.sinks"][head])] if self.config.sinks else []
        top = max(scores + extra)
        shares = [math.exp(score - top) for score in scores]
        total = sum(shares) + sum(math.exp(score - top) for score in extra)
        return sum(share / total * value for share, value in zip(shares, values, strict=True))  # type: ignore[return-value]

    def attention(self, layer: int, rows: list[Array]) -> list[Array]:
        config, p = self.config, f"layers.{layer}."
        group, window = config.num_qo_heads // config.num_kv_heads, config.windows[layer]
        keys: list[list[Array]] = []
        values: list[Array] = []
        added = []
        for position, x in enumerate(rows):
            q, k, v = (self.product(p + kind, x) for kind in "qkv")
            if config.qk_norm == "width":
                q, k = self.norm(p + "q_norm", q, kind="rms"), self.norm(p + "k_norm", k, kind="rms")
            queries, own = list(q.reshape(config.num_qo_heads, -1)), list(k.reshape(config.num_kv_heads, -1))
            if config.qk_norm == "head":
                queries = [self.norm(p + "q_norm", head, kind="rms") for head in queries]
                own = [self.norm(p + "k_norm", head, kind="rms") for head in own]
            keys.append([self.turn(head, layer, position) for head in own])
            values.append(v.reshape(config.num_kv_heads, -1))
            seen = range(0 if window is None else max(0, position - window + 1), position + 1)
            heads = []
            for number, head in enumerate(queries):
                head = self.turn(head, layer, position)
                scale = 1 / math.sqrt(config.head_dim)
                scores = [
                    self.score(layer, number, float(head @ keys[j][number // group]), position - j, scale) for j in seen
                ]
                heads.append(self.mean(layer, number, scores, [values[j][number // group] for j in seen]))
            added.append(self.product(p + "o", np.concatenate(heads)))
        return added

    def latent_attention(self, layer: int, rows: list[Array]) -> list[Array]:
        """With keys and values of every head expanded from the latents: the form that is not absorbed."""
        config, p, latent = self.config, f"layers.{layer}.", self.config.latent
        assert latent is not None
        expand = self.weights[p + "kv_b"].reshape(config.num_qo_heads, latent.nope_dim + latent.v_dim, latent.rank)
        latents: list[Array] = []
        turned: list[Array] = []
        added = []
        for position, x in enumerate(rows):
            if latent.q_rank is None:
                q = self.product(p + "q", x)
            else:
                q = self.product(p + "q_b", self.norm(p + "q_a_norm", self.product(p + "q_a", x), eps=1e-6))
            kv = self.product(p + "kv_a", x)
            latents.append(self.norm(p + "kv_a_norm", kv[: latent.rank], eps=1e-6))
            turned.append(self.turn(kv[latent.rank :], layer, position, interleaved=latent.interleaved))
            heads = []
            for number, head in enumerate(q.reshape(config.num_qo_heads, -1)):
                plain, rest = head[: latent.nope_dim], head[latent.nope_dim :]
                rest = self.turn(rest, layer, position, interleaved=latent.interleaved)
                own = [expand[number] @ c for c in latents]
                scores = [
                    self.score(layer, number, float(plain @ e[: latent.nope_dim] + rest @ t), position - j, math.nan)
                    for j, (e, t) in enumerate(zip(own, turned, strict=True))
                ]
                heads.append(self.mean(layer, number, scores, [e[latent.nope_dim :] for e in own]))
            added.append(self.product(p + "o", np.concatenate(heads)))
        return added

    def network(self, layer: int, x: Array) -> Array:
        experts, p = self.config.experts, f"layers.{layer}."
        if experts is None or layer < experts.dense_layers:
            return self.feed(p, x)
        total = self.feed(p + "shared_", x) if experts.shared_size else np.zeros_like(x)
        for number, weight in self.choice(p, experts, x).items():
            total = total + weight * self.feed(p + "experts_", x, number)
        return total

    def feed(self, prefix: str, x: Array, expert: int | None = None) -> Array:
        def product(kind: str, x: Array) -> Array:
            if expert is None:
                return self.product(prefix + kind, x)
            bias = self.weights.get(f"{prefix}{kind}_bias")
            return np.asarray(self.weights[prefix + kind][expert] @ x + (0.0 if bias is None else bias[expert]))

        config, up = self.config, product("up", x)
        if not config.gated:
            return product("down", np.array([_activation(config.activation, u) for u in up]))
        gate = product("gate", x)
        limit = None if config.experts is None or expert is None else config.experts.limit
        if limit is None:
            inner = [_activation(config.activation, g) * u for g, u in zip(gate, up, strict=True)]
            return product("down", np.array(inner))
        inner = [
            min(g, limit) / (1 + math.exp(-1.702 * min(g, limit))) * (min(max(u, -limit), limit) + 1)
            for g, u in zip(gate, up, strict=True)
        ]
        return product("down", np.array(inner))

    def choice(self, p: str, experts: Experts, x: Array) -> dict[int, float]:
        """The experts of a row and their weights, by lists and sorting."""
        said = self.product(p + "router", x).tolist()
        everyone = range(experts.count)
        if experts.scoring == "sigmoid":
            scores = [1 / (1 + math.exp(-s)) for s in said]
        else:
            scores = [math.exp(s - max(said)) / sum(math.exp(t - max(said)) for t in said) for s in said]
        offers = [s + (float(self.weights[p + "router_correction"][e]) if experts.correction else 0.0)
                  for e, s in enumerate(scores)]  # fmt: skip
        size = experts.count // experts.groups
        best = []
        for group in range(experts.groups):
            members = sorted(offers[group * size : (group + 1) * size], reverse=True)
            best.append(sum(members[:2]) if experts.group_score == "top2" else members[0])
        kept = sorted(range(experts.groups), key=lambda group: -best[group])[: experts.groups_per_token]
        able = [expert for expert in everyone if expert // size in kept]
        chosen = sorted(able, key=lambda expert: -offers[expert])[: experts.per_token]
        total = sum(scores[expert] for expert in chosen)
        again = experts.renormalise or experts.scoring == "softmax_chosen"
        return {e: experts.scale * scores[e] / (total if again else 1.0) for e in sorted(chosen)}
