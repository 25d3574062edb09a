"""prepare: recipes and tasks -> clean text, chats and problems in three disjoint splits.

In: the standard library, procedural tasks, and your own text, chats, preferences and prompts, from files, buckets, the hub or MDS
shards (`mixture`). Out: text/, chat/, problems/ and, where a source holds any, preference/{train,val,test}.jsonl, and a report.json
in which records in = kept + dropped by reason, for every source. The same bytes come out whatever the number of workers, and after
any interruption.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from data.cleaning.contamination import EvaluationIndex, build_index
from data.corpus import BYTES_PER_TOKEN, DROPS, Source, merge, plan_jobs, read_jobs
from data.ingest import RecordSource, ingest, plan_pieces, read_pieces
from data.mixture import Found, check_entry, find, is_surely_text, make_recipe
from data.pieces import shared_setting
from data.pool import check_pool
from data.prepared import check_filled, check_written, held_out_items, held_out_questions, owned_questions, write_chats, write_problems
from data.problems import ProblemSource
from data.recipes import stdlib
from data.recipes.index import LOCATIONS
from data.recipes.recipe import Scope
from data.split import SPLITS
from data.tasks import find_task
from stages.atomic import write_json
from stages.config import Section, StageError
from stages.context import Context
from stages.identity import find_stage
from stages.mixture import MixingOptions, PhaseOptions, by_size, check_mixture, make_cleaning, phase_targets, source_targets
from stages.workers import Workers


class MixtureEntry(Section):
    """One source. Text shares text_tokens by weight; chats, preferences and prompts are taken whole, up to their cap."""

    recipe: str
    """A name in data/recipes: bucket, hub, local, mds, problems, saved, stdlib."""
    options: dict[str, Any]
    """The recipe's own options: fields of its class."""
    weight: float | None = Field(default=None, gt=0)
    """Of text, and of text only: its share of text_tokens, relative to the other sources' weights. null for all text: shares follow
    from sizes, or from `phases`."""
    kind: Literal["auto", "text", "chat", "preference", "prompts"] = "auto"
    """What the records are for; auto: what the first ones look like. GSM8K's records are prompts, and chats when this says so."""
    record_format: str = "auto"
    """Shape of the records, a name in data/formats/index.py; auto: what the first ones look like."""
    fields: dict[str, str] = {}
    """Names of the format's fields -> names in these records, where they differ, such as {messages: dialog}."""
    licence: str | None = None
    """Terms under which the data may be used; repeated in the report."""
    cap_records: int | None = Field(default=None, gt=0)
    """Records kept at most, of chats, preferences or prompts; null for all."""
    max_bad_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Records that may not fit the format, malformed lines included, as a fraction of all; more stop the stage. Each is counted and
    its reason reported with the first places. At 0, text stops at the first one, and other kinds once all of them are listed."""
    split: Literal["content", "train", "val", "test"] = "content"
    """Of chats, preferences or prompts: content, by each record's first question; or the one split that takes them all."""
    cleaning: dict[str, Any] = Field(default_factory=dict)
    """Of text: fields of data/cleaning/policy.py: unicode, rules, languages, near_duplicates, contamination, pii. Empty: nothing is changed."""
    repeat_cap: int = Field(default=1, gt=0)
    """Of text: most passes over the source when it has less than its share; only whole passes are made."""

    @field_validator("options")
    @classmethod
    def _options_fit_recipe(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        make_recipe(info.data.get("recipe", ""), options)
        return options

    @model_validator(mode="after")
    def _settings_agree(self) -> MixtureEntry:
        check_entry(self.recipe, self.options, self.kind, self.record_format, self.fields)
        return self

    @field_validator("cleaning")
    @classmethod
    def _cleaning_is_known(cls, cleaning: dict[str, Any]) -> dict[str, Any]:
        make_cleaning(cleaning)
        return cleaning


class SplitCounts(Section):
    """How many problems each split has."""

    train: int = Field(ge=0)
    """Prompts for RL. 0 switches the built-in ones off, where a source gives prompts."""
    val: int = Field(ge=0)
    """Held out, looked at while training."""
    test: int = Field(ge=0)
    """Held out, for the final evaluation."""


class Config(Workers):
    """Parameters of prepare."""

    text_tokens: int = Field(gt=0)
    """Size of the pretraining text in estimated tokens (UTF-8 bytes / 4); the report states what was realised."""
    mixture: dict[str, MixtureEntry] = Field(min_length=1)
    """Source name -> recipe, options and more. Text with less than its share is used once, whole, unless its repeat_cap allows more."""
    mixing: MixingOptions
    """How weights become shares."""
    phases: list[PhaseOptions]
    """Mixtures that follow each other, instead of the weights of `mixture`; empty: one mixture throughout."""
    tasks: dict[str, float] = Field(min_length=1)
    """Task name (data/tasks) -> weight among the problems of text, chats, RL and evaluation."""
    num_problems: SplitCounts
    """Problems for RL and evaluation."""
    num_chats: int = Field(ge=0)
    """Built-in conversations over all splits; 0 switches them off, where a source gives chats."""
    system_fraction: float = Field(ge=0, le=1)
    """Share of chats that open with a system message."""
    multi_turn_fraction: float = Field(ge=0, le=1)
    """Share of chats with two or three questions."""
    val_fraction: float = Field(gt=0, lt=1)
    """Share of documents, chats and each task's problems that is held out for looking at while training."""
    test_fraction: float = Field(gt=0, lt=1)
    """Share that is held out for the final evaluation."""

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
        if all(is_surely_text(entry.recipe, entry.options, entry.kind, entry.fields) for entry in self.mixture.values()):  # else find_sources knows
            self.check_weights({name: entry.weight for name, entry in self.mixture.items()})
        return self

    @model_validator(mode="after")
    def _leave_some_for_training(self) -> Config:
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(f"val_fraction + test_fraction below 1, not {self.val_fraction + self.test_fraction}")
        return self

    def check_weights(self, weights: dict[str, float | None]) -> None:
        """ValueError when the weights of the texts, or the phases, do not fit."""
        check_mixture(self.text_tokens, weights, [name for name in weights if self.mixture[name].recipe == "problems"], self.phases)


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """What the mixture asks for; only first records are read, where an entry leaves its format open."""
    found = find_sources(cfg)
    return {"text_tokens": {s.name: s.scope.target_bytes // BYTES_PER_TOKEN for s in text_sources(cfg, ctx.seed, found)}, "chats": chat_counts(cfg),
            **({"records": records} if (records := {name: f"{source.format.name} ({source.kind})" for name, source in found.items() if source.format}) else {})}


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Write the data sets and the report. StageError for anything wrong with the inputs."""
    try:
        check_declared(cfg, Path.cwd())
        check_pool(cfg.pool())
        found = find_sources(cfg)
        tell_formats(found, ctx.note)
        report = {"interpreter": check_interpreter(cfg), "packages": task_packages(cfg)}
        problems = problem_source(cfg, ctx.seed)
        report["problems"] = write_problems(problems, cfg.num_problems.model_dump(), ctx.out / "problems")
        report["chat"] = write_chats(problems, chat_counts(cfg), ctx.out / "chat", system_fraction=cfg.system_fraction,
                                     multi_turn_fraction=cfg.multi_turn_fraction)
        records = write_records(cfg, ctx, found)
        report["text"] = write_text(cfg, ctx, found)
        report["sources"] = {name: {"licence": cfg.mixture[name].licence, **source.facts(), **counted(name, records, report["text"]["sources"])}
                             for name, source in found.items()}
        report["overlap"] = check_written(ctx.out, records)
        shutil.rmtree(ctx.work / "records", ignore_errors=True)  # not earlier: an attempt that text interrupts reads no record again
    except StageError:
        raise
    except ValueError as error:
        raise StageError(f"prepare: {error}") from error
    write_json(ctx.out / "report.json", report)
    tell(report, ctx.note)
    return metrics(report)


def find_sources(cfg: Config) -> dict[str, Found]:
    """Every entry of the mixture, by name, with what it holds. StageError for a setting that does not suit that."""
    found = {}
    for name, entry in sorted(cfg.mixture.items()):
        try:
            found[name] = find(entry.recipe, entry.options, kind=entry.kind, record_format=entry.record_format, fields=entry.fields)
        except ValueError as error:
            raise StageError(f"prepare.mixture.{name}: {error}") from error
        kind = found[name].kind
        unsuited = [key for key, is_set in (of_records(entry) if kind == "text" else of_text(entry)).items() if is_set]
        if unsuited:
            raise StageError(f"prepare.mixture.{name} holds {kind}, which takes no {' and no '.join(unsuited)}; remove it, or name another kind")
        if kind == "prompts" and name in cfg.tasks:
            raise StageError(f"prepare.mixture.{name} holds prompts under the name of a built-in task; name the source otherwise")
    check_kinds(cfg, {source.kind for source in found.values()})
    try:
        cfg.check_weights(text_weights(cfg, found))
    except ValueError as error:
        raise StageError(f"prepare: {error}; change it in stages/conf") from error
    return found


def of_text(entry: MixtureEntry) -> dict[str, bool]:
    """Settings that only text takes, and whether they are set."""
    return {"weight": entry.weight is not None, "cleaning": bool(entry.cleaning), "repeat_cap": entry.repeat_cap > 1}


def of_records(entry: MixtureEntry) -> dict[str, bool]:
    """Settings that only other kinds take."""
    return {"cap_records": entry.cap_records is not None, "split": entry.split != "content"}


def check_kinds(cfg: Config, kinds: set[str]) -> None:
    """StageError when a kind that later stages need comes from nowhere."""
    needed = {"text": True, "chat": not cfg.num_chats, "prompts": not all(cfg.num_problems.model_dump().values())}
    missing = [kind for kind, is_needed in needed.items() if is_needed and kind not in kinds]
    if missing:
        raise StageError(f"prepare.mixture has no source of {' and '.join(missing)}; add one"
                         + ("" if missing == ["text"] else ", or let built-in ones do (prepare.num_chats, prepare.num_problems above 0)"))


def tell_formats(found: Mapping[str, Found], note: Callable[[str], None]) -> None:
    """What each source with records holds, and how that is known."""
    for name, source in found.items():
        if source.location is not None:
            how = "as its entry says" if source.sampled is None else f"detected from its first {source.sampled} records"
            note(f"source '{name}' holds {source.kind}" + (f" in the format {source.format.name}" if source.format else "") + f", {how}")


def counted(name: str, records: Mapping[str, dict], texts: Mapping[str, dict]) -> dict[str, object]:
    """A source's counts in and out, whatever its kind."""
    return records[name] if name in records else {key: texts[name][key] for key in ("records", "kept", "dropped", "places")}


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
    paths = [path for entry in cfg.mixture.values() if entry.recipe in LOCATIONS for path in make_recipe(entry.recipe, entry.options).local_files()]
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


def text_sources(cfg: Config, seed: int, found: Mapping[str, Found]) -> list[Source]:
    """The texts with each one's share of the budget, by name, so that the order of keys in params.yaml does not matter."""
    problems, targets = problem_source(cfg, seed), source_targets(cfg.text_tokens, text_weights(cfg, found), cfg.mixing, cfg.phases)
    return [Source(name=name, recipe=found[name].text, scope=Scope(target_bytes=targets[name], problems=problems), cleaning=make_cleaning(entry.cleaning),
                   repeat_cap=entry.repeat_cap, max_bad_fraction=entry.max_bad_fraction)
            for name, entry in sorted(cfg.mixture.items()) if name in targets]


def text_weights(cfg: Config, found: Mapping[str, Found]) -> dict[str, float | None]:
    """Name of each text -> weight."""
    return {name: entry.weight for name, entry in cfg.mixture.items() if found[name].text is not None}


def chat_counts(cfg: Config) -> dict[str, int]:
    """Built-in chats per split. StageError when some are asked for and one would be empty."""
    counts = {"val": round(cfg.num_chats * cfg.val_fraction), "test": round(cfg.num_chats * cfg.test_fraction)}
    counts["train"] = cfg.num_chats - sum(counts.values())
    if cfg.num_chats and min(counts.values()) < 1:
        raise StageError(f"prepare.num_chats={cfg.num_chats} gives {counts}; expected at least one chat a split: raise it or the fractions")
    return counts


def write_records(cfg: Config, ctx: Context, found: Mapping[str, Found]) -> dict[str, dict]:
    """Append the sources of chats, preferences and prompts to their kinds' files; returns facts per source."""
    sources = [RecordSource(name=name, location=source.location, format=source.format, fields=entry.fields, cap_records=entry.cap_records,
                            max_bad_fraction=entry.max_bad_fraction, split=entry.split)
               for name, source in found.items() if source.format and (entry := cfg.mixture[name])]
    facts = {}
    if sources:
        pieces = plan_pieces(sources, ctx.work / "records")
        resumed = read_pieces(pieces, cfg.pool(), ctx.progress(len(pieces), "parts", "records").advance)
        if resumed:
            ctx.note(f"{resumed} of {len(pieces)} parts of records were already read by an interrupted run")
        facts = ingest(pieces, ctx.out, owned_questions(ctx.out), val_fraction=cfg.val_fraction, test_fraction=cfg.test_fraction, seed=ctx.seed)
    check_filled(ctx.out, ("chat", "problems"))
    return facts


def write_text(cfg: Config, ctx: Context, found: Mapping[str, Found]) -> dict[str, object]:
    """text/{split}.jsonl; returns counts per source and split."""
    held_out = held_out_questions(ctx.out / "problems")
    sources = text_sources(cfg, ctx.seed, found)
    jobs = plan_jobs(sources, ctx.work / "text")
    progress = ctx.progress(len(jobs), "parts", "text")
    resumed = read_jobs(jobs, held_out, cfg.pool(), progress.advance, evaluation_index(sources, ctx.out / "problems"))
    if resumed:
        ctx.note(f"{resumed} of {len(jobs)} parts of text were already read by an interrupted run")
    facts = merge(jobs, ctx.out / "text", val_fraction=cfg.val_fraction, test_fraction=cfg.test_fraction, seed=ctx.seed,
                  phases=phase_targets(cfg.phases, cfg.mixing), by_size=by_size(cfg.text_tokens, text_weights(cfg, found), cfg.mixing, cfg.phases))
    shutil.rmtree(ctx.work / "text")  # as large as the corpus, and from here on the output holds it
    tokens = sum(source["tokens"] + source.get("repeated_tokens", 0) for source in facts["sources"].values())
    repeats = sum(source.get("repeated_documents", 0) for source in facts["sources"].values())
    return {**facts, "asked_tokens": cfg.text_tokens, "tokens": tokens, "token_estimate": f"UTF-8 bytes / {BYTES_PER_TOKEN}", "repeats": repeats}


def evaluation_index(sources: list[Source], problems: Path) -> EvaluationIndex | None:
    """What text must not quote of the held-out problems, when a source asks for it."""
    settings = shared_setting(sources, "contamination")
    return build_index(held_out_items(problems), settings.ngram) if settings else None


def tell(report: dict, note: Callable[[str], None]) -> None:
    """The report in a few lines."""
    for name, source in report["sources"].items():
        if source["kind"] != "text":
            dropped = ", ".join(f"{count:,} {reason}" for reason, count in source["dropped"].items() if count) or "none"
            note(f"{source['kind']} '{name}': {source['kept']:,} of {source['records']:,} records "
                 f"({', '.join(f'{count:,} {split}' for split, count in source['splits'].items())}); dropped: {dropped}")
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
    added: Counter[tuple[str, str]] = Counter()
    for source in report["sources"].values():
        added.update({(source["kind"], split): count for split, count in source.get("splits", {}).items()})
    cleaned = sum(count for s in sources for reason, count in s["dropped"].items() if reason not in DROPS and reason not in s["places"])
    return {
        "text_documents": sum(s["kept"] for s in sources),
        "text_tokens": report["text"]["tokens"],
        "text_missing_tokens": sum(s["missing_tokens"] for s in sources),
        **{f"dropped_{reason}": sum(s["dropped"][reason] for s in sources) for reason in DROPS},
        **({"dropped_cleaning": cleaned} if cleaned else {}),
        **{f"chats_{split}": report["chat"][split]["kept"] + added["chat", split] for split in SPLITS},
        **{f"problems_{split}": report["problems"][split]["kept"] + added["prompts", split] for split in SPLITS},
        **{f"preferences_{split}": added["preference", split] for split in SPLITS if any(kind == "preference" for kind, _ in added)},
    }


if __name__ == "__main__":
    # here, not at the top: worker processes import this module again and need neither the runner nor torch
    from stages.runner import main

    raise SystemExit(main("prepare", Config, run, plan))
