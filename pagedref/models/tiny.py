r"""A tiny Llama whose weights are written by hand, and which therefore has known right answers.

It reads a story in the little language of :mod:`pagedref.models.tiny_text` and answers questions about it, however many
thousand tokens ago the fact was told. Nothing is trained: two layers of attention are enough to look a fact up
(an *induction circuit*), and every number of the 0.8 MB file follows from the rules below. ::

    ... the colour of heron is amber teal . ...... (20,000 tokens of filler) ...... what is the colour of heron ?
                   |        |    |   ^                                                        |        |     |
                   |        |    |   +---- layer 1: which position stands after ------------- KIND    WHO   NOW
                   |        |    |         "is", in a sentence on the colour of heron? <------+--------+-----+
                  KIND     WHO  PREV       Copy the NAME of its token: "amber".
                   +--------+----+
                   layer 0 has told the position of "amber" which token is before it, and what the sentence is about

The residual stream (96 numbers for each token) is a row of labelled boxes; every entry of a box is +1 or -1 ::

    0      15 16  17   18   19  20 23 24  31 32    47 48    63 64    79 80  87 88  95
    +--------+---+----+----+---+-----+------+--------+--------+--------+------+-----+
    |  NOW   |ONE|IS_ |IS_ |IS_|  -  | NAME |  PREV  |  KIND  |  WHO   | OUT  |  -  |
    |  code  | 1 |KIND|WHO |BOS|     | bits |  code  |  code  |  code  | bits |     |
    +--------+---+----+----+---+-----+------+--------+--------+--------+------+-----+
      embedding (what the token is)           layer 0 (its context)      layer 1 (what comes next)

**Codes.** NOW, PREV, KIND and WHO hold tokens as codewords of the Nordstrom-Robinson code without its last coordinate:
256 words of 15 signs, two of which agree in at most 10 places. The product of a codeword with itself is 15, with any
other at most 5, so "the same token?" is one dot product and a gap of 10. NAME and OUT hold the eight bits of a token
id with no redundancy at all: one wrong bit is another word.

**Norms.** Every token's stream has the same length (27 signs, 72 after layer 0, 80 after layer 1), so RMSNorm divides
by a number known beforehand and its weight multiplies by it again: each layer reads the boxes as they were written.
The start token and "the" have no codeword but sqrt(15) in the sixteenth coordinate, which no comparison reads.

**Rotary embedding.** ``rope_theta = 2**64`` makes the frequencies 4**-i radians per position, pair i of 32. Pairs 0 to
8 turn fast enough to tell distances apart, and layer 0 uses these; pairs 9 to 31 turn by less than 1/8 radian over all
32,768 positions, and layer 1 matches codes in these. A constant key and a constant query at an angle of psi give a
score of A cos(d 4**-i + psi) at distance d, so a sum over pairs draws any curve of the distance.

**Layer 0.** Heads 0 and 3 find the token before: the curve peaks at d = 1, 31.5 above every other distance. Head 1
finds the last KIND word and head 2 the last WHO word ("the" counts as one: it opens a new phrase about nobody yet, and
so puts an end to what came before): a curve that falls by 9.9 or more at each of the first 24 steps and never comes
back up, and 352 for being such a word. Then the MLP has two rules: NOW of "?" and of ":" is overwritten with that of
"is".

**Layer 1.** All heads ask for PREV = my NOW, KIND = my KIND, WHO = my WHO. The score is 6 for each sign that agrees, so
all three together (270) are at least 60 above any two. The start token scores 240, half-way, whoever asks, and its
NAME is "unknown": the answer where no fact fits. Head h copies bits 2h and 2h + 1 of NAME to OUT. The MLP has three
rules: after "." comes the end, after "unknown" comes ".", after the end the end, four times as loud as the heads.

**Four query heads, two key heads.** Key head 1 holds every key with its sign reversed (heads 2 and 3 ask for the
reverse), and other values than key head 0. Heads 0 and 3 of layer 0 each carry one half of PREV, and the heads of
layer 1 a quarter of the answer each. Map query head h to key head h % 2, or swap two heads, and the answer is another.

Run ``python -m pagedref.models.tiny DIRECTORY`` to write the checkpoint. It is the same bit for bit each time.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.models.safetensors_file import write_safetensors
from pagedref.models.tiny_text import (
    BOS,
    EOS,
    KINDS,
    SPECIAL,
    VOCAB,
    WHO,
    Fact,
    Story,
    decode,
    encode,
    facts,
    story,
    tokenizer,
)

__all__ = [
    "CONFIG", "DATA", "SPAN", "Fact", "Story", "build", "codewords", "decode", "encode", "facts", "main", "story",
    "tokenizer", "weights",
]  # fmt: skip

DATA = Path(__file__).parent / "data" / "tiny"
"""The checkpoint that is shipped."""

SPAN = 24
"""Tokens after which "the" or an animal, or a kind, may be forgotten if no other has come: a sentence's length."""

NOW, ONE, IS_KIND, IS_WHO, IS_BOS, NAME = 0, 16, 17, 18, 19, 24  # first coordinate of each box
PREV, OF_KIND, OF_WHO, OUT = 32, 48, 64, 80
HIDDEN, HEAD_DIM, HALF, NEURONS = 96, 64, 32, 16
SIGNS = 15  # coordinates of a codeword
EPS = 1e-6
KEY = 8.0  # every key is this large: sqrt(head_dim), so that sm_scale * q . k is what the query says

STEP = 64.0  # height of each cosine of "the token before", pairs 0 to 8
FALL = {2: (160.0, 0.75), 3: (288.0, 0.5), 4: (288.0, 0.5), 5: (288.0, 0.5), 6: (288.0, 0.5), 7: (288.0, 0.5)}
FLAG = 176.0  # half of what being a KIND or WHO word adds
MATCH = 6.0  # score of each sign that agrees in layer 1
MATCH_DIMS = [*range(9, 32), *range(41, 64)]  # both coordinates of the pairs that hardly turn: 45 signs and the start
NAME_DIMS = (3, 21, 42, 60)  # where a value head of layer 1 holds its four bits, all over the head
LOUD = 4.0  # the MLP's word against the heads'
LOGIT = 8.0  # logits are 64 for the answer and 48 for the next best

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": BOS,
    "dtype": "float32",
    "eos_token_id": EOS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": NEURONS,
    "max_position_embeddings": 32768,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "rms_norm_eps": EPS,
    "rope_parameters": {"rope_theta": 2.0**64, "rope_type": "default"},
    "rope_theta": 2.0**64,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": len(VOCAB),
}
"""The checkpoint's ``config.json``."""


def codewords() -> npt.NDArray[np.float64]:
    """Return the codeword of every token: the Nordstrom-Robinson code, punctured once.

    The four base-4 digits of a token id are encoded with the octacode (eight digits modulo 4, this generator matrix),
    and the Gray map writes each digit as two signs: 0 ++, 1 +-, 2 --, 3 -+. The last sign is left off.

    Returns
    -------
    array of float64, (256, 15)
        +1 or -1. Two rows differ in 5 places or more.

    References
    ----------
    Hammons, Kumar, Calderbank, Sloane and Sole, The Z4-linearity of Kerdock, Preparata, Goethals, and related codes,
    IEEE Transactions on Information Theory 40 (1994), section III.
    """
    generator = np.array(
        [[1, 0, 0, 0, 3, 1, 2, 1], [0, 1, 0, 0, 1, 2, 3, 1], [0, 0, 1, 0, 3, 3, 3, 2], [0, 0, 0, 1, 2, 3, 1, 1]]
    )
    digits = (np.arange(256)[:, None] >> np.array([6, 4, 2, 0])) & 3  # (256, 4)
    gray = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]], dtype=np.float64)
    signs: npt.NDArray[np.float64] = gray[digits @ generator % 4].reshape(256, 16)
    return signs[:, :SIGNS]  # (256, 15)


def weights() -> dict[str, npt.NDArray[np.float32]]:
    """Write down every tensor of the checkpoint.

    Returns
    -------
    dict of str to array of float32
        By their Hugging Face names; matrices are (outputs, inputs).

    Notes
    -----
    Written in float64 and rounded once. 206,304 numbers, most of them zero.
    """
    code = codewords()
    bits = np.where((np.arange(256)[:, None] >> np.arange(8)) & 1, 1.0, -1.0)  # (256, 8)
    token = {word: number for number, word in enumerate(VOCAB)}

    embedding = np.zeros((256, HIDDEN))
    embedding[:, NOW : NOW + SIGNS] = code
    embedding[:, NAME : NAME + 8] = bits
    embedding[:, ONE] = 1.0
    embedding[:, [IS_KIND, IS_WHO, IS_BOS]] = -1.0
    embedding[[token[word] for word in KINDS] + [BOS], IS_KIND] = 1.0
    embedding[[token[word] for word in (*WHO, "the")] + [BOS], IS_WHO] = 1.0
    embedding[[BOS, token["the"]], NOW : NOW + 16] = [0.0] * SIGNS + [math.sqrt(SIGNS)]  # alike with nothing
    embedding[BOS, NAME : NAME + 8] = bits[token["unknown"]]
    embedding[BOS, IS_BOS] = 1.0

    head = np.zeros((256, HIDDEN))
    head[:, OUT : OUT + 8] = LOGIT * bits
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": _undo(80)}

    rewrite = {token[mark]: (NOW, np.append(code[token["is"]] - code[token[mark]], 0.0)) for mark in "?:"}
    follow = {
        token["."]: (OUT, LOUD * bits[EOS]),
        token["unknown"]: (OUT, LOUD * bits[token["."]]),
        EOS: (OUT, LOUD * bits[EOS]),
    }
    for layer, (attention, rules, signs) in enumerate([(_context(), rewrite, 27), (_recall(), follow, 72)]):
        parts = {
            **attention,
            **_rules(rules, code),
            "input_layernorm": _undo(signs),
            "post_attention_layernorm": _undo((72, 80)[layer]),
        }
        tensors |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in parts.items()}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def _undo(signs: int) -> npt.NDArray[np.float64]:
    """Return the norm weight that multiplies by what RMSNorm divides by, for a stream of `signs` entries of +-1."""
    return np.full(HIDDEN, math.sqrt(signs / HIDDEN + EPS))


def _blank() -> dict[str, npt.NDArray[np.float64]]:
    """Return an attention layer of zeros, its matrices shaped so that a head and a coordinate name a row."""
    return {
        "q": np.zeros((4, HEAD_DIM, HIDDEN)),
        "k": np.zeros((2, HEAD_DIM, HIDDEN)),
        "v": np.zeros((2, HEAD_DIM, HIDDEN)),
        "o": np.zeros((HIDDEN, 4, HEAD_DIM)),
    }


def _attention(parts: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the four matrices with heads and coordinates merged, the second half of the heads sign-reversed."""
    sign = np.array([1.0, -1.0])[:, None, None]
    return {
        "self_attn.q_proj": (parts["q"] * np.repeat(sign, 2, axis=0)).reshape(4 * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (parts["k"] * sign).reshape(2 * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": parts["v"].reshape(2 * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": parts["o"].reshape(HIDDEN, 4 * HEAD_DIM),
    }


def _context() -> dict[str, npt.NDArray[np.float64]]:
    """Write layer 0's attention: heads 0 and 3 the token before, head 1 the last KIND, head 2 the last WHO."""
    parts = _blank()
    parts["k"][:, :9, ONE] = KEY  # a constant key, at angle zero in pairs 0 to 8
    parts["k"][0, 31, IS_KIND] = KEY
    parts["k"][1, 31, IS_WHO] = KEY
    before = {pair: (STEP, -(4.0**-pair)) for pair in range(9)}  # A cos((d - 1) 4**-pair)
    for head, curve in enumerate([before, FALL, FALL, before]):
        for pair, (height, angle) in curve.items():
            parts["q"][head, pair, ONE] = height * math.cos(angle)
            parts["q"][head, pair + HALF, ONE] = height * math.sin(angle)
    parts["q"][1:3, 31, ONE] = FLAG

    for i in range(16):  # key head 0 holds the code in coordinates 0, 4, ..., 60, key head 1 in 2, 6, ..., 62
        parts["v"][0, 4 * i, NOW + i] = parts["v"][1, 4 * i + 2, NOW + i] = 1.0
        if i < 8:
            parts["o"][PREV + i, 0, 4 * i] = 1.0
        else:
            parts["o"][PREV + i, 3, 4 * i + 2] = 1.0
        parts["o"][OF_KIND + i, 1, 4 * i] = 1.0
        parts["o"][OF_WHO + i, 2, 4 * i + 2] = 1.0
    return _attention(parts)


def _recall() -> dict[str, npt.NDArray[np.float64]]:
    """Write layer 1's attention: find the position with my context, copy its NAME, two bits for each head."""
    parts = _blank()
    boxes = [(NOW, PREV), (OF_KIND, OF_KIND), (OF_WHO, OF_WHO)]  # my box, the box of the position sought
    pairs = [(mine + i, sought + i) for mine, sought in boxes for i in range(SIGNS)]
    for dim, (mine, sought) in zip(MATCH_DIMS, pairs, strict=False):
        parts["q"][:, dim, mine] = MATCH
        parts["k"][:, dim, sought] = KEY
    # Alike in three boxes: 45 signs; in two: 30 + 5 at most. The start token stands at 40, half-way. Its own codes add
    # nothing, and IS_BOS is +1 there and -1 elsewhere, which makes the 40 twice 20.
    parts["q"][:, MATCH_DIMS[-1], ONE] = 20 * MATCH
    parts["k"][:, MATCH_DIMS[-1], IS_BOS] = KEY

    for bit in range(8):
        dim = NAME_DIMS[bit % 4]
        parts["v"][bit // 4, dim, NAME + bit] = 1.0
        parts["o"][OUT + bit, bit // 2, dim] = 1.0
    return _attention(parts)


def _rules(
    rules: Mapping[int, tuple[int, npt.NDArray[np.float64]]], code: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """Write an MLP of rules, one neuron each: where NOW is this token, add these numbers from this coordinate on.

    The gate is 4 (NOW . code - 10), which is 20 for the token and -20 or less for all others; silu leaves 20 and makes
    nothing (4e-8) of the rest. The up projection is 1/20.
    """
    gate, up, down = np.zeros((NEURONS, HIDDEN)), np.zeros((NEURONS, HIDDEN)), np.zeros((HIDDEN, NEURONS))
    for neuron, (token, (first, numbers)) in enumerate(rules.items()):
        gate[neuron, NOW : NOW + SIGNS] = 4 * code[token]
        gate[neuron, ONE] = -40.0
        up[neuron, ONE] = 1 / 20
        down[first : first + len(numbers), neuron] = numbers
    return {"mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": down}


def build(directory: str | Path) -> None:
    """Write the checkpoint: a Hugging Face directory of five files, about 0.8 MB.

    Parameters
    ----------
    directory : str or Path
        Created if it is not there; files in it are replaced.

    Mutates
    -------
    The file system only.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    bos, eos, unk = SPECIAL
    for name, content in {
        "config.json": CONFIG,
        "generation_config.json": {"bos_token_id": BOS, "eos_token_id": EOS, "do_sample": False},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos, "unk_token": unk,
            "model_max_length": CONFIG["max_position_embeddings"], "clean_up_tokenization_spaces": False,
        },
    }.items():  # fmt: skip
        (directory / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    write_safetensors(directory / "model.safetensors", weights(), {"format": "pt"})


def main(arguments: Iterable[str] | None = None) -> None:
    """Write the checkpoint to a directory.

    Parameters
    ----------
    arguments : iterable of str, optional
        The directory alone; without it, what the command line says.
    """
    (directory,) = sys.argv[1:] if arguments is None else arguments
    build(directory)


if __name__ == "__main__":
    main()
