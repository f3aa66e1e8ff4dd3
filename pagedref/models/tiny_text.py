"""The little language of the tiny model: 256 words, facts, questions, and stories of any length around them.

::

    story     ::=  sentence*
    sentence  ::=  fact | filler                               (filler states nothing; its first word is "the")
    fact      ::=  "the" KIND "of" WHO "is" VALUE VALUE ... "."
    question  ::=  "what is the" KIND "of" WHO "?"   |   "the" KIND "of" WHO "is"   |   KIND "of" WHO ":"
    answer    ::=  VALUE VALUE ... "." end   |   "unknown" "." end                    (the second: no such fact)

A KIND is a property (colour, number, food ...), a WHO one of 64 animals, a VALUE one of ten words of that kind. A pair
of KIND and WHO is stated at most once, and a fact does not repeat a VALUE: those are the two rules under which
:mod:`pagedref.models.tiny` answers every question right, however many tokens ago the fact was told.

Only the standard library is needed here. The functions :func:`encode` and :func:`decode` agree with the tokenizer
file that is shipped beside the weights.

Examples
--------
>>> fact = facts(1, seed=7)[0]
>>> fact.question, fact.answer
('what is the home of camel ?', 'barn cave.')
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pagedref.errors import ContractError

__all__ = [
    "BOS", "EOS", "KINDS", "SPECIAL", "UNK", "VOCAB", "WHO", "Fact", "Story", "decode", "encode", "facts", "story",
    "tokenizer",
]  # fmt: skip

SPECIAL = ("<s>", "</s>", "<unk>")
"""Start of the text, end of the text, a word that is not in the vocabulary."""

BOS, EOS, UNK = 0, 1, 2
"""Token ids: begin of text, end of text, and any word that the language lacks."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


KINDS: dict[str, tuple[str, ...]] = {
    "colour": _words("amber cobalt copper crimson indigo ivory jade ochre pearl teal"),
    "number": _words("zero one two three four five six seven eight nine"),
    "food": _words("bread cheese figs honey mint nuts plum rice salt tea"),
    "tool": _words("axe brush chisel drill hammer needle pliers rope saw wrench"),
    "music": _words("bell cello drum flute gong harp lute oboe piano viola"),
    "home": _words("attic barn cabin castle cave cellar hut lodge tent tower"),
    "gift": _words("book candle crown lamp mirror ring scarf shell stamp vase"),
    "cloth": _words("cotton denim felt lace linen silk suede tweed velvet wool"),
}
"""The properties, and the ten words that each may take."""

WHO = _words(
    "alpaca badger bat bear beaver bison boar bobcat camel cat cheetah cobra cod coyote crab crane crow deer dingo dog "
    "dolphin donkey dove duck eagle eel egret elk falcon ferret finch fox frog gecko goat goose gull hare hawk heron "
    "horse hyena ibex ibis jackal jaguar koala lark lemur leopard lion lizard llama lynx magpie marten mole moose newt "
    "otter owl panda parrot puffin"
)
"""The 64 animals that facts are about."""

_MARKS = (".", ",", "?", ":", ";", "!")
_GRAMMAR = _words(
    "unknown the of is what and a an in it we you they to that this was were who where when how not but or so as"
)
_ADJECTIVE = _words("bright calm cold dark early grey late long narrow old quiet slow small soft warm wide")
_NOUN = _words(
    "bridge cloud field forest garden hill island lake meadow moon path pond river road sea shore sky stone stream "
    "valley"
)
_VERB = _words("drifts ends fades falls glows grows leans lies rests rises shines sleeps stands turns waits wakes")
_PLACE = _words("above behind below beside near under")
_MANNER = _words("again alone always here now often soon still there today")

VOCAB: tuple[str, ...] = (
    SPECIAL + _MARKS + _GRAMMAR + tuple(KINDS) + tuple(word for words in KINDS.values() for word in words) + WHO
    + _ADJECTIVE + _NOUN + _VERB + _PLACE + _MANNER
)  # fmt: skip
"""The words, in the order of their token ids, 0 to 255."""

_ID = {word: token for token, word in enumerate(VOCAB)}

# One pattern for each length from 4 to 9 tokens, so that filler can make up any number of tokens from 4 on.
_FILLER: dict[int, tuple[tuple[str, ...], ...]] = {
    4: (("the",), _NOUN, _VERB, (".",)),
    5: (("the",), _ADJECTIVE, _NOUN, _VERB, (".",)),
    6: (("the",), _ADJECTIVE, _NOUN, _VERB, _MANNER, (".",)),
    7: (("the",), _NOUN, _VERB, _PLACE, ("the",), _NOUN, (".",)),
    8: (("the",), _ADJECTIVE, _NOUN, _VERB, _PLACE, ("the",), _NOUN, (".",)),
    9: (("the",), _ADJECTIVE, _NOUN, _VERB, _PLACE, ("the",), _ADJECTIVE, _NOUN, (".",)),
}


@dataclass(frozen=True)
class Fact:
    """One thing to remember: what some animal's property is.

    Parameters
    ----------
    kind : str
        Property, a key of :data:`KINDS`.
    who : str
        Animal, one of :data:`WHO`.
    value : tuple of str
        The answer's words, all different.

    Examples
    --------
    >>> Fact("colour", "heron", ("amber", "teal")).sentence
    'the colour of heron is amber teal .'
    """

    kind: str
    who: str
    value: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The fact as it stands in a story."""
        return f"the {self.kind} of {self.who} is {' '.join(self.value)} ."

    @property
    def question(self) -> str:
        """The question that the fact answers, 7 tokens."""
        return f"what is the {self.kind} of {self.who} ?"

    @property
    def answer(self) -> str:
        """The right answer, as :func:`decode` writes it."""
        return " ".join(self.value) + "."

    @property
    def answer_ids(self) -> list[int]:
        """The right answer as token ids: the values, the full stop, the end of the text."""
        return [*(_ID[word] for word in self.value), _ID["."], EOS]


@dataclass(frozen=True)
class Story:
    """A text of known length with known facts in it.

    Parameters
    ----------
    text : str
        The sentences.
    num_tokens : int
        Tokens of `text`, the start token included.
    facts : tuple of Fact
        In the order of the text.
    positions : tuple of int
        Position (S1) of the first token of each fact's sentence.
    """

    text: str
    num_tokens: int
    facts: tuple[Fact, ...]
    positions: tuple[int, ...]

    def prompt(self, fact: Fact) -> str:
        """Return the story and then the question about `fact`, 7 tokens more."""
        return f"{self.text} {fact.question}"


def encode(text: str, *, bos: bool = True) -> list[int]:
    """Split a text into words and marks, and return their token ids.

    Parameters
    ----------
    text : str
        Any text; letters may be upper-case, a word outside the vocabulary becomes ``<unk>``.
    bos : bool
        Whether the start token goes first, as the shipped tokenizer does.

    Returns
    -------
    list of int
        Token ids, 0 to 255.

    Examples
    --------
    >>> encode("The tea.") == [0, VOCAB.index("the"), VOCAB.index("tea"), VOCAB.index(".")]
    True
    """
    words = re.findall(r"</?s>|<unk>|\w+|[^\w\s]+", text.lower())
    return [BOS] * bos + [_ID.get(word, UNK) for word in words]


def decode(token_ids: Iterable[int]) -> str:
    """Return the text of some token ids: words with spaces between, marks joined to the word before, no special token.

    Parameters
    ----------
    token_ids : iterable of int
        0 to 255.

    Returns
    -------
    str

    Examples
    --------
    >>> decode(encode("amber teal ."))
    'amber teal.'
    """
    words = " ".join(VOCAB[token] for token in token_ids if token >= len(SPECIAL))
    return re.sub(r" ([.,?!])", r"\1", words)


def tokenizer() -> dict[str, Any]:
    """Return the content of ``tokenizer.json``: lower case, a token for each word or mark, start token first.

    Returns
    -------
    dict
        In the format of the ``tokenizers`` package, version 1.0.
    """
    bos = SPECIAL[BOS]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": word, **special} for number, word in enumerate(SPECIAL)],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": bos, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
            ],
            "special_tokens": {bos: {"id": bos, "ids": [BOS], "tokens": [bos]}},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(VOCAB)},
            "unk_token": SPECIAL[-1],
        },
    }


def facts(num_facts: int, seed: int = 0) -> list[Fact]:
    """Draw facts, no two about the same property of the same animal.

    Parameters
    ----------
    num_facts : int
        How many, 0 to 512.
    seed : int
        The same seed gives the same facts.

    Returns
    -------
    list of Fact
        Each with two to four values.

    Raises
    ------
    ContractError
        If there are not that many pairs of property and animal.
    """
    pairs = [(kind, who) for kind in KINDS for who in WHO]
    if not 0 <= num_facts <= len(pairs):
        raise ContractError(f"facts: num_facts is out of range, got {num_facts}, need 0 to {len(pairs)}")
    rng = random.Random(seed)
    rng.shuffle(pairs)
    return [Fact(kind, who, tuple(rng.sample(KINDS[kind], rng.randrange(2, 5)))) for kind, who in pairs[:num_facts]]


def story(num_tokens: int, facts: Sequence[Fact], seed: int = 0) -> Story:
    """Tell the facts one after the other, with filler before, between and behind them, in exactly `num_tokens` tokens.

    Parameters
    ----------
    num_tokens : int
        Length of the story in tokens, the start token included.
    facts : sequence of Fact
        What to tell, in this order; the filler is spread evenly over the gaps.
    seed : int
        Chooses the filler.

    Returns
    -------
    Story
        With the position of every fact.

    Raises
    ------
    ContractError
        If the facts need more tokens than that, or leave one, two or three, which no filler sentence fits.

    Examples
    --------
    >>> tale = story(100, [Fact("food", "owl", ("figs", "tea"))])
    >>> len(encode(tale.text)), decode(encode(tale.text)[tale.positions[0] :][:8])
    (100, 'the food of owl is figs tea.')
    """
    spare = num_tokens - 1 - sum(len(encode(fact.sentence, bos=False)) for fact in facts)
    if spare < 0 or 0 < spare < 4:
        raise ContractError(
            f"story: num_tokens does not fit the facts, got {num_tokens}, need {num_tokens - spare} or at least "
            f"{num_tokens - spare + 4}"
        )
    rng = random.Random(seed)
    told: list[str] = []
    positions: list[int] = []
    used, spent = 1, 0  # tokens of the story so far, the start token included, and tokens of filler among them
    for number, fact in enumerate(facts):
        while spare - spent >= 4 and spent < spare * (number + 1) // (len(facts) + 1):
            told.append(_filler(rng, spare - spent))
            spent += len(told[-1].split())
            used += len(told[-1].split())
        told.append(fact.sentence)
        positions.append(used)
        used += len(told[-1].split())
    while spent < spare:
        told.append(_filler(rng, spare - spent))
        spent += len(told[-1].split())
    return Story(" ".join(told), num_tokens, tuple(facts), tuple(positions))


def _filler(rng: random.Random, room: int) -> str:
    """Return a sentence of 4 to 9 tokens that states nothing and leaves 0 or at least 4 of `room` (>= 4) tokens."""
    length = rng.choice([size for size in _FILLER if size == room or size <= room - 4])
    return " ".join(rng.choice(words) for words in _FILLER[length])
