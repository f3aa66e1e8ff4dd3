"""The demonstration: the tiny model recalls facts on each backend, and the numbers are compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pagedref import backends
from pagedref.errors import BackendUnavailable
from pagedref.models.model import Model, load_model
from pagedref.models.tiny_text import Fact, Story, decode, encode, facts, story

__all__ = ["run_demo"]

PAGE_SIZE = 8


def run_demo(say: Callable[[str], object]) -> int:
    """Run the tiny model on the backends ``numpy`` and ``cuda`` and say how far they agree.

    Parameters
    ----------
    say : callable
        Takes a line of text.

    Returns
    -------
    int
        0 if all answers are right and all backends agree, else 1.

    Notes
    -----
    The twin reads a short story, for the simulator runs one thread after the other; NumPy also reads a long one.
    """
    model = load_model("tiny")
    say("A tiny model, written by hand, answers questions about a story. Everything it knows lies in pages.")
    far = facts(40, seed=1)
    right = _ask(model, story(4_000, far, seed=1), [far[0], far[17], far[39]], say, say_story=False)
    told = facts(2, seed=3)
    short = story(32, told, seed=3)
    say("")
    right &= _ask(model, short, told, say, say_story=True)
    try:
        twin = backends.get("cuda")
        twin.ensure_available()
    except BackendUnavailable as error:
        say(f"\ncuda: not here. {error}")
        return 0 if right else 1
    return 0 if _compare(model, twin, short, told[0], say) and right else 1


def _ask(model: Model, tale: Story, asked: list[Fact], say: Callable[[str], object], *, say_story: bool) -> bool:
    """Ask some questions in one batch, with frames handed out in random order; return whether all answers are right."""
    prompts = [encode(tale.prompt(fact)) for fact in asked]
    frames = sum(-(-(len(prompt) + 8) // PAGE_SIZE) for prompt in prompts)
    order = np.random.default_rng(0).permutation(frames)
    start = time.perf_counter()
    answers = model.generate(prompts, max_tokens=8, page_size=PAGE_SIZE, num_frames=frames, frame_order=order)
    seconds = time.perf_counter() - start
    memory = answers[0].memory
    say(
        f"numpy: {tale.num_tokens:,} tokens, {len(asked)} questions at once, {memory.frames_peak:,} frames of "
        f"{PAGE_SIZE} in random order, {seconds:.2f} s"
    )
    if say_story:
        say(f"  story: {tale.text}")
    right = True
    for fact, answer in zip(asked, answers, strict=True):
        distance = tale.num_tokens - tale.positions[tale.facts.index(fact)]
        good = answer.token_ids == fact.answer_ids
        right &= good
        verdict = "right" if good else f"WRONG, it was: {fact.answer}"
        say(f"  {fact.question} ({distance:,} tokens ago)  ->  {decode(answer.token_ids)}  {verdict}")
    return right


def _compare(model: Model, twin: Any, tale: Story, fact: Fact, say: Callable[[str], object]) -> bool:
    """Let both backends answer one question; return whether they say the same."""
    ids = encode(tale.prompt(fact))
    mine = model.generate([ids], max_tokens=6, page_size=PAGE_SIZE)[0]
    other = load_model("tiny", twin)
    start = time.perf_counter()
    theirs = other.generate([ids], max_tokens=6, page_size=PAGE_SIZE)[0]
    seconds = time.perf_counter() - start
    expected, found = model.logits(ids, page_size=PAGE_SIZE), other.logits(ids, page_size=PAGE_SIZE)
    apart = float(np.abs(expected - found).max())
    same = mine.token_ids == theirs.token_ids
    say(f"\ncuda ({twin.device()}): the same question, {seconds:.1f} s")
    say(f"  tokens {theirs.token_ids}, {'equal to' if same else 'NOT equal to'} those of numpy")
    say(f"  logits of {len(ids)} positions: at most {apart:.2g} apart, the largest is {np.abs(expected).max():.3g}")
    return same
