"""Model: loading, logits, and what a caller may pass as prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagedref
from pagedref import backends
from pagedref.errors import BackendUnavailable, ContractError
from pagedref.models.generate import Request
from pagedref.models.model import Model, load_model
from pagedref.models.prompts import checked_ids, make_requests, separate
from tests.engine.small_models import dense_logits, make_config, make_weights, rounding, write_hf


@pytest.fixture
def model() -> Model:
    config = make_config(eos_token_ids=frozenset({3}))
    return Model(config, make_weights(config))


def test_public_names() -> None:
    assert pagedref.load_model is load_model
    assert pagedref.Model is Model
    assert pagedref.models.Model is Model
    assert {"Model", "load_model"} <= set(dir(pagedref.models))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pagedref.models.nonsense


def test_load_model_from_a_directory(tmp_path: Path) -> None:
    config = make_config(eos_token_ids=frozenset({3, 5}))
    folder = write_hf(tmp_path / "model", config, make_weights(config))
    steps: list[tuple[int, int]] = []
    model = load_model(folder, progress=lambda done, total: steps.append((done, total)))
    assert model.config.eos_token_ids == {3, 5}
    assert steps[-1][0] == steps[-1][1] == len(make_weights(config))
    ids = [1, 2, 69, 0]
    exact = dense_logits(config, make_weights(config), ids)
    assert np.abs(model.logits(ids) - exact).max() <= rounding(config, exact)


def test_backend_may_be_a_name_or_an_object(tmp_path: Path) -> None:
    numpy = backends.get("numpy")
    assert load_model("tiny", numpy).backend is load_model("tiny", backend="numpy").backend is numpy
    with pytest.raises(BackendUnavailable, match="nonsense"):
        load_model(tmp_path / "is not even looked for", "nonsense")


def test_a_backend_that_cannot_run_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    class Broken:
        @staticmethod
        def ensure_available() -> None:
            raise BackendUnavailable("broken: no device, got none, need one")

    with pytest.raises(BackendUnavailable, match="no device"):
        load_model(tmp_path / "missing", Broken())


@pytest.mark.parametrize("page_size", [1, 5, 64])
@pytest.mark.parametrize("tokens_per_step", [1, 7, 512])
def test_logits_do_not_depend_on_pages_or_pieces(model: Model, page_size: int, tokens_per_step: int) -> None:
    ids = np.random.default_rng(0).integers(0, 70, 30)
    exact = dense_logits(model.config, make_weights(model.config), ids)
    found = model.logits(ids, page_size=page_size, tokens_per_step=tokens_per_step)
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() <= rounding(model.config, exact)


def test_logits_of_nothing(model: Model) -> None:
    assert model.logits([]).shape == (0, 70)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.logits([70]), "logits: token_ids holds what is no token, got 70, need 0..69"),
        (lambda m: m.logits([0] * 65), "logits: token_ids is too long, got 65, need at most 64"),
        (lambda m: m.logits([[1, 2]]), "logits: token_ids is no flat list"),
        (lambda m: m.logits([1], tokens_per_step=0), "logits: tokens_per_step is too small, got 0"),
        (lambda m: m.logits([1], page_size=0), "CacheSpec: page_size"),
        (lambda m: m.generate([1], 0), "generate: max_tokens is no positive integer, got 0, need >= 1"),
        (lambda m: m.generate([1], True), "generate: max_tokens is no positive integer, got True"),
        (lambda m: m.generate([1], 2.5), "generate: max_tokens is no positive integer, got 2.5"),
        (lambda m: m.generate([[1], []]), "generate: prompt 1 is empty"),
        (lambda m: m.generate([[1], [-1]]), "generate: prompt 1 holds what is no token, got -1"),
        (lambda m: m.generate([[1], [2**70]]), "generate: prompt 1 is no flat list"),
        (lambda m: m.generate([[0] * 65]), "generate: prompt 0 is too long, got 65, need at most 64 tokens"),
        (lambda m: m.generate([[1.5]]), "generate: prompt 0 is no flat list"),
        (lambda m: m.generate([[True, False]]), "generate: prompt 0 is no flat list"),
        (lambda m: m.generate([[[1], [2, 3]]]), "generate: prompt 0 is no flat list"),
        (lambda m: m.generate(7), "generate: prompts are neither text nor tokens, got 7"),
        (lambda m: m.generate("text"), "need token ids: the model has no tokenizer"),
        (lambda m: m.generate([1], page_size=0), "CacheSpec: page_size"),
        (lambda m: m.generate([1], num_frames=0), "num_frames"),
        (lambda m: m.generate([1], tokens_per_step=0), "generate: tokens_per_step is too small, got 0"),
        (lambda m: m.stream([1], 0), "generate: max_tokens"),
    ],
)
def test_wrong_input_is_one_clear_line(model: Model, call: Any, message: str) -> None:
    with pytest.raises(ContractError) as caught:
        call(model)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_forms_of_prompts() -> None:
    assert separate(np.array([4, 5])) == [[4, 5]]
    assert separate(("a", "b")) == ["a", "b"]
    assert separate([]) == []
    assert [list(p) for p in separate(np.array([[1, 2], [3, 4]]))] == [[1, 2], [3, 4]]
    assert checked_ids("f", "a", np.array([3, 1], np.uint8), 4, 2) == [3, 1]
    assert checked_ids("f", "a", [], 4, 2) == []


def test_length_is_cut_at_the_maximum() -> None:
    """P65: a prompt as long as the model goes may still have one token, for that is never stored."""
    made = make_requests([[1] * 64, [1] * 60, [1]], 9, lambda text: [], 70, 64)
    assert [request.max_tokens for request in made] == [1, 5, 9]
    assert made[2] == Request((1,), 9)


def test_no_prompts(model: Model) -> None:
    assert model.generate([]) == []


def test_texts_need_a_tokenizer_and_chat_a_template() -> None:
    pytest.importorskip("tokenizers")
    tiny = load_model("tiny")
    assert tiny.encode("the tea.") == tiny.encode("the tea.", chat=False)
    assert tiny.decode(tiny.encode("the tea.")) == "the tea."
    with pytest.raises(ContractError, match="no chat template"):
        tiny.generate("the tea.", chat=True)
    for wrong in ({"chat": "no"}, {"ignore_eos": 1}):
        with pytest.raises(ContractError, match="is no truth value"):
            tiny.generate([1, 2], **wrong)


@pytest.mark.parametrize("wrong", ["a", 1.5, None, True, 0, -3, 2**70, [1]])
def test_counts_are_whole(model: Model, wrong: Any) -> None:
    for name in ("tokens_per_step", "page_size"):
        for call in (
            lambda name=name: model.logits([1, 2], **{name: wrong}),
            lambda name=name: model.generate([1, 2], max_tokens=1, **{name: wrong}),
        ):
            with pytest.raises(ContractError, match=f"{name} .*, got .*, need ") as error:
                call()
            assert "\n" not in str(error.value)
    assert len(model.generate([1, 2], max_tokens=1, tokens_per_step=np.int64(1), page_size=np.int8(3))) == 1


def test_a_pool_beyond_every_address_is_refused(model: Model) -> None:
    with pytest.raises(ContractError, match="num_frames makes a pool too large"):
        model.cache(2**31 - 1, page_size=2**31 - 1)
