"""Training, the tokenizer folder, and encoding of plain text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from data.chat import CHAT_TEMPLATE
from data.tokenizer import (
    CONTROL_TOKENS,
    SMALLEST_VOCAB,
    as_tokens,
    check_fingerprint,
    control_ids,
    fingerprint,
    load_tokenizer,
    plain_encoder,
    save_tokenizer,
    token_dtype,
    train_bpe,
)
from tests.data.toy_tokens import VOCAB, toy_texts, toy_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tokenizer(tmp_path / "tokenizer", train_bpe(toy_texts(), 400, 2), CHAT_TEMPLATE)
    return tmp_path / "tokenizer"


def test_control_tokens_come_first_and_the_vocabulary_has_the_size_asked_for() -> None:
    tokenizer = toy_tokenizer()
    assert control_ids(tokenizer) == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<think>": 3, "</think>": 4}
    assert len(tokenizer) == VOCAB
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == ("<|im_end|>", "<|endoftext|>", None)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_every_string_round_trips(text: str) -> None:
    [ids] = plain_encoder(toy_tokenizer()).encode([text])
    assert toy_tokenizer().decode(ids, skip_special_tokens=False) == text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(CONTROL_TOKENS), st.text(max_size=6)), max_size=8).map("".join))
def test_spelled_control_tokens_stay_text(text: str) -> None:
    """DATA-10: no control id comes from text, and the text is unharmed."""
    [ids] = plain_encoder(toy_tokenizer()).encode([text])
    assert not set(ids.tolist()) & set(control_ids(toy_tokenizer()).values())
    assert toy_tokenizer().decode(ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens() -> None:
    [ids] = plain_encoder(toy_tokenizer()).encode(["2024 = 17"])
    assert [toy_tokenizer().decode([i]) for i in ids] == ["2", "0", "2", "4", " =", " ", "1", "7"]


def test_think_tags_survive_skipping_special_tokens() -> None:
    """As in Qwen3: a client that drops special tokens can still part reasoning and answer."""
    tokenizer = toy_tokenizer()
    ids = [*control_ids(tokenizer).values(), *plain_encoder(tokenizer).encode(["hi"])[0]]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think></think>hi"


def test_tokenizer_adds_nothing_of_its_own() -> None:
    """DATA-07: no start or end token beside those the template prints."""
    tokenizer = toy_tokenizer()
    assert tokenizer("def f")["input_ids"] == plain_encoder(tokenizer).encode(["def f"])[0].tolist()


def test_training_gives_the_same_bytes_on_any_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for threads in ("false", "true", "false"):
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", threads)
        save_tokenizer(tmp_path / "t", train_bpe(toy_texts(), 500, 2), CHAT_TEMPLATE)
        written.append([path.read_bytes() for path in sorted((tmp_path / "t").iterdir())])
        shutil.rmtree(tmp_path / "t")
    assert written[0] == written[1] == written[2]


def test_a_vocabulary_the_text_cannot_fill_is_refused_with_the_size_reached() -> None:
    """"abab" x 3 merges to ab, abab and no further: 261 + 2 entries."""
    with pytest.raises(ValueError, match="supports only 263 entries.*set vocab_size to 263 or less"):
        train_bpe(["abab", "abab", "abab"], 300, 2)
    assert train_bpe(["abab", "abab", "abab"], 263, 2).get_vocab_size() == 263


def test_a_vocabulary_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match=f"expected at least {SMALLEST_VOCAB}"):
        train_bpe(["a"], 260, 1)


def test_folder_loads_with_auto_classes(folder: Path) -> None:
    ours, auto = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n"
    assert auto(text)["input_ids"] == ours(text)["input_ids"]
    assert auto.chat_template == CHAT_TEMPLATE


def test_fingerprint_follows_content_not_formatting(folder: Path, tmp_path: Path) -> None:
    """SFT-04: what transformers saves again is the same tokenizer; a changed template or merge is not."""
    before = fingerprint(folder)
    load_tokenizer(folder).save_pretrained(tmp_path / "again")
    assert fingerprint(tmp_path / "again") == before
    check_fingerprint(tmp_path / "again", before)

    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": CHAT_TEMPLATE + " "}))
    assert fingerprint(folder)["tokenizer"] == before["tokenizer"]
    with pytest.raises(ValueError, match="template in .* differ"):
        check_fingerprint(folder, before)


def test_another_training_text_gives_another_fingerprint(folder: Path, tmp_path: Path) -> None:
    """DATA-12."""
    save_tokenizer(tmp_path / "other", train_bpe(toy_texts()[:1], 400, 2), CHAT_TEMPLATE)
    with pytest.raises(ValueError, match="tokenizer in .* differ"):
        check_fingerprint(tmp_path / "other", fingerprint(folder))


def test_incomplete_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tokenizer.json"):
        load_tokenizer(tmp_path / "absent")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="no chat template"):
        load_tokenizer(folder)


def test_a_tokenizer_without_the_control_tokens_is_refused(folder: Path) -> None:
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["content"] != "</think>"]
    definition["model"]["vocab"]["unthink"] = definition["model"]["vocab"].pop("</think>")
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["added_tokens_decoder"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="lacks the control token.*</think>"):
        load_tokenizer(folder)


def test_storage_type_follows_the_vocabulary() -> None:
    """DATA-04: 16 bits hold ids up to 65,535."""
    assert token_dtype(65_535) is np.uint16
    assert token_dtype(65_536) is token_dtype(70_000) is np.uint32
    wide = [65_534, 65_535, 65_536, 65_537, 69_999]
    assert as_tokens(wide, 70_000).tolist() == wide


@pytest.mark.parametrize("bad", [[0, 600], [-1, 3], [70_000]])
def test_ids_outside_the_vocabulary_are_refused(bad: list[int]) -> None:
    """DATA-04."""
    with pytest.raises(ValueError, match="outside the vocabulary of 600"):
        as_tokens(bad, 600)


def test_real_text_round_trips(shared_data: Path) -> None:
    text = (shared_data / "text" / "tinyshakespeare.txt").read_text(encoding="utf-8")[:200_000]
    encoder = plain_encoder(toy_tokenizer())
    [ids] = encoder.encode([text])
    assert encoder.bpe.encode(text).ids == ids.tolist()
    assert toy_tokenizer().decode(ids) == text
