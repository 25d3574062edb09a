"""What an entry of the mixture turns out to be, and what contradicts itself."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from data.mixture import check_entry, find, make_recipe
from data.problems import ProblemSource
from data.recipes.recipe import Record, Scope
from data.sources.readers import Fault

SCOPE = Scope(target_bytes=1, problems=ProblemSource(seed=0, tasks={}, val_fraction=0.1, test_fraction=0.1))
AUTO = {"kind": "auto", "record_format": "auto", "fields": {}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "body": "b"}\n{"text": null, "body": 3}\n{\n{"text": "\\ud800"}\n')
    (tmp_path / "b.txt").write_text("one\n\ntwo\n")
    return tmp_path


def texts(found, scope: Scope = SCOPE) -> list[Record]:
    return [record for part in found.text.parts(scope) for record in found.text.read(part, scope)]


def test_text_by_detection_by_field_and_by_name(folder: Path) -> None:
    for changes, options, sampled in (({}, {}, 3), ({"kind": "text"}, {}, None), ({}, {"field": "text"}, None), ({"fields": {"text": "text"}}, {}, None)):
        found = find("local", {"paths": [str(folder / "a.jsonl")], **options}, **{**AUTO, **changes})
        assert found.facts() == {"kind": "text", "format": "text", "detected_from": sampled, "revision": None}
        records = texts(found)
        assert [record.text for record in records] == ["a", "", None, None] and [record.fault is None for record in records] == [True, True, False, True]
        assert records[2].fault.reason == "not valid JSON" and records[2].place.endswith("a.jsonl:3")


def test_another_field_and_its_faults(folder: Path) -> None:
    records = texts(find("local", {"paths": [str(folder / "a.jsonl")]}, **{**AUTO, "fields": {"text": "body"}}))
    assert [record.text for record in records] == ["b", None, None, None]
    assert records[1].fault == Fault("field 'body' holds int, expected text")
    assert records[3].fault.at("x") == "x: no field 'body' (got text); name the right one in the option `field`"


def test_plain_text_needs_no_field_and_is_picklable_for_workers(folder: Path) -> None:
    found = find("local", {"paths": [str(folder / "b.txt")], "documents": "paragraph"}, **AUTO)
    assert pickle.loads(pickle.dumps(found.text)) == found.text and [record.text for record in texts(found)] == ["one", "two"]


def test_generators_are_text(folder: Path) -> None:
    assert find("stdlib", {"kind": "docs"}, **AUTO).facts() == {"kind": "text", "format": "text", "detected_from": None, "revision": None}


def test_one_source_may_hold_several_files_of_one_kind(folder: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (folder / "c.jsonl").write_text(json.dumps(chat) + "\n")
    (folder / "d.json").write_text(json.dumps([chat] * 30))
    found = find("local", {"paths": [str(folder / "c.jsonl"), str(folder / "d.json")]}, **AUTO)
    assert (found.format.name, found.sampled) == ("messages", 20)


def test_a_place_without_records_cannot_tell(folder: Path) -> None:
    (folder / "e.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="finds no record to tell the format by; name the kind"):
        find("local", {"paths": [str(folder / "e.jsonl")]}, **AUTO)


@pytest.mark.parametrize(("recipe", "options", "changes", "message"), [
    ("stdlib", {"kind": "docs"}, {"kind": "chat"}, "recipe 'stdlib' makes text; remove kind, record_format and fields"),
    ("problems", {"problems_per_document": 1}, {"fields": {"text": "x"}}, "recipe 'problems' makes text"),
    ("local", {"paths": ["x"], "field": "text"}, {"kind": "chat"}, "the option `field` says that the source is text"),
    ("local", {"paths": ["x"], "field": "text"}, {"fields": {"text": "body"}}, "the option `field` says that the source is text"),
    ("local", {"paths": ["x"]}, {"kind": "text", "record_format": "alpaca"}, "a text source has no record_format"),
    ("local", {"paths": ["x"]}, {"kind": "text", "fields": {"messages": "x"}}, "its one field is `text`"),
    ("local", {"paths": ["x"]}, {"record_format": "chatml"}, "no format 'chatml' of kind auto"),
])
def test_settings_that_contradict_each_other(recipe: str, options: dict, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_entry(recipe, options, **{**AUTO, **changes})


def test_options_are_checked_by_type() -> None:
    with pytest.raises(ValueError, match="options of recipe 'local': paths: Input should be a valid array"):
        make_recipe("local", {"paths": "data/raw"})
    with pytest.raises(ValueError, match="options of recipe 'local': option `encoding`: got 'utf-9'"):
        make_recipe("local", {"paths": ["x"], "encoding": "utf-9"})
