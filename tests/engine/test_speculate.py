"""Speculation: the same text as greedy, in fewer steps, with every frame given back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.models.draft import Draft, Speculation, accept, propose
from pagedref.models.generate import BatchRun, Request, Token, frames_needed
from pagedref.models.model import Model, load_model
from pagedref.models.sampling import SamplingParams, choose
from pagedref.models.speculate import SpeculativeRun
from tests.engine.small_models import make_config, make_weights

# ---- drafts

token_lists = st.lists(st.integers(0, 3), min_size=1, max_size=40)
speculations = st.builds(Speculation, tokens=st.integers(1, 9), ngram=st.integers(1, 4), branches=st.integers(1, 4))


def plain_proposals(ids: list[int], speculation: Speculation, length: int) -> list[list[int]]:
    """Places of the last token, best first, and what followed; beyond the end of the text what was proposed itself."""
    end = len(ids) - 1
    places = []
    for at in range(end):
        agreed = 0
        while agreed < min(speculation.ngram, at + 1) and ids[at - agreed] == ids[end - agreed]:
            agreed += 1
        if agreed:
            places.append((-agreed, -at))
    proposals: list[list[int]] = []
    for _, negative in sorted(places):
        text = list(ids)
        for _ in range(length):
            text.append(text[-negative + 1 + len(text) - len(ids)])
        if text[len(ids) :] not in proposals:
            proposals.append(text[len(ids) :])
    return proposals[: speculation.branches]


def paths(draft: Draft) -> list[list[int]]:
    """Every branch from the text to its last guess, in order of the last guesses."""
    result = []
    for leaf in range(len(draft)):
        if leaf in draft.parents:
            continue
        path, node = [], leaf
        while node >= 0:
            path.append(draft.tokens[node])
            node = draft.parents[node]
        result.append(path[::-1])
    return result


@given(token_lists, speculations, st.integers(0, 12))
def test_drafts_are_what_followed_before(ids: list[int], speculation: Speculation, limit: int) -> None:
    draft = propose(ids, speculation, limit)
    assert len(draft) <= min(speculation.tokens, limit)
    length = min(speculation.tokens, limit) // speculation.branches or min(limit, 1)
    expected = plain_proposals(ids, speculation, length) if length else []
    full = len(draft) == min(speculation.tokens, limit)  # then the last branches may be cut
    assert len(draft) == 0 or paths(draft) == expected or full
    assert bool(len(draft)) == bool(expected)
    if len(draft):
        assert list(draft.tokens[:length]) == expected[0][: len(draft)]
    assert all(parent < at for at, parent in enumerate(draft.parents))


@given(token_lists, speculations)
def test_mask_shows_the_text_and_the_own_branch(ids: list[int], speculation: Speculation) -> None:
    draft = propose(ids, speculation, 12)
    known, kv_len = min(2, len(ids)), len(ids) + len(draft)
    mask = draft.mask(known, kv_len)
    assert mask.shape == (known + len(draft), kv_len)
    for row in range(known):
        assert mask[row].tolist() == [key <= len(ids) - known + row for key in range(kv_len)]
    for node in range(len(draft)):
        seen, at = set(range(len(ids))), node
        while at >= 0:
            seen.add(len(ids) + at)
            at = draft.parents[at]
        assert set(np.flatnonzero(mask[known + node]).tolist()) == seen
        assert draft.depths[node] == len(seen) - len(ids) - 1
    if draft.is_chain:
        assert (mask == np.tril(np.ones((known + len(draft), kv_len), bool), len(ids) - known)).all()


@given(token_lists, speculations, st.lists(st.integers(0, 3), min_size=20, max_size=20))
def test_what_is_accepted_is_what_comes(ids: list[int], speculation: Speculation, future: list[int]) -> None:
    draft = propose(ids, speculation, 12)
    accepted = accept(draft, lambda row, new: future[len(new)])
    new = list(accepted.tokens)
    assert new == future[: len(new)]
    right = max((sum(np.cumprod([a == b for a, b in zip(p, future, strict=False)])) for p in paths(draft)), default=0)
    assert len(new) == 1 + right  # the longest agreement with any branch, and one more
    assert 0 <= accepted.in_place <= right
    first_branch = [draft.tokens[0]] if len(draft) else []
    for at in range(1, len(draft)):
        if draft.parents[at] != at - 1:
            break
        first_branch.append(draft.tokens[at])
    assert accepted.in_place == sum(np.cumprod([a == b for a, b in zip(first_branch, future, strict=False)]))


@pytest.mark.parametrize("field", ["tokens", "ngram", "branches"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_numbers_below_one_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ContractError, match=rf"^Speculation: {field} "):
        Speculation(**{field: value})


# ---- the run


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    """The tiny model; random weights over few tokens; and weights by which a token nearly fixes the next: it cycles."""
    few, many = make_config(vocab_size=12), make_config(max_model_len=512)
    weights = make_weights(many, seed=4)
    for name, weight in weights.items():
        if name.endswith((".o", ".down")):
            weight *= np.float32(0.01)
    return {
        "tiny": load_model("tiny"),
        "random": Model(few, make_weights(few, seed=4)),
        "cycles": Model(many, weights),
    }


def run(model: Model, requests: list[Request], **options: Any) -> tuple[list[list[Token]], BatchRun, int]:
    """All tokens of a run over a poisoned pool with frames in random order, and its steps."""
    page_size, speculation = options.pop("page_size"), options.pop("speculation")
    num_frames = options.pop("num_frames", None) or sum(frames_needed(request, page_size) for request in requests)
    order = np.random.default_rng(2).permutation(num_frames)
    cache = model.cache(num_frames, page_size=page_size, frame_order=order, poison=True)
    options |= {"eos_token_ids": model.config.eos_token_ids, "max_model_len": model.config.max_model_len}
    if speculation is not None:
        options["speculation"] = speculation
    kind = BatchRun if speculation is None else SpeculativeRun
    batch = kind(model.transformer, cache, requests, **options)
    forward, steps = model.transformer.forward, []
    model.transformer.forward = lambda *given: (steps.append(1), forward(*given))[1]  # type: ignore[method-assign]
    try:
        new: list[list[Token]] = [[] for _ in requests]
        for token in batch.tokens():
            new[token.index].append(token)
            cache.audit()
    finally:
        del model.transformer.forward
    assert cache.manager.num_free == num_frames
    return new, batch, len(steps)


@st.composite
def repetitive_requests(draw: st.DrawFn, vocab: int) -> list[Request]:
    """Prompts that repeat a few tokens."""
    requests = []
    for _ in range(draw(st.integers(1, 3))):
        base = draw(st.lists(st.integers(2, vocab - 1), min_size=1, max_size=4))
        length = draw(st.integers(1, 20))
        requests.append(Request(tuple((base * 20)[:length]), draw(st.integers(1, 30))))
    return requests


@settings(max_examples=25)
@pytest.mark.parametrize("name", ["tiny", "random", "cycles"])
@given(data=st.data())
def test_text_is_that_of_greedy(models: dict[str, Model], name: str, data: st.DataObject) -> None:
    model = models[name]
    requests = data.draw(repetitive_requests(model.config.vocab_size))
    options = {
        "page_size": data.draw(st.sampled_from([1, 3, 16])),
        "tokens_per_step": data.draw(st.sampled_from([1, 7, 512])),
    }
    expected, _, plain_steps = run(model, requests, speculation=None, **options)
    got, batch, steps = run(model, requests, speculation=data.draw(speculations), **options)
    assert got == expected
    report = batch.speculation
    assert report is not None
    assert report.steps == steps
    assert report.accepted <= report.drafted
    assert steps <= plain_steps or options["tokens_per_step"] < 512


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("kv_format", [None, "int8"])
def test_fewer_steps_and_a_report(models: dict[str, Model], branches: int, kv_format: str | None) -> None:
    model, prompts = models["cycles"], [[5, 6, 7] * 5, [9, 8] * 7]
    options: dict[str, Any] = {"max_tokens": 200, "page_size": 4, "kv_format": kv_format, "ignore_eos": True}
    plain = model.generate(prompts, **options)
    fast = model.generate(prompts, speculate=Speculation(tokens=9, branches=branches), **options)
    assert [one.token_ids for one in fast] == [one.token_ids for one in plain]
    assert plain[0].speculation is None
    report = fast[0].speculation
    assert report is not None
    assert report.steps < 100
    assert 2 * (200 - report.steps) <= report.accepted <= report.drafted  # tokens of a text: one a step, and these


def test_a_later_branch_is_read_again_and_counts(models: dict[str, Model]) -> None:
    """Trees find what the first guess alone does not, and the text is the same."""
    model, steps = models["random"], {1: 0, 4: 0}
    for seed in range(8):
        prompt = tuple(np.random.default_rng(seed).integers(2, 12, 12).tolist())
        requests = [Request(prompt, 40)]
        expected, _, _ = run(model, requests, page_size=4, speculation=None)
        for branches in steps:
            speculation = Speculation(tokens=2 * branches, branches=branches, ngram=1)  # two guesses on each branch
            got, batch, _ = run(model, requests, page_size=4, speculation=speculation)
            assert got == expected
            assert batch.speculation is not None
            steps[branches] += batch.speculation.steps
    assert steps[4] < steps[1] < 8 * 40


def test_a_draft_takes_no_frame_of_others(models: dict[str, Model]) -> None:
    """The pool holds one request at a time, exactly."""
    model = models["random"]
    requests = [Request((5, 6, 7) * 4, 9), Request((4, 4, 4), 13), Request((8, 9) * 5, 11)]
    largest = max(frames_needed(request, 4) for request in requests)
    expected, _, _ = run(model, requests, page_size=4, speculation=None, num_frames=largest)
    got, _, _ = run(model, requests, page_size=4, speculation=Speculation(), num_frames=largest)
    assert [[t.token_id for t in one] for one in got] == [[t.token_id for t in one] for one in expected]


def test_sampled_tokens_are_the_same_with_drafts() -> None:
    """Noise belongs to the index of a token, so a sampled text can be checked like a greedy one."""
    logits = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
    params = SamplingParams(temperature=1.0, seed=11, top_p=0.9, frequency_penalty=0.3)
    plain: list[int] = []
    while len(plain) < 30:
        plain.append(choose(logits[len(plain)], params, [1], plain))
    output: list[int] = []
    steps = 0
    while len(output) < 30:
        guesses = plain[len(output) : len(output) + 4]
        if steps % 3 == 2:
            guesses[0] += 1  # wrong
        draft = Draft(tuple(guesses), tuple(range(-1, len(guesses) - 1)))

        def at(row: int, new: list[int]) -> int:
            return choose(logits[len(output) + row], params, [1], [*output, *new])  # noqa: B023

        output += accept(draft, at).tokens
        steps += 1
    assert output[:30] == plain
    assert steps < 15


def test_stream_takes_it_too(models: dict[str, Model]) -> None:
    model, prompt = models["cycles"], [[5, 6, 7] * 4]
    plain = model.generate(prompt, 40, ignore_eos=True)[0].token_ids
    assert [token.token_id for token in model.stream(prompt, 40, ignore_eos=True, speculate=Speculation())] == plain
    with pytest.raises(TypeError, match="unexpected keyword argument 'speculation'"):
        model.stream(prompt, 40, speculation=Speculation())  # type: ignore[call-arg]


def test_what_is_no_speculation_is_refused(models: dict[str, Model]) -> None:
    with pytest.raises(ContractError, match=r"^generate: speculate is no Speculation, got 3, need "):
        models["tiny"].generate([[2, 3]], 2, speculate=3)  # type: ignore[arg-type]


def test_trees_are_refused_where_attention_counts_slots() -> None:
    """Under a tree mask, windows are measured between slots (S3); a chain has no other branch in between."""
    config = make_config(window=5)
    model = Model(config, make_weights(config, seed=4))
    with pytest.raises(ContractError, match=r"^generate: speculate asks for a tree, got 2, need branches=1"):
        model.generate([[2, 3]], 2, speculate=Speculation(branches=2))
    prompt = [5, 6, 7] * 4
    plain = model.generate([prompt], 20, page_size=4)[0]
    assert model.generate([prompt], 20, page_size=4, speculate=Speculation())[0].token_ids == plain.token_ids
