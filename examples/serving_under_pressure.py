"""Serving under pressure: eight requests in a pool that holds three, and who holds which frame in every step.

Each line is one step. A letter is a frame that one request holds, ``#`` a frame that several share, ``o`` one that is
kept for prefix hits alone, ``.`` a free one. Requests begin with the same words, so all but the first find them in the
pool; when a frame is wanted and there is none, the newest request gives its own back and is computed again later. Every
text is what the request would have got alone.
"""

from pagedref.engine import Engine, EngineConfig, FrameUse
from pagedref.models import load_model
from pagedref.models.sampling import SamplingParams
from pagedref.models.tiny_text import encode

SYSTEM = "the food of owl is figs tea . the gift of dog is lamp ring . "
QUESTIONS = ["food of owl :", "gift of dog :", "the food of owl :", "the gift of dog :"] * 2
model = load_model("tiny")
prompts = [encode(SYSTEM + question) for question in QUESTIONS]
params = SamplingParams(max_tokens=14, ignore_eos=True)

config = EngineConfig(num_frames=20, page_size=4, token_budget=16, max_running=4, watermark=0)
engine = Engine(model, config)
numbers = [engine.add(prompt, params) for prompt in prompts]
letters = dict(zip(numbers, "ABCDEFGH", strict=True))


def mark(use: FrameUse) -> str:
    """Return one character for a frame."""
    if use.is_shared:
        return "#"
    if use.holders:
        return letters[use.holders[0][0]]
    return "o" if use.cached else "."


lines: list[str] = []
engine.on_step = lambda: lines.append("".join(map(mark, engine.frames())))
texts: dict[int, str] = {}
while engine.num_unfinished:
    before = engine.metrics()
    ended = {delta.request_id: delta.completion for delta in engine.step() if delta.completion is not None}
    texts.update((number, completion.text) for number, completion in ended.items())
    now = engine.metrics()
    notes = [f"{letters[number]} ends" for number in ended]
    if now.recomputed > before.recomputed:
        notes.append(f"{now.recomputed - before.recomputed} preempted")
    print(f"{len(lines):3}  {lines[-1]}  {now.running} running, {now.queued} waiting  {', '.join(notes)}")

metrics = engine.metrics()
hits, asked = metrics.tokens_hit, metrics.tokens_looked_up
print(f"\n{hits} of {asked} prompt tokens were found, {metrics.recomputed} preemptions")

roomy = Engine(model, EngineConfig(num_frames=200))
alone = [roomy.generate([prompt], params)[0].text for prompt in prompts]
assert [texts[number] for number in numbers] == alone
assert metrics.recomputed > 0 and hits > asked / 3
assert any("#" in line for line in lines)
assert metrics.frames_free + metrics.frames_cached == config.num_frames
