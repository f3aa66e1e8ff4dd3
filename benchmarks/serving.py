"""Serving: many requests of mixed lengths, ours against ``generate`` of transformers in static batches, and its
continuous batching; and the time to the first token behind a prompt that is shared."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.measure import Row
from benchmarks.models import Transformers
from pagedref.engine import Engine, EngineConfig
from pagedref.models.checkpoint import load_checkpoint
from pagedref.models.hub import resolve_model
from pagedref.models.model import Model
from pagedref.models.sampling import SamplingParams

REQUESTS, RUNNING = 64, 8
PROMPT, NEW = (16, 512), (16, 256)
SYSTEM, USER = 512, 32
PAGE_SIZE = 16
AT_LEAST, AT_MOST = 2.0, 0.15  # tokens/s against static batches; first token warm against cold


@dataclass(frozen=True)
class Job:
    """One request: a prompt, and how many tokens are wanted, whatever they are."""

    prompt: list[int]
    new: int


def make_jobs(count: int, vocab_size: int, seed: int = 0) -> list[Job]:
    """Return requests of random tokens, lengths spread evenly over their ranges."""
    rng = np.random.default_rng(seed)
    return [
        Job(rng.integers(100, vocab_size, rng.integers(PROMPT[0], PROMPT[1] + 1)).tolist(), int(new))
        for new in rng.integers(NEW[0], NEW[1] + 1, count)
    ]


def serve(model: Model, jobs: list[Job]) -> list[list[int]]:
    """Our engine, RUNNING sequences at once, with frames for these at their longest and no more."""
    frames = RUNNING * -(-(PROMPT[1] + NEW[1]) // PAGE_SIZE)
    engine = Engine(model, EngineConfig(num_frames=frames, page_size=PAGE_SIZE, max_running=RUNNING, watermark=0))
    params = [SamplingParams(max_tokens=job.new, ignore_eos=True) for job in jobs]
    done = engine.generate([job.prompt for job in jobs], params)
    return [list(one.token_ids) for one in done]


def generate_in_batches(theirs: Transformers, jobs: list[Job]) -> list[list[int]]:
    """``generate`` with RUNNING prompts at a time, in order, padded on the left; each batch as long as its longest."""
    torch, result = theirs.torch, []
    for first in range(0, len(jobs), RUNNING):
        batch = jobs[first : first + RUNNING]
        width, new = max(len(job.prompt) for job in batch), max(job.new for job in batch)
        ids = torch.zeros((len(batch), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, job in enumerate(batch):
            ids[row, width - len(job.prompt) :] = torch.tensor(job.prompt)
            mask[row, width - len(job.prompt) :] = 1
        with torch.inference_mode():
            out = theirs.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        result += [row[width : width + job.new].tolist() for row, job in zip(out, batch, strict=True)]
    return result


def generate_continuously(theirs: Transformers, jobs: list[Job]) -> list[list[int]]:
    """The continuous batching of transformers, with as many sequences, tokens of a step and cached tokens as ours."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    pages = RUNNING * -(-(PROMPT[1] + NEW[1]) // 256)
    limits = ContinuousBatchingConfig(
        page_size=256, num_blocks=pages, max_batch_tokens=512, max_requests_per_batch=RUNNING, use_cuda_graph=False
    )
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=NEW[1])
    found: dict[str, list[int]] = {}
    with theirs.model.continuous_batching_context_manager(
        generation_config=greedy, continuous_batching_config=limits, warmup=False
    ) as manager:
        names = [manager.add_request(job.prompt, max_new_tokens=job.new) for job in jobs]
        while len(found) < len(jobs):
            answer = manager.get_result(timeout=1)
            if answer is not None and answer.is_finished():
                if answer.error is not None:
                    raise RuntimeError(answer.error)
                found[answer.request_id] = answer.generated_tokens
            elif answer is None and not manager.is_running():
                raise RuntimeError("it stopped")
    theirs.model.set_attn_implementation("sdpa")
    return [found[name] for name in names]


def first_tokens(model: Model, rounds: int, vocab_size: int) -> Row:
    """Time to the first token of a prompt that begins with SYSTEM tokens: seen before, and never seen."""
    rng = np.random.default_rng(1)
    row = Row(f"first token behind a shared prompt of {SYSTEM} tokens, {USER} own", "ms", 1)
    row.targets = {"nothing shared": 1 / AT_MOST}
    row.seconds = {"ours": [], "nothing shared": []}
    pages = 4 * (-(-(SYSTEM + USER) // PAGE_SIZE))
    for number in range(rounds + 1):  # the first round warms up
        engine = Engine(model, EngineConfig(num_frames=pages, page_size=PAGE_SIZE, watermark=0))
        system = rng.integers(100, vocab_size, SYSTEM).tolist()
        for side in ("nothing shared", "ours"):
            prompt = system + rng.integers(100, vocab_size, USER).tolist()
            start = time.perf_counter()
            done = engine.generate([prompt], SamplingParams(max_tokens=1, ignore_eos=True))[0]
            if number:
                row.seconds[side].append(time.perf_counter() - start)
            assert done.usage.cached_tokens == (SYSTEM if side == "ours" else 0)
    return row


def measure(rounds: int, name: str = "smollm2", *, requests: int = REQUESTS) -> list[Row]:
    """Serve the same requests on all sides in turn; print how many answers are equal."""
    checkpoint = load_checkpoint(resolve_model(name))
    theirs = Transformers(checkpoint.config, dict(checkpoint.weights))
    model = Model(checkpoint.config, dict(checkpoint.weights))
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="transformers")
    vocab_size = checkpoint.config.vocab_size
    jobs = make_jobs(requests, vocab_size)
    sides: dict[str, Any] = {
        "ours": lambda batch: serve(model, batch),
        f"transformers, static batches of {RUNNING}": lambda batch: generate_in_batches(theirs, batch),
        "transformers, continuous batching": lambda batch: generate_continuously(theirs, batch),
    }
    static, continuous = list(sides)[1:]
    title = f"serving, {requests} requests of {PROMPT[0]} to {PROMPT[1]} + {NEW[0]} to {NEW[1]}, {RUNNING} at once"
    row = Row(title, "tokens/s", sum(job.new for job in jobs), targets={static: AT_LEAST})
    answers: dict[str, list[list[int]]] = {}
    warm = [Job(job.prompt, 4) for job in jobs[:RUNNING]]
    for side, run in list(sides.items()):
        try:
            run(warm)
        except Exception as error:  # their continuous batching does not run everywhere
            if side != continuous:
                raise
            print(f"  {side} does not run here: {type(error).__name__}: {error}", flush=True)
            del sides[side]
    for number in range(rounds):
        names = list(sides)[number % len(sides) :] + list(sides)[: number % len(sides)]
        for side in names:
            start = time.perf_counter()
            answers[side] = sides[side](jobs)
            row.seconds.setdefault(side, []).append(time.perf_counter() - start)
            print(f"  {side}: {row.amount / row.seconds[side][-1]:.1f} tokens/s", flush=True)
    for side in answers:
        pairs = list(zip(answers["ours"], answers[side], strict=True))
        assert all(len(mine) == len(other) == job.new for (mine, other), job in zip(pairs, jobs, strict=True)), side
        equal = sum(mine == other for mine, other in pairs)
        print(f"  {side}: {equal} of {len(jobs)} answers equal ours, token by token", flush=True)
    return [row, first_tokens(model, 2 * rounds, vocab_size)]
