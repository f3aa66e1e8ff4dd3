"""The language of the tiny model: 256 words, facts without repetition, stories of exactly the length asked for."""

from __future__ import annotations

import pytest

from pagedref.errors import ContractError
from pagedref.models import tiny_text as tiny
from pagedref.models.tiny import DATA
from pagedref.models.tiny_text import BOS, EOS, KINDS, UNK, VOCAB, WHO

QUESTION = 7  # tokens


def test_vocabulary() -> None:
    assert len(VOCAB) == len(set(VOCAB)) == 256
    assert [VOCAB.index(word) for word in ("<s>", "</s>", "<unk>")] == [BOS, EOS, UNK]


def test_facts_are_drawn_without_repetition() -> None:
    drawn = tiny.facts(512, seed=3)
    assert len({(fact.kind, fact.who) for fact in drawn}) == 512
    assert all(len(set(fact.value)) == len(fact.value) and 2 <= len(fact.value) <= 4 for fact in drawn)
    assert drawn == tiny.facts(512, seed=3) != tiny.facts(512, seed=4)
    with pytest.raises(ContractError, match="facts: num_facts is out of range, got 513, need 0 to 512"):
        tiny.facts(513)


@pytest.mark.parametrize("num_tokens", [97, 100, 101, 102, 1000, 4097])
def test_story_has_the_length_asked_for(num_tokens: int) -> None:
    told = tiny.facts(3, seed=5)
    tale = tiny.story(num_tokens, told, seed=num_tokens)
    ids = tiny.encode(tale.text)
    assert len(ids) == tale.num_tokens == num_tokens
    for fact, position in zip(tale.facts, tale.positions, strict=True):
        sentence = tiny.encode(fact.sentence, bos=False)
        assert ids[position : position + len(sentence)] == sentence
    assert len(tiny.encode(tale.prompt(told[0]))) == num_tokens + QUESTION


def test_story_refuses_a_length_that_does_not_fit() -> None:
    told = [tiny.Fact("food", "owl", ("figs", "tea"))]
    assert tiny.story(9, told).positions == (1,)
    for num_tokens in (8, 10, 12):
        with pytest.raises(ContractError, match="story: num_tokens does not fit the facts"):
            tiny.story(num_tokens, told)


def test_tokenizer_file_agrees_with_encode_and_decode() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    shipped = tokenizers.Tokenizer.from_file(str(DATA / "tokenizer.json"))
    for text in ("The colour of otter is amber, teal.", "cedar : what?! </s> tea .", "", *KINDS, " ".join(VOCAB[3:])):
        assert shipped.encode(text).ids == tiny.encode(text)
        assert shipped.encode(text, add_special_tokens=False).ids == tiny.encode(text, bos=False)
    ids = tiny.encode(tiny.story(500, tiny.facts(10)).prompt(tiny.facts(1)[0]))
    assert shipped.decode(ids) == tiny.decode(ids)
    assert shipped.encode(shipped.decode(ids)).ids == ids


def test_animals_are_words_of_their_own() -> None:
    assert not set(WHO) & {word for words in KINDS.values() for word in words}
