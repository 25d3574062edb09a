"""Chats: shape, shares, right answers, no repeats."""

from __future__ import annotations

import pytest

from data.conversations import SYSTEM_PROMPTS, build_chats
from data.problems import ProblemSource
from data.tasks import extract_answer

SOURCE = ProblemSource(seed=5, tasks={"addition": 1.0, "sorting": 1.0, "reversal": 1.0}, val_fraction=0.1, test_fraction=0.1)


def test_chats_have_the_asked_shapes() -> None:
    chats, repeats = build_chats(SOURCE, "train", 400, system_fraction=0.25, multi_turn_fraction=0.1)
    assert len(chats) == 400 == len({chat["id"] for chat in chats}) and repeats >= 0
    with_system = [chat for chat in chats if chat["messages"][0]["role"] == "system"]
    multi = [chat for chat in chats if chat["source"] == "multi_turn"]
    assert 70 <= len(with_system) <= 130 and 20 <= len(multi) <= 60
    assert {chat["messages"][0]["content"] for chat in with_system} == set(SYSTEM_PROMPTS)
    for chat in chats:
        turns = [m["role"] for m in chat["messages"] if m["role"] != "system"]
        assert turns == ["user", "assistant"] * (len(turns) // 2)
        assert len(turns) > 2 if chat in multi else len(turns) == 2 and chat["source"] in SOURCE.tasks
        assert all(extract_answer(m["content"]) for m in chat["messages"] if m["role"] == "assistant")


def test_none_or_all_have_a_system_message() -> None:
    for fraction in (0.0, 1.0):
        chats, _ = build_chats(SOURCE, "val", 30, system_fraction=fraction, multi_turn_fraction=1 - fraction)
        assert {chat["messages"][0]["role"] == "system" for chat in chats} == {bool(fraction)}
        assert {chat["source"] == "multi_turn" for chat in chats} == {not fraction}


def test_data13_chats_of_two_splits_share_no_question() -> None:
    chats = [build_chats(SOURCE, split, 300, system_fraction=0.5, multi_turn_fraction=0.5)[0] for split in ("train", "test")]
    asked = [{message["content"] for chat in part for message in chat["messages"] if message["role"] == "user"} for part in chats]
    assert not asked[0] & asked[1]


def test_more_chats_extend_the_same_list() -> None:
    few, many = (build_chats(SOURCE, "train", n, system_fraction=0.2, multi_turn_fraction=0.2)[0] for n in (10, 20))
    assert many[:10] == few


def test_too_few_distinct_chats_are_refused() -> None:
    tiny = ProblemSource(seed=5, tasks={"multiplication": 1.0}, val_fraction=0.05, test_fraction=0.1)
    with pytest.raises(ValueError, match="distinct val chats in .* draws, 250 are asked for; lower prepare.num_chats"):
        build_chats(tiny, "val", 250, system_fraction=0.0, multi_turn_fraction=0.0)
