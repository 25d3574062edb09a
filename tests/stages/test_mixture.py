"""The mixture of prepare: cleaning, weights, temperature and phases from params to report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data.cleaning.policy import Cleaning, Contamination, NearDuplicates
from stages.config import StageError, parse_section
from stages.context import Context
from stages.mixture import MixingOptions, PhaseOptions, make_cleaning, phase_targets, source_targets
from stages.prepare import Config, run
from tests.stages.test_prepare import BASE, project, rows, tree  # noqa: F401 - a fixture

NOTES, PROBLEMS = BASE["mixture"]["notes"], BASE["mixture"]["problems"]
WEIGHTLESS = {"notes": {**NOTES, "weight": None}, "problems": {**PROBLEMS, "weight": None}}
PHASES = [{"name": "general", "tokens": 12_000, "weights": {"notes": 1.0, "problems": 3.0}}, {"name": "reasoning", "tokens": 8_000, "weights": {"problems": 1.0}}]


def config(**changes: object) -> Config:
    return parse_section(Config, "prepare", {"prepare": {**BASE, **changes}})


def prepare(folder: Path, **changes: object) -> tuple[dict[str, float], dict, list[str]]:
    """Metrics, report and notes."""
    notes: list[str] = []
    ctx = Context.for_test(folder, "prepare", {}, 7)
    ctx.note = notes.append
    metrics = run(config(**changes), ctx)
    return metrics, json.loads((folder / "out" / "report.json").read_text()), notes


def test_cleaning_from_params_to_report(project: Path) -> None:  # noqa: F811
    """Every setting once; the bytes do not depend on workers; records in = kept + dropped by reason."""
    texts = [f"Note {i} was written by hand{i} on a rainy day, and it is about {' '.join(f'thing{i}x{j}' for j in range(12))}." for i in range(60)]
    texts += [texts[0].replace("rainy", "very rainy indeed"), "int main() { return 0; }", "Mail me at a@b.co, said the note that came from 8.8.8.8."]
    (project / "raw" / "more.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    cleaning = {"unicode": "nfc", "rules": ["c4_curly_bracket"], "languages": ["en"], "near_duplicates": {"threshold": 0.5}, "contamination": {"ngram": 8},
                "pii": ["email", "ip"]}
    mixture = {"notes": {**NOTES, "cleaning": cleaning}, "problems": PROBLEMS}
    metrics, report, notes = prepare(project / "a", mixture=mixture)
    counts = report["text"]["sources"]["notes"]
    assert counts["records"] == counts["kept"] + sum(counts["dropped"].values()) == 123
    assert counts["dropped"]["c4_curly_bracket"] == 1 and counts["dropped"]["near_duplicate"] >= 1
    assert metrics["dropped_cleaning"] == sum(counts["dropped"].get(reason, 0) for reason in ("c4_curly_bracket", "near_duplicate", "language"))
    assert counts["changed"]["masked_email"] == counts["changed"]["masked_ip"] == 1
    assert report["text"]["near_duplicates"]["threshold"] == 0.5 and any("near_duplicate" in note for note in notes)
    prepare(project / "b", mixture=mixture, workers=2)
    assert tree(project / "a" / "out") == tree(project / "b" / "out")


def test_held_out_problems_are_found_inside_a_line(project: Path) -> None:  # noqa: F811
    """The exact check takes a line that equals a question; contamination also finds one inside a sentence."""
    prepare(project / "a")
    problems = [row["prompt"] for split in ("val", "test") for row in rows(project / "a" / "out" / "problems" / f"{split}.jsonl")]
    longer = [prompt for prompt in problems if len(prompt.split()) > 3][:5]
    text = "".join(json.dumps({"text": f"Number {i}: somebody asked, {' '.join(prompt.split())} and went on."}) + "\n" for i, prompt in enumerate(longer))
    (project / "raw" / "quotes.jsonl").write_text(text)
    _, report, _ = prepare(project / "b", mixture={"notes": {**NOTES, "cleaning": {"contamination": {}}}, "problems": PROBLEMS})
    counts = report["text"]["sources"]["notes"]
    assert len(longer) == 5 == counts["dropped"]["contaminated"] and all(quote["items"][0].startswith("problems/") for quote in counts["quotes"])
    _, report, _ = prepare(project / "c")
    assert report["text"]["sources"]["notes"]["dropped"]["contaminated"] == 0


def test_phases_are_written_apart_and_reported(project: Path) -> None:  # noqa: F811
    metrics, report, notes = prepare(project / "a", mixture=WEIGHTLESS, phases=PHASES)
    out = project / "a" / "out" / "text"
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.jsonl")) == ["general/train.jsonl", "reasoning/train.jsonl", "test.jsonl", "val.jsonl"]
    general, reasoning = report["text"]["phases"]
    assert {row["source"] for row in rows(out / "reasoning" / "train.jsonl")} == {"problems"} and reasoning["sources"]["notes"]["documents"] == 0
    assert {row["source"] for row in rows(out / "general" / "train.jsonl")} == {"notes", "problems"}
    assert general["asked_tokens"] == 12_000 and reasoning["asked_tokens"] == 8_000 and reasoning["tokens"] > 6_000
    assert report["text"]["splits"]["train"]["documents"] == sum(s["documents"] for phase in (general, reasoning) for s in phase["sources"].values())
    assert report["overlap"]["documents"] == metrics["text_documents"] and any(note.startswith("phase 'reasoning'") for note in notes)


def test_repeats_are_counted(project: Path) -> None:  # noqa: F811
    mixture = {"notes": {**NOTES, "repeat_cap": 2}, "problems": PROBLEMS}
    once_metrics, once, _ = prepare(project / "a")
    metrics, report, notes = prepare(project / "b", mixture=mixture)
    counts = report["text"]["sources"]["notes"]
    assert counts["epochs"] == 2 and counts["repeated_documents"] == report["text"]["repeats"] > 0 == once["text"]["repeats"]
    assert metrics["text_documents"] == once_metrics["text_documents"] and metrics["text_tokens"] > once_metrics["text_tokens"]
    assert any("it is used 2 times" in note for note in notes)


def test_targets_by_hand() -> None:
    plain, warm = MixingOptions(temperature=1.0), MixingOptions(temperature=2.0)
    assert source_targets(1000, {"a": 9.0, "b": 1.0}, plain, []) == {"a": 3600, "b": 400}
    assert source_targets(1000, {"a": 9.0, "b": 1.0}, warm, []) == {"a": 3000, "b": 1000}
    assert source_targets(1000, {"a": None, "b": None}, warm, []) == {"a": 4000, "b": 4000}
    phases = [PhaseOptions(name="x", tokens=600, weights={"a": 1.0, "b": 1.0}), PhaseOptions(name="y", tokens=400, weights={"b": 1.0})]
    assert [phase.targets for phase in phase_targets(phases, plain)] == [{"a": 1200, "b": 1200}, {"b": 1600}]
    assert source_targets(1000, {"a": None, "b": None}, plain, phases) == {"a": 1200, "b": 2800}


def test_cleaning_settings_become_objects() -> None:
    assert make_cleaning({}) is None
    assert make_cleaning({"near_duplicates": {}, "contamination": {"ngram": 8}}) == Cleaning(near_duplicates=NearDuplicates(), contamination=Contamination(ngram=8))


@pytest.mark.parametrize(("changes", "message"), [
    ({"mixture": {"notes": {**NOTES, "cleaning": {"rules": ["gopher"]}}}}, "prepare.mixture.notes.cleaning: .*unknown rule 'gopher'; expected a family"),
    ({"mixture": {"notes": {**NOTES, "cleaning": {"unicode": "nfd"}}}}, "cleaning: unicode: Input should be 'none', 'nfc' or 'nfkc'"),
    ({"mixture": {"notes": {**NOTES, "cleaning": {"dedupe": True}}}}, "cleaning: dedupe: Unexpected keyword argument"),
    ({"mixture": {"notes": {**NOTES, "cleaning": {"pii": ["name"]}}}}, "cleaning: pii.0: Input should be 'email'"),
    ({"mixture": {"notes": {**NOTES, "cleaning": {"near_duplicates": {"threshold": 2}}}}}, "cleaning: near_duplicates: .*got threshold 2"),
    ({"mixture": {"notes": {**NOTES, "repeat_cap": 0}}}, "prepare.mixture.notes.repeat_cap: got 0"),
    ({"mixing": {"temperature": 0.0}}, "prepare.mixing.temperature: got 0.0"),
    ({"mixture": {"notes": {**NOTES, "weight": None}, "problems": PROBLEMS}}, "a weight for every source or for none, not only for problems"),
    ({"mixture": WEIGHTLESS}, "source problems makes as much as it is asked for, so it has no size to follow: give every source a weight"),
    ({"phases": PHASES}, "with phases, weights stand in the phases: set weight to null for notes, problems"),
    ({"mixture": WEIGHTLESS, "phases": PHASES[:1]}, "phases of 20,000 tokens in all .text_tokens., not 12,000"),
    ({"mixture": WEIGHTLESS, "phases": [PHASES[0], {**PHASES[1], "name": "general"}]}, "phases of different names, not general, general"),
    ({"mixture": WEIGHTLESS, "phases": [PHASES[1], {**PHASES[1], "name": "x", "tokens": 12_000}]}, "source notes has no weight in any phase"),
    ({"mixture": WEIGHTLESS, "phases": [PHASES[0], {**PHASES[1], "weights": {"web": 1.0}}]}, "phase 'reasoning': weights above zero of sources in the mixture .notes, problems."),
    ({"mixture": WEIGHTLESS, "phases": [PHASES[0], {**PHASES[1], "name": "../x"}]}, "prepare.phases.1.name: got '../x'"),
])
def test_mistakes_are_named(changes: dict, message: str) -> None:
    with pytest.raises(StageError, match=message):
        config(**changes)


def test_sources_that_are_compared_must_agree(project: Path) -> None:  # noqa: F811
    mixture = {"a": {**NOTES, "cleaning": {"contamination": {"ngram": 8}}}, "b": {**NOTES, "cleaning": {"contamination": {}}}}
    with pytest.raises(StageError, match="cleaning.contamination differs between sources"):
        prepare(project / "a", mixture=mixture)
