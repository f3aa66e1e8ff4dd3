"""The tokenizer that a GGUF file carries in its metadata.

Two kinds of vocabulary are built: byte-level BPE (``gpt2``), whose rules for splitting text go by name, and
SentencePiece BPE (``llama``), whose merges follow from the scores of its pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pagedref.models.fields import refuse, show, token_ids
from pagedref.models.tokenizer import Tokenizer, guarded, missing_extra

if TYPE_CHECKING:
    import tokenizers

__all__ = ["tokenizer_from_gguf"]

_KEY = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER = 2, 3, 4

_SPLITS = {
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""Words of a text, by the name of the rule; ``gpt-2`` and ``smollm`` use the rule built into ByteLevel."""


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> tuple[Tokenizer | None, str]:
    """Build the tokenizer of a GGUF file.

    Parameters
    ----------
    metadata : mapping
        Of :class:`~pagedref.models.gguf_file.GGUFFile`.

    Returns
    -------
    tokenizer, note
        ``None`` and the reason, if the kind is not supported, there is none, or a package is missing.

    Raises
    ------
    ContractError
        If the vocabulary is damaged.
    """
    kind, rule = metadata.get(_KEY + "model"), metadata.get(_KEY + "pre", "default")
    if kind not in ("gpt2", "llama"):
        return None, f"the tokenizer {show(kind)} of this file is not supported, only gpt2 and llama"
    if kind == "gpt2" and rule not in ("gpt-2", "smollm", *_SPLITS):
        return (
            None,
            f"the text splitting {show(rule)} of this file is not supported, only gpt-2, smollm, llama-bpe, qwen2",
        )
    if note := missing_extra():
        return None, note
    tokens = _listed(metadata, "tokens", str)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        refuse("Tokenizer", "tokens", "are not distinct", f"{len(vocabulary)} of {len(tokens)}", "each token once")
    types = _listed(metadata, "token_type", int) if _KEY + "token_type" in metadata else [1] * len(tokens)
    if len(types) != len(tokens):
        refuse("Tokenizer", "token_type", "has the wrong length", len(types), str(len(tokens)))
    with guarded("vocabulary"):
        if kind == "gpt2":
            backend = _byte_level(vocabulary, _listed(metadata, "merges", str), str(rule))
        else:
            backend = _sentencepiece(metadata, vocabulary, types)
        _add_tokens(backend, tokens, types)
        first = _token(metadata, tokens, "bos")
        if first and metadata.get(_KEY + "add_bos_token", kind == "llama"):
            _begin_with(backend, first, vocabulary[first])
    template = metadata.get("tokenizer.chat_template")
    ends = [token_ids(metadata.get(f"{_KEY}{name}_token_id")) for name in ("eos", "eot", "eom")]
    return Tokenizer(
        backend,
        bos_token=first,
        eos_token=_token(metadata, tokens, "eos"),
        eos_token_ids=frozenset[int]().union(*ends),
        template=template if isinstance(template, str) else "",
    ), ""


def _listed(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """Return a list of the metadata, all of one type."""
    values = metadata.get(_KEY + key)
    if not isinstance(values, list) or not values or not all(isinstance(value, kind) for value in values):
        refuse("Tokenizer", _KEY + key, "is no list", type(values).__name__, f"a list of {kind.__name__}")
    return values


def _token(metadata: Mapping[str, Any], tokens: list[str], name: str) -> str:
    """Return the text of a token that the metadata names by id; empty where it names none."""
    index = metadata.get(f"{_KEY}{name}_token_id")
    return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else ""


def _byte_level(vocabulary: dict[str, int], merges: list[str], rule: str) -> tokenizers.Tokenizer:
    """Return byte-level BPE: text is cut into words, words into bytes, bytes are merged by rank."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=rule == "llama-bpe"))
    backend.decoder = decoders.ByteLevel()
    split_by_name = rule in _SPLITS
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split_by_name:
        steps.append(pre_tokenizers.Split(Regex(_SPLITS[rule]), "isolated"))
    elif rule == "smollm":  # each digit is a word of its own
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split_by_name))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rule == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: dict[str, int], types: list[int]) -> tokenizers.Tokenizer:
    """Return SentencePiece BPE: spaces become U+2581, the pair that makes the best piece merges first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = _listed(metadata, "scores", float)
    if len(scores) != len(vocabulary):
        refuse("Tokenizer", "scores", "has the wrong length", len(scores), str(len(vocabulary)))
    unknown = next((token for token, index in vocabulary.items() if types[index] == _UNKNOWN), None)
    pairs = _merges(vocabulary, types, scores)
    backend = Tokenizer(models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "\u2581")]
    back: list[decoders.Decoder] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get(_KEY + "add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("\u2581"))
        back.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(back)
    return backend


def _merges(vocabulary: dict[str, int], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that make a piece, best score first.

    Examples
    --------
    >>> _merges({"a": 0, "b": 1, "ab": 2, "abb": 3}, [1, 1, 1, 1], [0.0, 0.0, -2.0, -1.0])
    [('ab', 'b'), ('a', 'b')]
    """
    found = []
    for piece, index in vocabulary.items():
        if types[index] not in (_UNKNOWN, _CONTROL, _USER) and len(piece) <= 256:
            for cut in range(1, len(piece)):
                left, right = piece[:cut], piece[cut:]
                if left in vocabulary and right in vocabulary:
                    found.append((-scores[index], vocabulary[left], vocabulary[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Name the tokens that stand for themselves wherever they occur in a text."""
    from tokenizers import AddedToken

    def named(*kinds: int) -> list[tokenizers.AddedToken]:
        chosen = (token for token, kind in zip(tokens, types, strict=True) if kind in kinds and token)
        return [AddedToken(token, normalized=False, special=_USER not in kinds) for token in chosen]

    backend.add_special_tokens(named(_UNKNOWN, _CONTROL))
    backend.add_tokens(named(_USER))


def _begin_with(backend: tokenizers.Tokenizer, token: str, index: int) -> None:
    """Let every text begin with a token."""
    from tokenizers import processors

    backend.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", token, "$B:1"], special_tokens=[(token, index)]
    )
