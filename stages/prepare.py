"""prepare: recipes and tasks -> clean text, chats and problems in three disjoint splits.

In: the standard library, procedural tasks, your own files (`mixture`). Out: text/, chat/ and problems/{train,val,test}.jsonl and a
report.json in which records in = kept + dropped by reason, for every source. The same bytes come out whatever the number of
workers, and after any interruption.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator

from data.cleaning.contamination import EvaluationIndex, build_index
from data.corpus import BYTES_PER_TOKEN, DROPS, Source, merge, plan_jobs, read_jobs
from data.pieces import shared_setting
from data.prepared import check_written, held_out_items, held_out_questions, write_chats, write_problems
from data.problems import ProblemSource
from data.recipes import stdlib
from data.recipes.index import find_recipe
from data.recipes.recipe import Recipe, Scope
from data.sources import expand_paths
from data.split import SPLITS
from data.tasks import find_task
from stages.atomic import write_json
from stages.config import Section, StageError
from stages.context import Context
from stages.identity import find_stage
from stages.mixture import MixingOptions, PhaseOptions, by_size, check_mixture, make_cleaning, phase_targets, source_targets


class MixtureEntry(Section):
    """One source of pretraining text."""

    recipe: str
    """A name in data/recipes: local, problems, stdlib."""
    weight: float | None = Field(gt=0)
    """Share of text_tokens, relative to the other sources' weights. null for all: shares follow from sizes, or from `phases`."""
    options: dict[str, Any]
    """The recipe's own options: exactly the fields of its class."""
    cleaning: dict[str, Any] = Field(default_factory=dict)
    """Fields of data/cleaning/policy.py: unicode, rules, languages, near_duplicates, contamination, pii. Empty: nothing is changed."""
    repeat_cap: int = Field(default=1, gt=0)
    """Most passes over the source when it has less than its share; only whole passes are made."""

    @field_validator("options")
    @classmethod
    def _options_fit_recipe(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        make_recipe(info.data.get("recipe", ""), options)
        return options

    @field_validator("cleaning")
    @classmethod
    def _cleaning_is_known(cls, cleaning: dict[str, Any]) -> dict[str, Any]:
        make_cleaning(cleaning)
        return cleaning


class SplitCounts(Section):
    """How many problems each split has."""

    train: int = Field(gt=0)
    """Prompts for RL."""
    val: int = Field(gt=0)
    """Held out, looked at while training."""
    test: int = Field(gt=0)
    """Held out, for the final evaluation."""


class Config(Section):
    """Parameters of prepare."""

    text_tokens: int = Field(gt=0)
    """Size of the pretraining text in estimated tokens (UTF-8 bytes / 4); the report states what was realised."""
    mixture: dict[str, MixtureEntry] = Field(min_length=1)
    """Source name -> recipe, weight, options. A source with less than its share is used once, whole, unless its repeat_cap allows more."""
    mixing: MixingOptions
    """How weights become shares."""
    phases: list[PhaseOptions]
    """Mixtures that follow each other, instead of the weights of `mixture`; empty: one mixture throughout."""
    tasks: dict[str, float] = Field(min_length=1)
    """Task name (data/tasks) -> weight among the problems of text, chats, RL and evaluation."""
    num_problems: SplitCounts
    """Problems for RL and evaluation."""
    num_chats: int = Field(gt=0)
    """Conversations over all splits."""
    system_fraction: float = Field(ge=0, le=1)
    """Share of chats that open with a system message."""
    multi_turn_fraction: float = Field(ge=0, le=1)
    """Share of chats with two or three questions."""
    val_fraction: float = Field(gt=0, lt=1)
    """Share of documents, chats and each task's problems that is held out for looking at while training."""
    test_fraction: float = Field(gt=0, lt=1)
    """Share that is held out for the final evaluation."""
    workers: int = Field(gt=0)
    """Processes that read text. Moves the time only, never a byte of the output."""

    @field_validator("mixture")
    @classmethod
    def _plain_names(cls, mixture: dict[str, MixtureEntry]) -> dict[str, MixtureEntry]:
        bad = [name for name in mixture if not name.replace("_", "").replace("-", "").isalnum()]
        if bad:
            raise ValueError(f"source names of letters, digits, - and _ only, not {bad}")
        return mixture

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, tasks: dict[str, float]) -> dict[str, float]:
        for name in tasks:
            find_task(name)
        if min(tasks.values()) < 0 or sum(tasks.values()) <= 0:
            raise ValueError("weights of at least zero, one of them above it")
        return tasks

    @model_validator(mode="after")
    def _phases_fit_the_mixture(self) -> Config:
        check_mixture(self.text_tokens, self.weights(), [name for name, entry in self.mixture.items() if entry.recipe == "problems"], self.phases)
        return self

    @model_validator(mode="after")
    def _leave_some_for_training(self) -> Config:
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(f"val_fraction + test_fraction below 1, not {self.val_fraction + self.test_fraction}")
        return self

    def weights(self) -> dict[str, float | None]:
        """Source name -> weight."""
        return {name: entry.weight for name, entry in self.mixture.items()}


def make_recipe(name: str, options: dict[str, Any]) -> Recipe:
    """A recipe from its options. ValueError for an unknown name, an unknown or missing option, or a wrong type."""
    try:
        # as JSON, because strict validation takes an object of the class or JSON, not a mapping
        return TypeAdapter(find_recipe(name)).validate_json(json.dumps(options, default=str))
    except ValidationError as error:
        issues = "; ".join(f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors())
        raise ValueError(f"options of recipe '{name}': {issues}") from None


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """What the mixture asks for, before anything is read."""
    return {"text_tokens": {s.name: s.scope.target_bytes // BYTES_PER_TOKEN for s in text_sources(cfg, ctx.seed)}, "chats": chat_counts(cfg)}


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Write the three data sets and the report. StageError for anything wrong with the inputs."""
    try:
        check_declared(cfg, Path.cwd())
        report = {"interpreter": check_interpreter(cfg), "packages": task_packages(cfg)}
        problems = problem_source(cfg, ctx.seed)
        report["problems"] = write_problems(problems, cfg.num_problems.model_dump(), ctx.out / "problems")
        report["chat"] = write_chats(problems, chat_counts(cfg), ctx.out / "chat", system_fraction=cfg.system_fraction,
                                     multi_turn_fraction=cfg.multi_turn_fraction)
        report["text"] = write_text(cfg, ctx)
        report["overlap"] = check_written(ctx.out)
    except StageError:
        raise
    except ValueError as error:
        raise StageError(f"prepare: {error}") from error
    write_json(ctx.out / "report.json", report)
    tell(report, ctx.note)
    return metrics(report)


def check_interpreter(cfg: Config) -> dict[str, object] | None:
    """Identity of the Python whose library is read, or None when it is not. StageError when it is not the recorded one."""
    if all(entry.recipe != "stdlib" for entry in cfg.mixture.values()):
        return None
    changes = stdlib.difference(stdlib.RECORD)
    if changes:
        raise StageError(f"this Python is not the one in data/interpreter.json ({'; '.join(changes)}); "
                         "record it with `python -m data.recipes.stdlib`, then run `dvc repro` again")
    return stdlib.identity()


def check_declared(cfg: Config, root: Path) -> None:
    """StageError when a local file is read that dvc.yaml does not name: an edit of it would go unnoticed.

    A linked file is fine; a file reached through a linked folder is not, because DVC does not look into one.
    """
    paths = [path for entry in cfg.mixture.values() if entry.recipe == "local" for path in expand_paths(entry.options["paths"])]
    if not paths:
        return
    declared = [root / dep for dep in find_stage(root, "prepare", None).deps]
    for path in paths:
        whole = root / path
        if not any(whole == dep or whole.parent.resolve().is_relative_to(dep.resolve()) for dep in declared):
            raise StageError(f"prepare.mixture reads {path}, which is not among the deps of stage prepare in dvc.yaml, so its edits would go unnoticed; "
                             "put the file (or a link to it, not to its folder) into data/raw, or add its path to the deps")


def task_packages(cfg: Config) -> dict[str, str]:
    """Versions of the packages that generate problems."""
    return {"reasoning_gym": version("reasoning_gym")} if any(name.startswith("rg_") for name in cfg.tasks) else {}


def problem_source(cfg: Config, seed: int) -> ProblemSource:
    return ProblemSource(seed=seed, tasks=cfg.tasks, val_fraction=cfg.val_fraction, test_fraction=cfg.test_fraction)


def text_sources(cfg: Config, seed: int) -> list[Source]:
    """The mixture with each source's share of the budget, by name, so that the order of keys in params.yaml does not matter."""
    problems, targets = problem_source(cfg, seed), source_targets(cfg.text_tokens, cfg.weights(), cfg.mixing, cfg.phases)
    return [Source(name=name, recipe=make_recipe(entry.recipe, entry.options), scope=Scope(target_bytes=targets[name], problems=problems),
                   cleaning=make_cleaning(entry.cleaning), repeat_cap=entry.repeat_cap)
            for name, entry in sorted(cfg.mixture.items())]


def chat_counts(cfg: Config) -> dict[str, int]:
    """Chats per split. StageError when one would be empty."""
    counts = {"val": round(cfg.num_chats * cfg.val_fraction), "test": round(cfg.num_chats * cfg.test_fraction)}
    counts["train"] = cfg.num_chats - sum(counts.values())
    if min(counts.values()) < 1:
        raise StageError(f"prepare.num_chats={cfg.num_chats} gives {counts}; expected at least one chat a split: raise it or the fractions")
    return counts


def write_text(cfg: Config, ctx: Context) -> dict[str, object]:
    """text/{split}.jsonl; returns counts per source and split."""
    held_out = held_out_questions(ctx.out / "problems")
    sources = text_sources(cfg, ctx.seed)
    jobs = plan_jobs(sources, ctx.work / "text")
    progress = ctx.progress(len(jobs), "parts", "text")
    resumed = read_jobs(jobs, held_out, cfg.workers, progress.advance, evaluation_index(sources, ctx.out / "problems"))
    if resumed:
        ctx.note(f"{resumed} of {len(jobs)} parts of text were already read by an interrupted run")
    facts = merge(jobs, ctx.out / "text", val_fraction=cfg.val_fraction, test_fraction=cfg.test_fraction, seed=ctx.seed,
                  phases=phase_targets(cfg.phases, cfg.mixing), by_size=by_size(cfg.text_tokens, cfg.weights(), cfg.mixing, cfg.phases))
    shutil.rmtree(ctx.work / "text")  # as large as the corpus, and from here on the output holds it
    tokens = sum(source["tokens"] + source.get("repeated_tokens", 0) for source in facts["sources"].values())
    repeats = sum(source.get("repeated_documents", 0) for source in facts["sources"].values())
    return {**facts, "asked_tokens": cfg.text_tokens, "tokens": tokens, "token_estimate": f"UTF-8 bytes / {BYTES_PER_TOKEN}", "repeats": repeats}


def evaluation_index(sources: list[Source], problems: Path) -> EvaluationIndex | None:
    """What text must not quote of the held-out problems, when a source asks for it."""
    settings = shared_setting(sources, "contamination")
    return build_index(held_out_items(problems), settings.ngram) if settings else None


def tell(report: dict, note: Callable[[str], None]) -> None:
    """The report in a few lines, shortfalls first."""
    for name, source in report["text"]["sources"].items():
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in source["dropped"].items() if count) or "none"
        note(f"text '{name}': {source['kept']:,} of {source['records']:,} records, about {source['tokens']:,} tokens "
             f"({source['share']:.1%} of the text, {source['asked_share']:.1%} asked); dropped: {dropped}")
        if source["missing_tokens"]:
            note(f"text '{name}' is {source['missing_tokens']:,} tokens short of its share; "
                 + (f"it is used {source['epochs']} times" if source.get("repeated_documents") else "nothing is repeated to fill it"))
    for phase in report["text"].get("phases", ()):
        mixture = ", ".join(f"{name} {source['share']:.1%}" for name, source in phase["sources"].items() if source["documents"])
        note(f"phase '{phase['name']}': about {phase['tokens']:,} of {phase['asked_tokens']:,} tokens asked; {mixture}")


def metrics(report: dict) -> dict[str, float]:
    """The counts worth comparing between runs."""
    sources = report["text"]["sources"].values()
    cleaned = sum(count for s in sources for reason, count in s["dropped"].items() if reason not in DROPS)
    return {
        "text_documents": sum(s["kept"] for s in sources),
        "text_tokens": report["text"]["tokens"],
        "text_missing_tokens": sum(s["missing_tokens"] for s in sources),
        **{f"dropped_{reason}": sum(s["dropped"][reason] for s in sources) for reason in DROPS},
        **({"dropped_cleaning": cleaned} if cleaned else {}),
        **{f"chats_{split}": report["chat"][split]["kept"] for split in SPLITS},
        **{f"problems_{split}": report["problems"][split]["kept"] for split in SPLITS},
    }


if __name__ == "__main__":
    # here, not at the top: worker processes import this module again and need neither the runner nor torch
    from stages.runner import main

    raise SystemExit(main("prepare", Config, run, plan))
