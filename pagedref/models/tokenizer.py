"""Text to token ids and back, through the ``tokenizers`` package.

:class:`Tokenizer` joins the three things that a model's files say about text: the vocabulary with its rules, the
tokens that end a text, and the chat template. :class:`StreamDecoder` turns tokens into text as they come and never
gives out half a character.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedref.errors import ContractError
from pagedref.models.chat import render_chat
from pagedref.models.fields import read_json, refuse

if TYPE_CHECKING:
    import tokenizers

__all__ = ["StreamDecoder", "Tokenizer", "guarded", "missing_extra"]

_HALF = "\ufffd"
_LONGEST_HOLD, _LONGEST_CHARACTER = 16, 4


class Tokenizer:
    """Turn text into token ids and back.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        Vocabulary and rules.
    bos_token, eos_token : str
        Texts that a chat template may use; empty where there is none.
    eos_token_ids : iterable of int
        Tokens that end a text; joined with the id of `eos_token` (P65).
    template : str
        Chat template; empty where there is none.

    Notes
    -----
    A tokenizer is used from one thread.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token: str = "",
        eos_token: str = "",
        eos_token_ids: Iterable[int] = (),
        template: str = "",
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.bos_token, self.eos_token, self.template = bos_token, eos_token, template
        with guarded("eos_token"):
            found = backend.token_to_id(eos_token) if eos_token else None
        self.eos_token_ids = frozenset(eos_token_ids) | (frozenset() if found is None else {int(found)})

    @classmethod
    def from_hf(cls, folder: Path) -> Tokenizer:
        """Read ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja`` of an HF directory.

        Parameters
        ----------
        folder : Path
            Only ``tokenizer.json`` must be there.

        Raises
        ------
        ContractError
            If the package ``tokenizers`` is missing or a file is damaged.
        """
        if note := missing_extra():
            raise ContractError(f"Tokenizer: {note}")
        import tokenizers

        content = read_json(folder / "tokenizer.json")
        with guarded("tokenizer.json"):
            _check_processor(content.get("post_processor"))
            backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        side = folder / "tokenizer_config.json"
        settings = read_json(side) if side.exists() else {}
        template = settings.get("chat_template")
        if isinstance(template, list):  # several by name: the default one counts
            named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = named.get("default")
        if (folder / "chat_template.jinja").exists():
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8", errors="replace")
        return cls(
            backend,
            bos_token=_token_text(settings.get("bos_token")),
            eos_token=_token_text(settings.get("eos_token")),
            template=_whole_text("chat_template", template) if isinstance(template, str) else "",
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._backend.get_vocab_size())

    def encode(self, text: str, *, special: bool = True, literal: bool = False) -> list[int]:
        """Turn text into token ids.

        Parameters
        ----------
        text : str
            Any text; half surrogates are replaced.
        special : bool
            Whether to add what the model wants around a text, such as a first token. A text made by
            :meth:`chat_template` has it already: encode that with ``special=False``.
        literal : bool
            Whether a control token spelt out in the text, such as ``<|im_end|>``, is plain text. By default it
            becomes the control token, as in other libraries.

        Returns
        -------
        list of int
        """
        if not isinstance(text, str):
            refuse("encode", "text", "is not a text", type(text).__name__, "str")
        clean = text.encode("utf-8", errors="replace").decode("utf-8")
        self._backend.encode_special_tokens = literal
        with guarded("text"):
            return [int(i) for i in self._backend.encode(clean, add_special_tokens=special).ids]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Turn token ids into text; bytes that are no character become U+FFFD, unknown ids nothing.

        Parameters
        ----------
        ids : iterable of int
            Any ids from 0 to 2**31 - 1.
        skip_special : bool
            Whether control tokens are left out.

        Returns
        -------
        str
        """
        checked = [int(i) for i in ids]
        if any(not 0 <= i < 2**31 for i in checked):
            refuse("decode", "ids", "are out of range", f"{min(checked)} .. {max(checked)}", "0 .. 2147483647")
        with guarded("ids"):
            return str(self._backend.decode(checked, skip_special_tokens=skip_special))

    def stream(self) -> StreamDecoder:
        """Return a decoder for tokens that come one by one."""
        return StreamDecoder(self)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model says how a conversation is written."""
        return bool(self.template)

    def chat_template(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """Write a conversation as the one text that the model was trained on.

        Parameters
        ----------
        messages : sequence of mapping
            Each with the texts ``role`` and ``content``.
        add_generation_prompt : bool
            Whether to open the answer.

        Returns
        -------
        str
            To be encoded with ``special=False``.

        Raises
        ------
        ContractError
            If there is no template, it is refused by the sandbox, or it needs ``jinja2`` and that is missing.
        """
        return render_chat(
            self.template,
            messages,
            bos_token=self.bos_token,
            eos_token=self.eos_token,
            add_generation_prompt=add_generation_prompt,
        )

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the token ids of a conversation, ready for the answer."""
        return self.encode(self.chat_template(messages), special=False)


class StreamDecoder:
    """Turn tokens into text as they come; half a character waits for its other half.

    The pieces joined are ``decode`` of all tokens. A window of the last tokens is decoded again with each new one,
    because what a token adds can depend on the one before it (a space, the bytes of a character).

    Parameters
    ----------
    tokenizer : Tokenizer
        What decodes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # tokens whose text is given out (the context), then tokens that are pending
        self._context = 0  # how many of them are context
        self._given = ""  # text of the window that is given out

    def push(self, token: int) -> str:
        """Take one token and return the text that is now certain, often one word, sometimes nothing."""
        self._window.append(int(token))
        text = self._tokenizer.decode(self._window)
        whole = text.rstrip(_HALF)
        if len(text) - len(whole) > _LONGEST_HOLD:  # damaged for good, up to what may still become one character
            whole = text[:-_LONGEST_CHARACTER]
        new = whole[len(self._given) :]
        if whole == text and new:  # all is certain: the pending tokens are the next context
            del self._window[: self._context]
            self._context = len(self._window)
            self._given = self._tokenizer.decode(self._window)
        elif new:
            self._given = whole
        return new

    def finish(self) -> str:
        """Return what is still held, once no more token comes, and begin anew."""
        rest = self._tokenizer.decode(self._window)[len(self._given) :]
        self._window, self._context, self._given = [], 0, ""
        return rest


def missing_extra() -> str:
    """Say what to install if the package ``tokenizers`` is missing.

    Returns
    -------
    str
        Empty if it is there.
    """
    if importlib.util.find_spec("tokenizers") is not None:
        return ""
    return 'the package tokenizers is missing, got no module tokenizers, need: pip install "pagedref[models]"'


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turn whatever a compiled tokenizer raises, panics included, into a ContractError of one line.

    Parameters
    ----------
    what : str
        The argument or file that it works on.

    Yields
    ------
    None

    Raises
    ------
    ContractError
        In place of what was raised inside.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, ContractError):
        raise
    except BaseException as error:  # a panic of a compiled extension is no Exception
        refuse("Tokenizer", what, "is refused by the package tokenizers", str(error), "a sound vocabulary and rules")


def _check_processor(entry: Any) -> None:
    """Refuse a template around texts that names a token it does not define: the compiled code would panic aloud."""
    if not isinstance(entry, dict):
        return
    for inner in entry.get("processors") or ():
        _check_processor(inner)
    defined = entry.get("special_tokens") or ()
    for piece in (piece for part in ("single", "pair") for piece in entry.get(part) or ()):
        special = piece.get("SpecialToken") if isinstance(piece, dict) else None
        if isinstance(special, dict) and special.get("id") not in defined:
            need = "each token of the template among its special_tokens"
            refuse("Tokenizer", "tokenizer.json", "names an undefined token", special.get("id"), need)


def _token_text(value: Any) -> str:
    """Return the text of a token in ``tokenizer_config.json``: a text, or an object with ``content``."""
    value = value.get("content") if isinstance(value, dict) else value
    return _whole_text("a token", value) if isinstance(value, str) else ""


def _whole_text(what: str, text: str) -> str:
    """Return a text of a file; half of a character, which JSON can spell, is refused."""
    try:
        text.encode()
    except UnicodeEncodeError:
        refuse("Tokenizer", what, "of tokenizer_config.json holds half a character", ascii(text), "whole characters")
    return text
