"""From logits to tokens and text: what a step means for each request in it. A fault stays with the request it is in."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pagedref.engine._outputs import Completion, Delta, Sample, Usage
from pagedref.engine._request import Branch, Request
from pagedref.errors import ContractError
from pagedref.models.beam import rank_samples
from pagedref.models.logprobs import TokenLogprob, token_logprob
from pagedref.models.sampling import choose

if TYPE_CHECKING:
    from pagedref.models.tokenizer import Tokenizer

__all__ = ["choose_token", "completion", "final_deltas", "take_token"]

Float32 = npt.NDArray[np.float32]


def choose_token(request: Request, branch: Branch, outputs: list[int], logits: Float32, best: int) -> int:
    """Choose the next token of a branch.

    Parameters
    ----------
    request, branch
        Whose.
    outputs : list of int
        Its new tokens so far.
    logits : array (vocab,) of float32
        Of its last token; not modified.
    best : int
        Where the largest is.

    Returns
    -------
    int
    """
    params = request.params
    if request.processor is not None:
        given = request.processor(tuple(request.prompt), tuple(outputs), logits.copy())
        with np.errstate(over="ignore"):  # becomes infinite, and is refused as such
            changed = np.asarray(given, np.float32)
        if changed.shape != logits.shape:
            got, need = changed.shape, logits.shape
            raise ContractError(f"add: logits_processor returns the wrong shape, got {got}, need {need}")
        return choose(changed, params, request.prompt, outputs, sample=branch.sample)
    if params.is_plain and np.isfinite(logits[best]):
        return best
    return choose(logits, params, request.prompt, outputs, sample=branch.sample)


def take_token(
    request: Request, branch: Branch, token: int, logits: Float32, eos_token_ids: Collection[int]
) -> None:
    """Append a token to a branch, and what is new of it to the news of the request.

    Parameters
    ----------
    request, branch
        Whose.
    token : int
        The token.
    logits : array (vocab,) of float32
        It was chosen from.
    eos_token_ids : collection of int
        Tokens that end a text of this model.
    """
    params = request.params
    logprobs: tuple[TokenLogprob, ...] = ()
    if params.logprobs is not None or params.num_samples > params.n:
        found = token_logprob(logits, token, params.logprobs or 0)
        branch.logprob += found.logprob
        if params.logprobs is not None:
            branch.logprobs.append(found)
            logprobs = (found,)
    branch.outputs.append(token)
    reason = params.finish_reason(token, len(branch.outputs), eos_token_ids, request.limit)
    text = ""
    if branch.stream is not None:
        text = branch.stream.push(token)
        if branch.stream.stopped is not None:
            reason = "stop"
        if reason is not None:
            text += branch.stream.finish()
        branch.text.append(text)
    branch.reason = reason
    request.news.append(Delta(request.number, branch.sample, (token,), text, logprobs, reason))


def final_deltas(whole: Completion) -> list[Delta]:
    """Return the reports with which a request ends that was silent until then.

    Parameters
    ----------
    whole : Completion
        What came of it.

    Returns
    -------
    list of Delta
        One for each text.
    """
    return [
        Delta(whole.request_id, at, sample.token_ids, sample.text, sample.logprobs, sample.finish_reason)
        for at, sample in enumerate(whole.samples)
    ]


def completion(request: Request, tokenizer: Tokenizer | None, ended: float) -> Completion:
    """Return everything that came of a request.

    Parameters
    ----------
    request : Request
        One that has ended.
    tokenizer : Tokenizer, optional
        For the text of beams.
    ended : float
        When, seconds of the engine's clock.

    Returns
    -------
    Completion
    """
    params = request.params
    if request.search is not None and request.search.done:
        samples = [
            Sample(
                "" if tokenizer is None else tokenizer.decode(list(found.token_ids)),
                found.token_ids, found.finish_reason, (), found.score,
            )
            for found in request.search.best(params.n)
        ]  # fmt: skip
    else:
        chosen = request.branches
        if params.num_samples > params.n and all(branch.reason in ("stop", "length") for branch in chosen):
            sums, lengths = zip(*((branch.logprob, len(branch.outputs)) for branch in chosen), strict=True)
            chosen = [chosen[at] for at in rank_samples(sums, lengths, params.n)]
        samples = [
            Sample(
                _text_of(request, branch, tokenizer),
                tuple(branch.outputs), branch.reason or "error", tuple(branch.logprobs),
            )
            for branch in chosen[: params.n]
        ]  # fmt: skip
    usage = Usage(
        prompt_tokens=len(request.prompt),
        output_tokens=sum(len(sample.token_ids) for sample in samples),
        cached_tokens=request.cached_tokens,
        preemptions=request.ticket.preemptions,
        queued=request.admitted_at - request.added,
        first_token=request.first_token_at - request.added,
        total=ended - request.added,
    )
    return Completion(
        request.number, tuple(request.prompt), tuple(samples), tuple(request.prompt_logprobs), params.seed,
        request.error, usage,
    )  # fmt: skip


def _text_of(request: Request, branch: Branch, tokenizer: Tokenizer | None) -> str:
    """Return the text of a sample, or of a beam whose search was cut off."""
    if branch.stream is not None:
        return "".join(branch.text)
    return "" if tokenizer is None or request.error is not None else tokenizer.decode(branch.outputs)
