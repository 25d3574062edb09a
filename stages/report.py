"""report: every finished output -> one self-contained page and the data of its plots.

Output: report.html (no script, nothing loaded) and CSV files with one observation a row. The page and the files are the same
bytes for the same inputs. A number that overflowed or was never measured is named as such and enters no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from stages.config import Section
from stages.context import Context
from stages.reporting import comparisons, corpus, curves, exports, inputs, lineage, plots, provenance, results, samples
from stages.reporting.comparisons import Change, Score, TaskRow
from stages.reporting.inputs import Corpus, Evaluation, Export
from stages.reporting.page import Part, document
from stages.runner import main

TRAINED = {"base": "pretrain", "sft": "sft", "rl": "rl"}
"""Evaluated model -> the training stage that made it, in pipeline order."""
ROOT = Path(__file__).resolve().parents[1]


class Config(Section):
    """Settings of the report."""

    title: str = Field(min_length=1)
    """Heading of the page."""
    sample_answers: int = Field(ge=0)
    """Problems whose answers are shown side by side."""
    sample_characters: int = Field(ge=1)
    """Longest text shown of a prompt or an answer; the page says how much is left out."""
    curve_points: int = Field(ge=2)
    """Most points of a curve; more are averaged in groups, and their range is drawn behind the line."""
    export_margin: float = Field(gt=0, lt=1)
    """Loss of accuracy that an export may have at most, as a share; it must be excluded by the 95 % interval."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything the page shows, read and compared."""

    trained: tuple[str, ...]
    formats: tuple[str, ...]
    evaluations: Mapping[str, Evaluation]
    scores: Mapping[str, Score]
    changes: tuple[Change, ...]
    tasks: tuple[TaskRow, ...]
    exports: tuple[Export, ...]
    corpus: Corpus
    curves: Mapping[str, Mapping[str, curves.Points]]
    num_parameters: int


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """Which models the page compares, for the dry run."""
    return {"models": [*TRAINED, *export_formats(ctx)]}


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Read the outputs, write the page and the plot data."""
    found = gather(ctx)
    (ctx.out / "report.html").write_text(render(cfg, ctx, found), encoding="utf-8")
    write_plots(ctx.out, found)
    ctx.note(f"report.html compares {', '.join(found.scores)} on {len(found.evaluations[found.trained[0]].records)} problems")
    return headline(found)


def export_formats(ctx: Context) -> list[str]:
    """Formats among the declared inputs, in the order in which dvc.yaml has them."""
    return [name.removeprefix("export/") for name in ctx.deps if name.startswith("export/")]


def gather(ctx: Context) -> Findings:
    """Read and compare. StageError when an output is missing, unreadable, or evaluated under other settings than the rest."""
    trained, formats = tuple(TRAINED), tuple(export_formats(ctx))
    evaluations = {model: inputs.read_evaluation(model, ctx.dep(f"evaluate/{model}")) for model in (*trained, *formats)}
    inputs.check_comparable(evaluations)
    records = {model: evaluation.records for model, evaluation in evaluations.items()}
    return Findings(
        trained=trained,
        formats=formats,
        evaluations=evaluations,
        scores={model: comparisons.score(model, rows) for model, rows in records.items()},
        changes=tuple(comparisons.changes(records, comparisons.neighbours(trained, formats), ctx.seed)),
        tasks=tuple(comparisons.by_task(records, trained[0], trained[-1])),
        exports=tuple(inputs.read_export(name, ctx.dep(f"export/{name}")) for name in formats),
        corpus=inputs.read_corpus(ctx.dep("prepare"), ctx.dep("tokenize")),
        curves={stage: curves.read_curves(ctx.dep(stage)) for stage in TRAINED.values()},
        num_parameters=inputs.count_parameters(ctx.dep(TRAINED[trained[-1]]) / "model" / "model.safetensors"),
    )


def render(cfg: Config, ctx: Context, found: Findings) -> str:
    """The page."""
    trained = {model: found.evaluations[model] for model in found.trained}
    summary = results.summary(
        found.scores, found.changes, found.evaluations, found.exports, found.trained, found.num_parameters, len(found.tasks)
    )
    parts = [
        results.accuracy(found.scores, found.changes, found.evaluations),
        curves.section(found.curves, cfg.curve_points, found.corpus.unigram_bpb),
        results.tasks(found.tasks, found.trained, found.formats),
    ]
    if found.exports:
        against = {change.after: change for change in found.changes}
        parts.append(exports.section(found.exports, found.scores, against, found.trained[-1], cfg.export_margin))
    if cfg.sample_answers:
        chosen = samples.choose(found.evaluations[found.trained[0]].records, cfg.sample_answers, ctx.seed)
        parts.append(samples.section(trained, chosen, cfg.sample_characters))
    return document(cfg.title, summary, [*parts, corpus.section(found.corpus), lineage_part(cfg, ctx, found.corpus.interpreter)])


def lineage_part(cfg: Config, ctx: Context, interpreter: str) -> Part:
    """Commit, hashes, parameters (those of this stage too) and versions."""
    folders = {name: ctx.dep(name) for name in ctx.deps}
    parameters = lineage.parameters(folders)
    parameters["report"] = lineage.as_parameters("report", cfg.model_dump())
    return provenance.section(lineage.code_state(ROOT), lineage.origins(folders), parameters, lineage.software(), interpreter)


def write_plots(out: Path, found: Findings) -> None:
    """CSV files beside the page."""
    plots.write_csv(out / "accuracy.csv", ("model", *plots.SCORE_COLUMNS), plots.accuracy_rows(found.scores))
    plots.write_csv(out / "tasks.csv", ("task", "model", *plots.SCORE_COLUMNS), plots.task_rows(found.tasks))
    plots.write_csv(out / "export_accuracy.csv", plots.EXPORT_COLUMNS, plots.export_rows(found.exports, found.scores))
    plots.write_csv(out / "export_divergence.csv", plots.DIVERGENCE_COLUMNS, plots.divergence_rows(found.exports))
    for spec in curves.SPECS:
        for metric, _ in spec.metrics:
            rows = curves.table_rows(metric, found.curves[spec.stage].get(metric, ()))
            plots.write_csv(out / f"{spec.stage}_{metric}.csv", ("step", metric), rows)


def headline(found: Findings) -> dict[str, float]:
    """The scalars that pipeline runs are compared by. An accuracy gain is a difference of shares; p is McNemar's, uncorrected."""
    accuracy = {f"accuracy_{model}": score.interval.estimate for model, score in found.scores.items()}
    steps = {}
    for change in found.changes:
        if change.after in found.trained:
            steps[f"gain_{change.after}_over_{change.before}"] = change.comparison.greedy_difference
            steps[f"p_{change.after}_over_{change.before}"] = change.comparison.greedy_p_value
        else:
            steps[f"{change.after}_accuracy_drop"] = change.comparison.greedy_a - change.comparison.greedy_b
    base = found.evaluations[found.trained[0]]
    return {**accuracy, **steps, "bpb_gain_over_unigram": base.unigram_bpb - base.bits_per_byte, "problems": len(base.records)}


if __name__ == "__main__":
    raise SystemExit(main("report", Config, run, plan))
