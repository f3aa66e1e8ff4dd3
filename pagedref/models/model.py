"""Model: a transformer, its tokenizer and a backend; what a user holds.

Greedy text does not depend on the page size, on the other prompts of a batch, or on which frames are handed out,
wherever the margin between the two best tokens exceeds the rounding.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from pagedref import backends
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.kv_format import KVFormat
from pagedref.models.checkpoint import load_checkpoint
from pagedref.models.config import ModelConfig
from pagedref.models.draft import Speculation
from pagedref.models.fields import count, refuse
from pagedref.models.generate import TOKENS_PER_STEP, BatchRun, Generation, Request, Token, frames_needed
from pagedref.models.hub import resolve_model
from pagedref.models.prompts import Prompts, RunOptions, checked_ids, make_requests, run_options
from pagedref.models.speculate import SpeculativeRun
from pagedref.models.transformer import Transformer

if TYPE_CHECKING:
    from pagedref.models.tokenizer import Tokenizer

__all__ = ["Model", "load_model"]

Listener = Callable[[Token], object]


def load_model(
    path_or_name: str | os.PathLike[str],
    backend: Any = "numpy",
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Load a model by name or from disk.

    Parameters
    ----------
    path_or_name : str or Path
        ``"tiny"`` (in the package), ``"smollm2"`` (SmolLM2-135M-Instruct; fetched once, 93 MB), an HF directory, or a
        GGUF file.
    backend : str or object
        Who attends: ``"numpy"``, ``"cuda"``, the name of another backend, or the backend itself.
    progress : callable, optional
        Called with (weights read, weights in all).

    Returns
    -------
    Model

    Raises
    ------
    ContractError
        One line: what is missing, damaged or not supported.
    BackendUnavailable
        The backend cannot run here.

    Examples
    --------
    >>> model = load_model("tiny")
    >>> model.config.num_layers, model.logits([0, 1, 2]).shape
    (2, (3, 256))
    """
    operations = backends.get(backend) if isinstance(backend, str) else backend  # before anything is read
    if callable(check := getattr(operations, "ensure_available", None)):
        check()
    checkpoint = load_checkpoint(resolve_model(path_or_name), progress=progress)
    return Model(
        checkpoint.config,
        checkpoint.weights,
        checkpoint.tokenizer,
        backend=operations,
        tokenizer_note=checkpoint.tokenizer_note,
    )


class Model:
    """Continue texts with a small model over paged memory.

    Parameters
    ----------
    config : ModelConfig
        Geometry and stop tokens.
    weights : dict of str to array of float32
        By the names of :mod:`pagedref.models.weights`; empty afterwards, so that the model exists once in memory.
    tokenizer : Tokenizer, optional
        Without it, prompts are token ids.
    backend : str or object
        Who attends.
    tokenizer_note : str
        Why there is no tokenizer.

    Notes
    -----
    Use it from one thread.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, npt.NDArray[np.float32]],
        tokenizer: Tokenizer | None = None,
        *,
        backend: Any = "numpy",
        tokenizer_note: str = "",
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.backend = backends.get(backend) if isinstance(backend, str) else backend
        self.transformer: Transformer = getattr(self.backend, "transformer", Transformer)(config, weights)
        self._note = tokenizer_note or "the model has no tokenizer"

    def cache(
        self,
        num_frames: int,
        *,
        page_size: int = 16,
        frame_order: Any = None,
        kv_format: KVFormat | str | None = None,
        poison: bool = False,
    ) -> PagedKVCache:
        """Return an empty cache for this model.

        Parameters
        ----------
        num_frames : int
            Size of the pool.
        page_size : int
            Positions in a page, >= 1.
        frame_order : array (num_frames,) of int, optional
            Order in which fresh frames are handed out.
        kv_format : KVFormat or str, optional
            How keys and values are stored (S17); a name is one of :data:`pagedref.kv_format.NAMES`.
        poison : bool
            Fill frames with NaN before use and after.

        Returns
        -------
        PagedKVCache

        Raises
        ------
        ContractError
            There is no such format, the head size does not fit it, or the backend does not have it.
        """
        spec = self.transformer.cache_spec(page_size, kv_format)
        if isinstance(num_frames, int) and spec.bytes_per_frame * num_frames > sys.maxsize:
            refuse("cache", "num_frames", "makes a pool too large", num_frames, f"{sys.maxsize} bytes in all at most")
        make = getattr(self.transformer, "make_cache", partial(PagedKVCache, backend=self.backend))
        cache: PagedKVCache = make(spec, num_frames, frame_order=frame_order, poison=poison)
        if kv_format is not None:  # a backend that lacks the format says so now, asked to write and read no rows
            step, none = cache.begin([], []), np.empty((0, spec.num_kv_heads, spec.head_dim), np.float32)
            cache.append(step, none, none)
            cache.attend(step, none)
        return cache

    def logits(
        self,
        token_ids: npt.ArrayLike,
        *,
        page_size: int = 16,
        kv_format: KVFormat | str | None = None,
        tokens_per_step: int = TOKENS_PER_STEP,
    ) -> npt.NDArray[np.float32]:
        """Return what the model expects after each token of a text.

        Parameters
        ----------
        token_ids : array (n,) of int
            The text, 0 tokens or more, at most ``config.max_model_len``.
        page_size : int
            Positions in a page of the cache that is used meanwhile.
        kv_format : KVFormat or str, optional
            How that cache stores keys and values, as in :meth:`cache`. Every token attends to what was stored, its own
            key and value too.
        tokens_per_step : int
            The text is read in pieces of this many tokens.

        Returns
        -------
        array (n, vocab_size) of float32
            Row i: scores of the token after token i.

        Raises
        ------
        ContractError
            A token is out of range, or there are too many.
        """
        ids = checked_ids("logits", "token_ids", token_ids, self.config.vocab_size, self.config.max_model_len)
        tokens_per_step = count("logits", "tokens_per_step", tokens_per_step)
        self.transformer.cache_spec(page_size, kv_format)  # refuses a page size that is none, or a format
        result = np.empty((len(ids), self.config.vocab_size), np.float32)
        if not ids:
            return result
        num_frames = frames_needed(Request(tuple(ids), 1), page_size)
        cache = self.cache(num_frames, page_size=page_size, kv_format=kv_format)
        sequence = cache.add()
        for start in range(0, len(ids), tokens_per_step):
            piece = ids[start : start + tokens_per_step]
            step = cache.begin([sequence], [len(piece)])
            result[start : start + len(piece)] = self.transformer.forward(cache, step, piece)
            cache.commit(step)
        return result

    def generate(
        self,
        prompts: Prompts,
        max_tokens: int = 64,
        *,
        page_size: int = 16,
        num_frames: int | None = None,
        frame_order: Any = None,
        kv_format: KVFormat | str | None = None,
        chat: bool | None = None,
        ignore_eos: bool = False,
        on_token: Listener | None = None,
        tokens_per_step: int = TOKENS_PER_STEP,
        speculate: Speculation | None = None,
    ) -> list[Generation]:
        """Continue prompts greedily, all of them in one ragged batch.

        Parameters
        ----------
        prompts : str, list of str, list of int, or list of lists of int
            One text or several, or their token ids.
        max_tokens : int
            New tokens of each prompt at most, >= 1; fewer where the model's maximum length is reached. A prompt of
            that length may still have one (P65).
        page_size : int
            Positions in a page, >= 1.
        num_frames : int, optional
            Size of the pool; by default what the run can need at most. With fewer frames, prompts wait for each other.
        frame_order : array (num_frames,) of int, optional
            Order in which fresh frames are handed out.
        kv_format : KVFormat or str, optional
            How keys and values are stored, as in :meth:`cache`; by default as float32.
        chat : bool, optional
            Whether a text is a user's message, to be wrapped in the model's chat template; by default if it has one.
        ignore_eos : bool
            Go on after a token that ends the text.
        on_token : callable, optional
            Called with each :class:`Token` as it comes.
        tokens_per_step : int
            Tokens of a step while prompts are read.
        speculate : Speculation, optional
            Guess ahead and check: the same text in fewer steps (:mod:`pagedref.models.speculate`).

        Returns
        -------
        list of Generation
            One for each prompt, also where there is one only.

        Raises
        ------
        ContractError
            A prompt is empty, too long, or holds what is no token; before anything runs.
        OutOfFrames
            A prompt could never fit the pool (S34); before anything runs.

        Notes
        -----
        All frames are free again at the end, also after an exception (S25).

        Examples
        --------
        >>> model = load_model("tiny")
        >>> answer = model.generate([[0, 9, 9, 9]], max_tokens=2, page_size=1)[0]
        >>> len(answer.token_ids), answer.memory.frames_held
        (2, 5)
        """
        run = self._run(
            prompts, max_tokens, page_size=page_size, num_frames=num_frames, frame_order=frame_order, chat=chat,
            kv_format=kv_format, ignore_eos=ignore_eos, tokens_per_step=tokens_per_step, speculate=speculate,
        )  # fmt: skip
        new: list[list[int]] = [[] for _ in run.requests]
        reasons = [""] * len(new)
        with closing(run.texts(self.tokenizer)) as tokens:
            for token in tokens:
                new[token.index].append(token.token_id)
                reasons[token.index] = token.finish_reason or ""
                if on_token is not None:
                    on_token(token)
        return [
            Generation(self.decode(ids), ids, list(request.prompt_ids), reason, run.report, run.speculation)
            for ids, request, reason in zip(new, run.requests, reasons, strict=True)
        ]

    def stream(
        self, prompts: Prompts, max_tokens: int = 64, **options: Unpack[RunOptions]
    ) -> Generator[Token, None, None]:
        """Continue prompts greedily and yield each token as it comes.

        Parameters
        ----------
        prompts, max_tokens
            As in :meth:`generate`; checked now, before the first token is asked for.
        **options
            All others but `on_token`, as there.

        Returns
        -------
        generator of Token
            Their texts joined are the text of the generation. Closing it frees all frames.
        """
        return self._run(prompts, max_tokens, **options).texts(self.tokenizer)

    def encode(self, prompt: str, *, chat: bool | None = None) -> list[int]:
        """Return the token ids of a text as :meth:`generate` uses them; `chat` as there."""
        if self.tokenizer is None:
            raise ContractError(f"generate: prompts need a tokenizer, got a text, need token ids: {self._note}")
        if self.tokenizer.has_chat_template if chat is None else chat:
            return self.tokenizer.encode_chat([{"role": "user", "content": prompt}])
        return self.tokenizer.encode(prompt)

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of tokens, without control tokens; empty without a tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.decode(token_ids)

    def _run(self, prompts: Prompts, max_tokens: int, **options: Unpack[RunOptions]) -> BatchRun:
        """Check everything and make the cache; nothing is computed yet."""
        config, chosen = self.config, run_options(**options)
        encode, page_size = partial(self.encode, chat=chosen["chat"]), chosen["page_size"]
        requests = make_requests(prompts, max_tokens, encode, config.vocab_size, config.max_model_len)
        if (num_frames := chosen["num_frames"]) is None:
            self.transformer.cache_spec(page_size)  # refuses a page size that is none
            num_frames = max(1, sum(frames_needed(request, page_size) for request in requests))
        kind: Callable[..., BatchRun] = BatchRun
        if chosen["speculate"] is not None:
            kind = partial(SpeculativeRun, speculation=chosen["speculate"])
        order, form = chosen["frame_order"], chosen["kv_format"]
        return kind(
            self.transformer,
            self.cache(num_frames, page_size=page_size, frame_order=order, kv_format=form),
            requests,
            eos_token_ids=frozenset() if chosen["ignore_eos"] else config.eos_token_ids,
            max_model_len=config.max_model_len,
            tokens_per_step=chosen["tokens_per_step"],
        )
