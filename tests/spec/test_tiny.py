"""The tiny model answers every question right, by wide margins, and one wrong page, position or head is enough to fail.

The transformer of this file is a second derivation: dense attention in float64, without pages, written from the
description of the Llama architecture and nothing else of the package.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pagedref.models import tiny
from pagedref.models.tiny_text import EOS, VOCAB

WEIGHTS = {name: tensor.astype(np.float64) for name, tensor in tiny.weights().items()}
PAGE = 16
QUESTION = 7  # tokens

Array = np.ndarray[Any, np.dtype[np.float64]]
Tamper = Callable[[int, Array, Array], None]


class Run(NamedTuple):
    """Logits (n, 256) and, for each layer, the probabilities (heads, rows, n) of the rows that were asked for."""

    logits: Array
    probabilities: list[Array]


def rms_norm(x: Array, name: str) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + tiny.EPS) * WEIGHTS[name + ".weight"]


def rotate(x: Array, positions: Array) -> Array:
    half = x.shape[-1] // 2
    theta = tiny.CONFIG["rope_parameters"]["rope_theta"]
    angle = positions[:, None, None] * theta ** (-np.arange(half) / half)  # (n, 1, half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)


def attend(q: Array, k: Array, v: Array, group: list[int], window: int | None, rows: list[int]) -> tuple[Array, Array]:
    """Causal softmax attention, 256 queries at a time; the probabilities of `rows` are kept."""
    n, heads, _ = q.shape
    out, kept = np.zeros_like(q), np.zeros((heads, len(rows), n))
    for start in range(0, n, 256):
        stop = min(n, start + 256)
        distance = np.arange(start, stop)[:, None] - np.arange(stop)
        hidden = (distance < 0) | (distance >= (window or n))
        for head in range(heads):
            score = q[start:stop, head] @ k[:stop, group[head]].T / math.sqrt(q.shape[-1])
            score[hidden] = -np.inf
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            weight /= weight.sum(axis=1, keepdims=True)
            out[start:stop, head] = weight @ v[:stop, group[head]]
            for index, row in enumerate(rows):
                if start <= row < stop:
                    kept[head, index, :stop] = weight[row - start]
    return out, kept


def forward(
    ids: list[int],
    *,
    rows: list[int] | None = None,
    tamper: Tamper | None = None,
    key_positions: Array | None = None,
    group: list[int] | None = None,
    order: list[int] | None = None,
    window: int | None = None,
) -> Run:
    """Run the model on one sequence; the keyword arguments break it in one way each.

    `tamper` may change a layer's rotated keys and values (n, 2, 64) in place, `key_positions` are the positions at
    which keys are rotated, `group` the key head of each query head, `order` the order in which heads come out.
    """
    n = len(ids)
    positions = np.arange(n, dtype=np.float64)
    keys_at = positions if key_positions is None else key_positions
    x = WEIGHTS["model.embed_tokens.weight"][ids]  # (n, 96)
    kept: list[Array] = []
    for layer in range(2):
        name = f"model.layers.{layer}."
        w = {key.removeprefix(name).removesuffix(".weight"): value for key, value in WEIGHTS.items() if name in key}
        h = rms_norm(x, name + "input_layernorm")
        q = rotate((h @ w["self_attn.q_proj"].T).reshape(n, 4, 64), positions)
        k = rotate((h @ w["self_attn.k_proj"].T).reshape(n, 2, 64), keys_at)
        v = (h @ w["self_attn.v_proj"].T).reshape(n, 2, 64)
        if tamper:
            tamper(layer, k, v)
        out, probabilities = attend(q, k, v, group or [0, 0, 1, 1], window, rows or [])
        kept.append(probabilities)
        x = x + out[:, order or [0, 1, 2, 3]].reshape(n, 256) @ w["self_attn.o_proj"].T
        h = rms_norm(x, name + "post_attention_layernorm")
        gate = h @ w["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
    return Run(rms_norm(x, "model.norm") @ WEIGHTS["lm_head.weight"].T, kept)


def answers(text: str, asked: list[tiny.Fact], **broken: Any) -> list[list[int]]:
    """Return what the model says to each question: one sequence for each, the right answer fed token by token."""
    said = []
    for fact in asked:
        ids = tiny.encode(f"{text} {fact.question}")
        logits = forward(ids + fact.answer_ids[:-1], **broken).logits
        said.append(logits[len(ids) - 1 :].argmax(axis=1).tolist())
    return said


def right(asked: list[tiny.Fact]) -> list[list[int]]:
    return [fact.answer_ids for fact in asked]


def test_shipped_files_are_what_the_builder_writes(tmp_path: Path) -> None:
    tiny.main([str(tmp_path / "new" / "tiny")])
    written = {path.name: path.read_bytes() for path in (tmp_path / "new" / "tiny").iterdir()}
    assert written == {path.name: path.read_bytes() for path in tiny.DATA.iterdir()}
    assert sum(map(len, written.values())) < 1_000_000


def test_config_names_the_shapes() -> None:
    config = json.loads((tiny.DATA / "config.json").read_text())
    assert config["rope_parameters"]["rope_theta"] == 2.0**64
    assert WEIGHTS["model.embed_tokens.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert WEIGHTS["model.layers.1.self_attn.k_proj.weight"].shape == (2 * config["head_dim"], config["hidden_size"])
    assert json.loads((tiny.DATA / "generation_config.json").read_text())["eos_token_id"] == EOS


def test_import_is_light() -> None:
    heavy = "{'scipy', 'tokenizers', 'safetensors', 'torch', 'gguf', 'numba'}"
    program = f"import sys, pagedref.models.tiny; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"
    subprocess.run([sys.executable, "-c", program], check=True)


# --- the parts of the construction -----------------------------------------------------------------------------------


def test_two_codewords_agree_in_ten_places_at_most() -> None:
    product = tiny.codewords() @ tiny.codewords().T
    assert (np.diag(product) == 15).all()
    assert product[~np.eye(256, dtype=bool)].max() == 5


def curve(waves: dict[int, tuple[float, float]]) -> Array:
    """Return the score of every distance up to the longest context, as the sum of the cosines of some pairs."""
    distance = np.arange(tiny.CONFIG["max_position_embeddings"])
    return np.sum([height * np.cos(distance * 4.0**-pair + angle) for pair, (height, angle) in waves.items()], axis=0)


def test_the_token_before_stands_out_at_every_length() -> None:
    score = curve({pair: (tiny.STEP, -(4.0**-pair)) for pair in range(9)})
    margin = score[1] - np.delete(score, 1)
    assert margin.min() > 31.5
    assert np.exp(-margin).sum() < 1e-13


def test_the_last_word_of_a_class_beats_every_earlier_one() -> None:
    score = curve(tiny.FALL)
    later = np.maximum.accumulate(score[::-1])[::-1]  # the best from this distance on
    assert (score[: tiny.SPAN] - later[1 : tiny.SPAN + 1]).min() > 9.9
    assert score[tiny.SPAN] + 2 * tiny.FLAG - score.max() > 45  # and every word of another class, however near


def test_streams_have_the_same_length() -> None:
    assert np.allclose((WEIGHTS["model.embed_tokens.weight"] ** 2).sum(axis=1), 27, rtol=1e-6)


# --- right answers ---------------------------------------------------------------------------------------------------


def test_answers_a_dense_story() -> None:
    told = tiny.facts(100, seed=1)
    tale = tiny.story(1024, told, seed=1)
    asked = told[::17]
    assert answers(tale.text, asked) == right(asked)


@pytest.mark.parametrize("form", ["what is the {} of {} ?", "the {} of {} is", "the {} of {} :", "what {} has {} ?"])
def test_a_question_may_be_put_in_several_ways(form: str) -> None:
    told = tiny.facts(4, seed=2)
    tale = tiny.story(400, told)
    for fact in told:
        ids = tiny.encode(f"{tale.text} {form.format(fact.kind, fact.who)}")
        logits = forward(ids + fact.answer_ids[:-1]).logits
        assert logits[len(ids) - 1 :].argmax(axis=1).tolist() == fact.answer_ids


def test_what_was_not_told_is_unknown() -> None:
    told = tiny.facts(36, seed=6)
    text = tiny.story(500, told[:32]).text
    unknown = [VOCAB.index("unknown"), VOCAB.index("."), EOS]
    for fact in told[32:]:
        ids = tiny.encode(f"{text} {fact.question}")
        assert forward(ids + unknown[:-1]).logits[len(ids) - 1 :].argmax(axis=1).tolist() == unknown
    assert forward(tiny.encode(told[0].question)).logits[-1].argmax() == unknown[0]


def test_no_position_is_in_doubt() -> None:
    """Not only the answers: everywhere the best next token is well ahead, so that float32 and float64 choose alike."""
    tale = tiny.story(1500, tiny.facts(60, seed=9), seed=9)
    top = np.sort(forward(tiny.encode(" ".join([tale.text, *(fact.question for fact in tale.facts)]))).logits, axis=1)
    assert (top[:, -1] - top[:, -2]).min() > 15.9


@pytest.mark.parametrize("num_tokens", [1024, 4096, pytest.param(8192, marks=pytest.mark.slow)])
def test_margins(num_tokens: int) -> None:
    """All facts in one run: the question, its answer and the next question; nothing but the right token in sight."""
    told = tiny.facts(24, seed=num_tokens)
    tale = tiny.story(num_tokens, told, seed=num_tokens)
    ids = tiny.encode(tale.text)
    rows: list[int] = []
    asked: list[int] = []
    expected: list[int] = []
    for fact in told:
        ids += tiny.encode(fact.question, bos=False)
        asked.append(len(rows))
        rows += range(len(ids) - 1, len(ids) + len(fact.value) + 1)  # "?", the values and "."
        expected += fact.answer_ids
        ids += fact.answer_ids[:-1]
    run = forward(ids, rows=rows)
    logits = run.logits[rows]
    assert logits.argmax(axis=1).tolist() == expected
    top = np.sort(logits, axis=1)
    assert (top[:, -1] - top[:, -2]).min() > 15.9
    looked = run.probabilities[1][:, asked, np.array(tale.positions) + 5]  # (4, 24): from "?" at the first value
    assert looked.min() > 1 - 1e-12


# --- sharpness -------------------------------------------------------------------------------------------------------

STORY = tiny.story(512, tiny.facts(40, seed=8), seed=8)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("part", ["keys", "values", "both"])
def test_one_wrong_page_changes_an_answer(layer: int, part: str) -> None:
    """In every page that holds a value of a fact, put the contents of a neighbour there."""
    for index in range(1, len(STORY.facts), 6):
        fact, start = STORY.facts[index], STORY.positions[index] + 5
        page = slice(start // PAGE * PAGE, start // PAGE * PAGE + PAGE)
        other = slice(page.start - PAGE, page.stop - PAGE)

        def tamper(at: int, k: Array, v: Array, page: slice = page, other: slice = other) -> None:
            if at == layer and part != "values":
                k[page] = k[other]
            if at == layer and part != "keys":
                v[page] = v[other]

        assert answers(STORY.text, [fact], tamper=tamper) != right([fact])


def test_one_stale_token_changes_an_answer() -> None:
    """The value's slot still holds what the slot held before."""
    fact, position = STORY.facts[11], STORY.positions[11]
    for layer in (0, 1):

        def tamper(at: int, k: Array, v: Array, layer: int = layer) -> None:
            if at == layer:
                k[position + 5], v[position + 5] = k[7], v[7]

        assert answers(STORY.text, [fact], tamper=tamper) != right([fact])


def test_one_wrong_position_changes_an_answer() -> None:
    fact, position = STORY.facts[20], STORY.positions[20]
    n = len(tiny.encode(STORY.prompt(fact))) + len(fact.answer_ids) - 1
    for shifted in (slice(None), slice(position + 4, position + 5), slice(position // PAGE * PAGE, None)):
        positions = np.arange(n, dtype=np.float64)
        positions[shifted] += 1
        assert answers(STORY.text, [fact], key_positions=positions) != right([fact])


@pytest.mark.parametrize("group", [[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 1], [0, 1, 1, 1]])
def test_a_wrong_key_head_changes_an_answer(group: list[int]) -> None:
    fact = STORY.facts[3]
    assert answers(STORY.text, [fact], group=group) != right([fact])


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", range(4))
def test_two_swapped_heads_change_an_answer(first: int, second: int) -> None:
    order = [0, 1, 2, 3]
    order[first], order[second] = order[second], order[first]
    asked = list(STORY.facts[5:7])
    assert (answers(STORY.text, asked, order=order) == right(asked)) is (first == second)


def test_a_window_forgets_exactly_what_lies_outside() -> None:
    for index in (10, 30):
        fact, position = STORY.facts[index], STORY.positions[index]
        reach = STORY.num_tokens + QUESTION - (position + 5)  # from "?" back to the first value, both counted
        said = [answers(STORY.text, [fact], window=window)[0][0] for window in (reach - 1, reach)]
        assert said[0] != fact.answer_ids[0] == said[1]
