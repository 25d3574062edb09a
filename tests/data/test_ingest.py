"""Records into three disjoint splits: what is counted, what is kept, what the same question does in several places."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.ingest import RecordSource, ingest, plan_pieces, question_digest, read_pieces
from data.mixture import find
from data.pool import Pool
from data.prepared import read_jsonl
from data.split import SPLITS, split_of

FRACTIONS = {"val_fraction": 0.2, "test_fraction": 0.2}


def chat(question: str, answer: str = "a", *more: str) -> dict:
    turns = [question, answer, *more]
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]}


def source(folder: Path, name: str, records: list, cap: int | None = None, bad: float = 0.0, split: str = "content", kind: str = "auto", **fields: str) -> RecordSource:
    path = folder / f"{name}.jsonl"
    path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
    found = find("local", {"paths": [str(path)]}, kind=kind, record_format="auto", fields=fields)
    return RecordSource(name=name, location=found.location, format=found.format, fields=fields, cap_records=cap, max_bad_fraction=bad, split=split)


def run(folder: Path, *sources: RecordSource, asked: dict[str, str] | None = None, seed: int = 1) -> tuple[dict, dict[str, list[dict]]]:
    pieces = plan_pieces(list(sources), folder / "work")
    read_pieces(pieces, Pool(1), lambda: None)
    facts = ingest(pieces, folder / "out", asked or {}, **FRACTIONS, seed=seed)
    written = {path.relative_to(folder / "out").as_posix(): list(read_jsonl(path)) for path in sorted((folder / "out").rglob("*.jsonl"))}
    for facts_of_one in facts.values():
        assert facts_of_one["records"] == facts_of_one["kept"] + sum(facts_of_one["dropped"].values())
    return facts, written


def rows(written: dict[str, list[dict]], kind: str) -> list[dict]:
    return [row for split in SPLITS for row in written[f"{kind}/{split}.jsonl"]]


def test_each_kind_goes_to_its_folder_in_its_form(tmp_path: Path) -> None:
    facts, written = run(tmp_path, source(tmp_path, "c", [chat(f"q{i}") for i in range(50)]),
                         source(tmp_path, "p", [{"prompt": f"q{i}", "chosen": "a", "rejected": "b"} for i in range(50)]),
                         source(tmp_path, "m", [{"question": f"m{i}", "answer": f"w\n#### {i}"} for i in range(50)]))
    assert {name: fact["kept"] for name, fact in facts.items()} == {"c": 50, "p": 50, "m": 50}
    assert rows(written, "chat")[0].keys() == {"id", "source", "messages"} and {row["source"] for row in rows(written, "chat")} == {"c"}
    assert rows(written, "preference")[0].keys() == {"id", "source", "prompt_messages", "chosen", "rejected"}
    assert rows(written, "problems")[0].keys() == {"id", "task", "prompt", "answer", "verifier"} and {row["task"] for row in rows(written, "problems")} == {"m"}
    for folder, asks in (("chat", lambda row: row["messages"][0]["content"]), ("preference", lambda row: row["prompt_messages"][0]["content"]), ("problems", lambda row: row["prompt"])):
        for split in SPLITS:
            assert written[f"{folder}/{split}.jsonl"] and all(split_of(question_digest(asks(row)), **FRACTIONS) == split for row in written[f"{folder}/{split}.jsonl"])


def test_preference_is_written_only_for_a_source_of_it(tmp_path: Path) -> None:
    _, written = run(tmp_path, source(tmp_path, "c", [chat("q")]))
    assert set(written) == {f"chat/{split}.jsonl" for split in SPLITS}


def test_what_is_there_already_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out" / "chat").mkdir(parents=True)
    (tmp_path / "out" / "chat" / "train.jsonl").write_text('{"id": "built-in"}\n')
    _, written = run(tmp_path, source(tmp_path, "c", [chat("q")], split="train"))
    assert [row["id"] == "built-in" for row in written["chat/train.jsonl"]] == [True, False]


def test_data01_every_drop_has_its_reason_and_its_place(tmp_path: Path) -> None:
    """DATA-01: empty records first, in the middle and last are counted, and leave nothing behind."""
    records = [chat("", "a"), *[chat(f"q{i}") for i in range(20)], chat("q0"), "{\"messages\": [}", {"text": "x"}, chat("middle", " "), json.dumps(chat("half ")).replace("half", "half \\ud800"),
               *[{"messages": [{"role": "narrator", "content": str(i)}]} for i in range(7)], chat("last", "")]
    facts, written = run(tmp_path, source(tmp_path, "c", records, bad=0.5))
    assert facts["c"]["dropped"] == {"empty": 3, "undecodable": 1, "duplicate": 1, "contaminated": 0, "over_cap": 0, "not valid JSON": 1,
                                     "turns that are not a list": 1, "unknown role": 7}
    places = {reason: [Path(place).name for place in places] for reason, places in facts["c"]["places"].items()}
    assert places == {"not valid JSON": ["c.jsonl:23"], "turns that are not a list": ["c.jsonl:24"], "unknown role": [f"c.jsonl:{line}" for line in range(27, 32)]}
    assert len(rows(written, "chat")) == 20


def test_too_many_misfits_stop_with_counts_and_places(tmp_path: Path) -> None:
    records = [*[chat(f"q{i}") for i in range(90)], *[{"messages": 3}] * 8, "{", "{"]
    with pytest.raises(ValueError, match=r"source 'c': 10 of 100 records do not fit, above max_bad_fraction=0.09: 2 not valid JSON \(at .*c\.jsonl:99, .*c\.jsonl:100\); "
                                         r"8 turns that are not a list \(at .*c\.jsonl:91, .*c\.jsonl:95, \.\.\.\)\. The first: .*c\.jsonl:91: turns .*raise max_bad_fraction"):
        run(tmp_path, source(tmp_path, "c", records, bad=0.09))
    facts, _ = run(tmp_path / "again", source(tmp_path, "c", records, bad=0.1))
    assert facts["c"]["kept"] == 90
    with pytest.raises(ValueError, match="1 of 2 records do not fit, above max_bad_fraction=0.0"):
        run(tmp_path / "strict", source(tmp_path, "c", [chat("q"), "{"]))


def test_data01_nothing_usable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="source 'c' has no usable record: 3 records, of which 3 empty"):
        run(tmp_path, source(tmp_path, "c", [chat("", "a")] * 3))


def test_a_cap_does_not_depend_on_the_order(tmp_path: Path) -> None:
    records = [chat(f"q{i}") for i in range(60)]
    kept = []
    for number, some in enumerate((records, records[::-1])):
        facts, written = run(tmp_path / str(number), source(tmp_path, "c", some, cap=25))
        assert facts["c"]["kept"] == 25 and facts["c"]["dropped"]["over_cap"] == 35
        kept.append({row["id"] for row in rows(written, "chat")})
    other = {row["id"] for row in rows(run(tmp_path / "seed", source(tmp_path, "c", records, cap=25), seed=2)[1], "chat")}
    assert kept[0] == kept[1] != other
    facts, _ = run(tmp_path / "two", source(tmp_path, "c", records, cap=25), source(tmp_path, "d", records))
    assert facts["d"]["kept"] == 35, "what only the first source's cap left out is no duplicate in the second"


def test_data13_duplicates_across_sources_are_kept_once_and_one_question_has_one_split(tmp_path: Path) -> None:
    """DATA-13: ten duplicated records, and one question under three kinds."""
    questions = [f"q{i}" for i in range(80)]
    facts, written = run(tmp_path, source(tmp_path, "b", [chat(q) for q in questions[:10]] * 2), source(tmp_path, "a", [chat(q) for q in questions]),
                         source(tmp_path, "p", [{"prompt": q, "chosen": "a", "rejected": "b"} for q in questions]),
                         source(tmp_path, "m", [{"prompt": q, "answer": "4"} for q in questions]))
    assert facts["b"]["dropped"]["duplicate"] == 20 and facts["a"]["kept"] == 80 and facts["p"]["dropped"]["contaminated"] == 0
    where: dict[str, set[str]] = {}
    for path, records in written.items():
        for row in records:
            where.setdefault(row.get("prompt") or row.get("messages", row.get("prompt_messages"))[0]["content"], set()).add(path.split("/")[1])
    assert where.keys() == set(questions) and all(len(splits) == 1 for splits in where.values())


def test_a_chat_that_asks_a_held_out_prompt_later_on_is_contaminated(tmp_path: Path) -> None:
    split = {f"q{i}": split_of(question_digest(f"q{i}"), **FRACTIONS) for i in range(80)}
    held, open_ = (next(q for q in split if split[q] == wanted) for wanted in ("test", "train"))
    facts, _ = run(tmp_path, source(tmp_path, "m", [{"prompt": held, "answer": "4"}, {"prompt": open_, "answer": "4"}]),
                   source(tmp_path, "c", [chat(open_, "a", f" {held} ", "b"), chat(open_, "a", open_, "b"), chat(open_, "a", "and then?", "b"), chat(held, "a")]))
    assert facts["c"]["dropped"]["contaminated"] == 1 and facts["c"]["kept"] == 3
    facts, _ = run(tmp_path / "built-in", source(tmp_path, "d", [chat(open_), chat("else")]), asked={question_digest(open_): "val"})
    assert facts["d"]["dropped"]["contaminated"] == 1


def test_a_source_held_out_whole_drops_its_questions_elsewhere(tmp_path: Path) -> None:
    exam = [{"prompt": f"q{i}", "answer": "4"} for i in range(20)]
    facts, written = run(tmp_path, source(tmp_path, "a", [{"prompt": f"q{i}", "answer": "5"} for i in range(40)]), source(tmp_path, "z", exam, split="test"),
                         source(tmp_path, "c", [chat(f"q{i}") for i in range(40)]))
    assert facts["z"]["splits"] == {"train": 0, "val": 0, "test": 20} and facts["a"]["dropped"]["duplicate"] == 20
    assert facts["c"]["dropped"]["contaminated"] > 10 and not {f"q{i}" for i in range(20)} & {row["messages"][0]["content"] for row in written["chat/train.jsonl"]}


def test_fields_are_renamed_and_unused_ones_counted(tmp_path: Path) -> None:
    records = [{"dialog": chat(f"q{i}")["messages"], "score": 1, "messages": "not these"} for i in range(5)] + [{"dialog": chat("q")["messages"], "lang": "en"}]
    facts, written = run(tmp_path, source(tmp_path, "c", records, kind="chat", messages="dialog"))
    assert facts["c"]["unused_fields"] == {"lang": 1, "score": 5} and len(rows(written, "chat")) == 6


def test_a_finished_piece_is_not_read_again_unless_it_changed(tmp_path: Path) -> None:
    pieces = plan_pieces([source(tmp_path, name, [chat(f"{name}{i}") for i in range(3)]) for name in "abc"], tmp_path / "work")
    assert pickle.loads(pickle.dumps(pieces)) == pieces, "another process can read them"
    assert read_pieces(pieces[:2], Pool(1), lambda: None) == 0
    kept = pieces[0].lines.stat().st_mtime_ns
    source(tmp_path, "b", [chat("other")])
    assert read_pieces(pieces, Pool(1), lambda: None) == 1 and pieces[0].lines.stat().st_mtime_ns == kept
    pieces[2].index.unlink()  # as after a kill between the lines and the index
    assert read_pieces(pieces, Pool(1), lambda: None) == 2
    facts = ingest(pieces, tmp_path / "out", {}, **FRACTIONS, seed=1)
    assert {name: fact["records"] for name, fact in facts.items()} == {"a": 3, "b": 1, "c": 3}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["", "q", "r", " q "]), st.sampled_from(["", "a", "b"])), min_size=1, max_size=12), st.permutations(["x", "y"]))
def test_counts_add_up_whatever_comes_and_the_order_of_sources_does_not_matter(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], order: list[str]) -> None:
    folder = tmp_path_factory.mktemp("i")
    sources = {name: source(folder, name, [chat("always"), *[chat(*pair) for pair in pairs], "{"], bad=0.9) for name in order}
    facts, written = run(folder, *sources.values())
    _, again = run(folder / "again", *(sources[name] for name in sorted(order)))
    assert written == again and sum(fact["kept"] for fact in facts.values()) == len(rows(written, "chat")) == len({row["id"] for row in rows(written, "chat")})
