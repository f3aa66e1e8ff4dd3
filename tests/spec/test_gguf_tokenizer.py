"""The tokenizer in the metadata of a GGUF file: splitting rules, control tokens, SentencePiece scores, damage."""

from __future__ import annotations

from typing import Any

import pytest

from pagedref.errors import ContractError
from pagedref.models.gguf_tokenizer import tokenizer_from_gguf
from pagedref.models.tokenizer import Tokenizer

tokenizers = pytest.importorskip("tokenizers")

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def gpt2_metadata(rule: str = "smollm") -> dict[str, Any]:
    """Bytes, two merges across digits and letters, and control tokens, as SmolLM2 has them."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "12", "Ġa", "é", "<tool>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": list(dict.fromkeys(tokens)),
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(set(tokens)) - 4) + [USER],
        "tokenizer.ggml.merges": ["1 2", "Ġ a"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }


def built(metadata: dict[str, Any]) -> Tokenizer:
    tokenizer, note = tokenizer_from_gguf(metadata)
    assert tokenizer is not None and note == ""
    return tokenizer


def test_digits_stand_alone_only_where_the_rule_says_so() -> None:
    for rule, count in (("smollm", 2), ("qwen2", 2), ("gpt-2", 1), ("llama-bpe", 1)):
        tokenizer = built(gpt2_metadata(rule))
        assert len(tokenizer.encode("12")) == count, rule
        assert tokenizer.decode(tokenizer.encode("a 12 é\n\n😀")) == "a 12 é\n\n😀"


def test_control_and_user_tokens() -> None:
    tokenizer = built(gpt2_metadata())
    ids = tokenizer.encode("<|im_start|>a<tool><|im_end|>")
    assert ids[0] == 1 and ids[-1] == 2 and len(ids) == 4
    assert tokenizer.decode(ids) == "a<tool>"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_ids) == ("<|im_start|>", "<|im_end|>", {2})
    assert tokenizer.template == "{{ messages }}"
    assert built({**gpt2_metadata(), "tokenizer.ggml.add_bos_token": True}).encode("a")[0] == 1


def spm_metadata() -> dict[str, Any]:
    pieces = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL, **{f"<0x{byte:02X}>": BYTE for byte in range(256)}}
    scored = {"\u2581a": -1.0, "ab": -2.0, "\u2581ab": -3.0, "\u2581": -4.0, "a": -5.0, "b": -6.0}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*pieces, *scored],
        "tokenizer.ggml.token_type": [*pieces.values(), *[NORMAL] * len(scored)],
        "tokenizer.ggml.scores": [0.0] * len(pieces) + list(scored.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def test_sentencepiece_merges_by_score() -> None:
    tokenizer = built(spm_metadata())
    tokens = spm_metadata()["tokenizer.ggml.tokens"]
    spelt = [tokens[i] for i in tokenizer.encode("ab bab é")]
    assert spelt == ["<s>", "\u2581ab", "\u2581", "b", "ab", "\u2581", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab bab é")) == "ab bab é"
    bare = built({**spm_metadata(), "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False})
    assert [tokens[i] for i in bare.encode("ab")] == ["ab"]


def test_tokenizers_that_cannot_be_built_leave_a_note() -> None:
    for metadata in ({}, {"tokenizer.ggml.model": "rwkv"}, gpt2_metadata("default"), gpt2_metadata("tekken")):
        tokenizer, note = tokenizer_from_gguf(metadata)
        assert tokenizer is None and "not supported" in note


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", None),
        ("tokens", [1, 2]),
        ("tokens", ["a", "a"]),
        ("token_type", [1]),
        ("merges", ["x y"]),
        ("merges", ["1"]),
        ("merges", []),
        ("scores", [0.0]),
    ],
)
def test_damaged_vocabularies_are_named(key: str, value: object) -> None:
    base = spm_metadata() if key == "scores" else gpt2_metadata()
    with pytest.raises(ContractError) as caught:
        tokenizer_from_gguf({**base, f"tokenizer.ggml.{key}": value})
    assert "\n" not in str(caught.value)
