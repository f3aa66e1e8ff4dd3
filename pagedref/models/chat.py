"""Chat templates: how a conversation becomes one text.

A template is a small program in the language of ``jinja2`` that came with the weights, so it is treated as hostile:
it runs in jinja2's immutable sandbox, with few filters, no method that pads or repeats text, and a limit on what it
may write. The sandbox keeps a template from the interpreter and from the disk; it does not bound its running time, nor
what a loop that doubles a text may use, so weights from strangers deserve a look at their template.
Without ``jinja2``, the one form that needs no interpreter is written here: ChatML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from pagedref.errors import ContractError
from pagedref.models.fields import refuse

__all__ = ["render_chat", "render_chatml"]

TEXT_LIMIT = 16 << 20
"""Characters that a template may write."""

_FILTERS = (
    "capitalize", "count", "d", "default", "dictsort", "first", "groupby", "int", "items", "join", "last", "length",
    "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "safe", "select", "selectattr",
    "sort", "string", "title", "trim", "unique", "upper",
)  # fmt: skip
_NO_METHODS = ("center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill", "translate", "encode")
_NO_GLOBALS = ("lipsum", "cycler", "joiner")

_CHATML = re.compile(
    r"\{% for message in messages %\}"
    r"(?:\{% if loop\.first and messages\[0\]\['role'\] != 'system' %\}"
    r"\{\{ '<\|im_start\|>system\n(?P<system>[^'\\{}]*)<\|im_end\|>\n' \}\}\{% endif %\})?"
    r"\{\{ ?'<\|im_start\|>' \+ message\['role'\] \+ '\n' \+ message\['content'\] \+ '<\|im_end\|>' \+ '\n' ?\}\}"
    r"\{% endfor %\}"
    r"\{% if add_generation_prompt %\}\{\{ '<\|im_start\|>assistant\n' \}\}\{% endif %\}"
)
"""The template of SmolLM2 and its like, with or without a system message of its own."""


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, str]],
    *,
    bos_token: str = "",
    eos_token: str = "",
    add_generation_prompt: bool = True,
) -> str:
    r"""Write a conversation with the template of a model.

    Parameters
    ----------
    template : str
        In the language of jinja2.
    messages : sequence of mapping
        Each with the texts ``role`` and ``content``.
    bos_token, eos_token : str
        What the template may write for the first and the last token.
    add_generation_prompt : bool
        Whether to open the answer.

    Returns
    -------
    str

    Raises
    ------
    ContractError
        If messages are malformed, there is no template, the template fails or does what is forbidden, or it needs
        ``jinja2`` and that is missing.

    Examples
    --------
    >>> chatml = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    ...           "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    ...           "{% endif %}")
    >>> render_chat(chatml, [{"role": "user", "content": "Hi"}])
    '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n'
    """
    plain = _checked(messages)
    if not template:
        refuse("chat_template", "the model", "has no chat template", "none", "a plain prompt")
    known = _CHATML.fullmatch(template.replace("\\n", "\n"))
    if known:
        return render_chatml(plain, system=known["system"], add_generation_prompt=add_generation_prompt)
    names = {"messages": plain, "bos_token": bos_token, "eos_token": eos_token}
    return _render_jinja(template, {**names, "add_generation_prompt": add_generation_prompt})


def render_chatml(
    messages: Sequence[Mapping[str, str]], *, system: str | None = None, add_generation_prompt: bool = True
) -> str:
    r"""Write a conversation as ChatML.

    Parameters
    ----------
    messages : sequence of mapping
        Each with the texts ``role`` and ``content``.
    system : str, optional
        System message to begin with where the conversation has none.
    add_generation_prompt : bool
        Whether to open the answer.

    Returns
    -------
    str

    Examples
    --------
    >>> render_chatml([{"role": "user", "content": "Hi"}], system="Be brief.", add_generation_prompt=False)
    '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n'
    """
    turns = [(message["role"], message["content"]) for message in messages]
    if system is not None and turns and turns[0][0] != "system":
        turns.insert(0, ("system", system))
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return text + "<|im_start|>assistant\n" * add_generation_prompt


def _checked(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return messages as plain dictionaries of role and content."""
    plain = []
    for message in messages:
        role, content = (message.get(key) if isinstance(message, Mapping) else None for key in ("role", "content"))
        if not isinstance(role, str) or not isinstance(content, str):
            refuse("chat_template", "a message", "is malformed", message, "texts for role and content")
        plain.append({"role": role, "content": content})
    return plain


def _render_jinja(template: str, names: dict[str, Any]) -> str:
    """Run a template in the sandbox."""
    try:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ContractError(
            "chat_template: the template of this model needs a package, got no module jinja2, "
            'need: pip install "pagedref[models]"'
        ) from None

    def raise_exception(message: object) -> NoReturn:
        raise TemplateError(str(message))

    def call_binop(self: Any, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise TemplateError(f"the operator {operator} is not allowed here")
        return ImmutableSandboxedEnvironment.call_binop(self, context, operator, left, right)

    def no_padding(self: Any, obj: Any, name: Any, plain: Callable[..., Any]) -> Any:
        if isinstance(obj, str) and name in _NO_METHODS:
            return self.unsafe_undefined(obj, name)
        return plain(self, obj, name)

    base = ImmutableSandboxedEnvironment  # a short template must not make a long text
    forbid: dict[str, Any] = {"intercepted_binops": frozenset(["*", "**", "%"]), "call_binop": call_binop}
    forbid["getattr"] = lambda self, obj, name: no_padding(self, obj, name, base.getattr)
    forbid["getitem"] = lambda self, obj, name: no_padding(self, obj, name, base.getitem)
    stricter: Any = type("Sandbox", (base,), forbid)
    sandbox = stricter(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.filters = {name: sandbox.filters[name] for name in _FILTERS}
    sandbox.filters["tojson"] = _to_json
    for name in _NO_GLOBALS:
        sandbox.globals.pop(name, None)
    sandbox.globals["raise_exception"] = raise_exception
    pieces: list[str] = []
    written = 0
    try:
        for piece in sandbox.from_string(template).generate(**names):
            pieces.append(piece)
            written += len(piece)
            if written > TEXT_LIMIT:
                raise TemplateError(f"it writes more than {TEXT_LIMIT} characters")
    except Exception as error:  # a template is a program: it may fail in any way
        refuse("chat_template", "the template", "fails", str(error), "a template for role and content")
    return "".join(pieces)


def _to_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON text, the filter ``tojson`` of templates."""
    return json.dumps(value, ensure_ascii=False, indent=None if indent is None else min(int(indent), 8))
