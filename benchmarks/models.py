"""SmolLM2: decode and prefill against transformers on torch, with the same float32 weights."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.measure import Row
from pagedref.models.checkpoint import load_checkpoint
from pagedref.models.config import ModelConfig
from pagedref.models.hub import resolve_model
from pagedref.models.model import Model

PROMPT, NEW, BATCHES = 128, 32, (1, 8, 16)
TARGETS = {1: 1.5, 8: 1.0, 16: 1.0}

_TORCH = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "lm_head": "lm_head.weight"}
_TORCH_LAYER = {
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip


class Ours:
    """The model of this package, driven step by step."""

    name = "ours"

    def __init__(self, model: Model) -> None:
        self.model = model

    def prefill(self, prompts: np.ndarray[Any, Any]) -> None:
        """Read prompts (batch, tokens), 512 tokens a step at most."""
        batch, length = prompts.shape
        self.cache = self.model.cache(batch * (-(-(length + NEW) // 16)))
        self.sequences = [self.cache.add() for _ in range(batch)]
        at_once = max(1, 512 // length)
        last = []
        for first in range(0, batch, at_once):
            some = self.sequences[first : first + at_once]
            step = self.cache.begin(some, [length] * len(some))
            ids = prompts[first : first + len(some)].reshape(-1)
            ends = np.arange(1, len(some) + 1) * length - 1
            last.append(self.model.transformer.forward(self.cache, step, ids, ends).argmax(axis=1))
            self.cache.commit(step)
        self.new = [np.concatenate(last)]

    def decode(self) -> None:
        """Add NEW - 1 more tokens to every sequence."""
        for _ in range(NEW - 1):
            step = self.cache.begin(self.sequences, [1] * len(self.sequences))
            self.new.append(self.model.transformer.forward(self.cache, step, self.new[-1]).argmax(axis=1))
            self.cache.commit(step)

    def tokens(self) -> np.ndarray[Any, Any]:
        """Return the new tokens (batch, NEW)."""
        return np.stack(self.new, axis=1)


class Transformers:
    """LlamaForCausalLM in float32 with torch's fused attention and its own cache, in a bare loop."""

    name = "transformers"

    def __init__(self, config: ModelConfig, weights: dict[str, np.ndarray[Any, Any]]) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        self.torch = torch
        self.model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_qo_heads,
                num_key_value_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                rms_norm_eps=config.norm_eps,
                max_position_embeddings=config.max_model_len,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                tie_word_embeddings=config.tie_embeddings,
                attn_implementation="sdpa",
            )
        ).eval()
        state = {}
        for name, weight in weights.items():
            _, _, kind = name.rpartition(".")
            layer = name.split(".")[1] if "." in name else ""
            target = _TORCH[name] if name in _TORCH else f"model.layers.{layer}.{_TORCH_LAYER[kind]}.weight"
            state[target] = torch.from_numpy(weight)
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        self.model.tie_weights()

    def prefill(self, prompts: np.ndarray[Any, Any]) -> None:
        """Read prompts (batch, tokens) in one call; only the last logits are computed."""
        with self.torch.inference_mode():
            out = self.model(input_ids=self.torch.from_numpy(prompts), use_cache=True, logits_to_keep=1)
            self.past, self.new = out.past_key_values, [out.logits[:, -1].argmax(-1)]

    def decode(self) -> None:
        """Add NEW - 1 more tokens to every sequence."""
        with self.torch.inference_mode():
            for _ in range(NEW - 1):
                out = self.model(input_ids=self.new[-1][:, None], past_key_values=self.past, use_cache=True)
                self.past = out.past_key_values
                self.new.append(out.logits[:, -1].argmax(-1))

    def tokens(self) -> np.ndarray[Any, Any]:
        """Return the new tokens (batch, NEW)."""
        return np.stack([token.numpy() for token in self.new], axis=1)


def measure(rounds: int, name: str = "smollm2") -> list[Row]:
    """Measure prefill and decode for each batch size, both sides in turn."""
    checkpoint = load_checkpoint(resolve_model(name))
    theirs = Transformers(checkpoint.config, dict(checkpoint.weights))
    ours = Ours(Model(checkpoint.config, dict(checkpoint.weights)))
    rng = np.random.default_rng(0)
    rows = []
    for batch in BATCHES:
        prompts = rng.integers(100, checkpoint.config.vocab_size, (batch, PROMPT))
        prefill = Row(f"prefill, batch {batch} x {PROMPT}", "tokens/s", batch * PROMPT)
        decode = Row(f"decode, batch {batch}", "tokens/s", batch * (NEW - 1))
        decode.targets = {"transformers": TARGETS[batch]}
        for number in range(rounds + 1):  # the first round warms up
            sides = [ours, theirs] if number % 2 else [theirs, ours]
            for side in sides:
                start = time.perf_counter()
                side.prefill(prompts)
                middle = time.perf_counter()
                side.decode()
                if number:
                    prefill.seconds.setdefault(side.name, []).append(middle - start)
                    decode.seconds.setdefault(side.name, []).append(time.perf_counter() - middle)
        equal = (ours.tokens() == theirs.tokens()).all(axis=1).sum()
        print(f"  batch {batch}: {equal} of {batch} continuations of {NEW} tokens equal", flush=True)
        rows += [prefill, decode]
    return rows
