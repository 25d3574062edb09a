"""Run one stage: params -> Config -> run -> published output, metrics and a tracked run.

`python -m stages.NAME [--item ITEM] [--params FILE] [--dry-run]`. This is the only code that reads params, opens the tracked run,
writes metrics files and handles signals. Order of a run: validate, check inputs, lock the resume area, open the tracked run,
call the stage, check that nothing it depends on changed meanwhile, write the manifest, publish by rename. Whatever stops it
before the rename leaves no output behind. Exit codes: 0 done, 2 bad input or configuration, 1 anything else.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.env import offline_env
from stages.atomic import finite_or_text, write_json
from stages.config import ConfigT, Shared, StageError, flatten, parse_section, read_params
from stages.context import Context, Interrupted, Sink, format_seconds
from stages.identity import MANIFEST, OUT_ROOT, Declared, find_stage, fingerprint, hash_dependency, hash_file
from stages.params import edited_keys
from stages.tracking import StageRun, TrackerFailed


class Busy(RuntimeError):
    """The resume area has a live owner: not the user's mistake, and it passes."""


RunFn = Callable[[ConfigT, Context], dict[str, float]]
PlanFn = Callable[[ConfigT, Context], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Job:
    """A validated stage attempt: what runs, on which inputs, and where its result goes."""

    root: Path
    state_root: Path
    declared: Declared
    params: dict[str, object]
    shared: Shared
    fingerprint: str

    @property
    def out(self) -> Path:
        return self.root / OUT_ROOT / self.declared.label.replace("@", "/")

    @property
    def staging(self) -> Path:
        return self.out.with_name(f".{self.out.name}.partial")

    @property
    def work(self) -> Path:
        return self.state_root / "data/work" / self.declared.label / self.fingerprint[:16]

    @property
    def metrics(self) -> Path:
        return self.root / "metrics" / f"{self.declared.label.replace('@', '/')}.json"

    @property
    def last(self) -> Path:
        return self.state_root / "data/work/last" / f"{self.declared.label}.json"

    def deps(self) -> dict[str, Path]:
        prefix = OUT_ROOT.as_posix() + "/"
        return {dep.removeprefix(prefix): self.root / dep for dep in self.declared.deps if dep.startswith(prefix)}


def main(stage: str, cls: type[ConfigT], run: RunFn, plan: PlanFn | None = None, argv: list[str] | None = None) -> int:
    """Command line of a stage; returns the exit code."""
    args = _parse_args(stage, argv)
    for name, value in offline_env(_state_root(Path.cwd())).items():
        os.environ.setdefault(name, value)
    try:
        job, cfg = _prepare(stage, args, cls)
        if args.dry_run:
            _print_plan(job, cfg, plan)
            return 0
        with _exclusive(job.work):
            return _attempt(job, cfg, run)
    except (StageError, Busy, TrackerFailed) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, StageError) else 1


def _parse_args(stage: str, argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m stages.{stage}", description=sys.modules["__main__"].__doc__)
    parser.add_argument("--item", help="matrix item of the stage, such as an export format")
    parser.add_argument("--params", type=Path, help="parameter file (default: params.yaml)")
    parser.add_argument("--dry-run", action="store_true", help="print config, inputs, outputs and estimates, then exit")
    return parser.parse_args(argv)


def _state_root(root: Path) -> Path:
    """Where resume state and the tracker live: the original workspace, even inside a queued or temporary experiment."""
    return Path(os.environ.get("DVC_ROOT") or root).resolve()


def _prepare(stage: str, args: argparse.Namespace, cls: type[ConfigT]) -> tuple[Job, ConfigT]:
    root = Path.cwd()
    params_path = args.params or root / "params.yaml"
    declared = find_stage(root, stage, args.item)
    params = read_params(params_path)
    cfg = parse_section(cls, stage, params)
    shared = parse_section(Shared, "shared", params)
    identity = "dry-run" if args.dry_run else fingerprint(root, stage, args.item, params_path)
    job = Job(root, _state_root(root), declared, {key: params.get(key) for key in declared.params}, shared, identity)
    _explain_params(params_path)
    if not args.dry_run:
        for name, folder in job.deps().items():
            check_complete(name, folder)
    return job, cfg


def _explain_params(path: Path) -> None:
    """Say which values are not the profile's, since a hand edit of params.yaml is lost at the next composition."""
    changed = edited_keys(path)
    if changed and "DVC_EXP_NAME" not in os.environ:
        shown = ", ".join(changed[:6]) + (f" and {len(changed) - 6} more" if len(changed) > 6 else "")
        sys.stderr.write(f"note: {path.name} differs from its profile in {shown}; "
                         "`dvc exp run` composes it anew from stages/conf, so keep lasting changes there\n")


def check_complete(name: str, folder: Path) -> None:
    """StageError unless `folder` is a published output whose files all have the sizes its manifest states."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise StageError(f"input '{name}' at {folder} has no {MANIFEST}, so it is not a finished output; make it again with `dvc repro`")
    for relative, entry in json.loads(manifest.read_text(encoding="utf-8"))["files"].items():
        file = folder / relative
        size = file.stat().st_size if file.is_file() else None
        if size != entry["bytes"]:
            raise StageError(f"input '{name}': {file} has {size} bytes, its manifest says {entry['bytes']}; remove the folder and run `dvc repro`")


@contextmanager
def _exclusive(work: Path) -> Iterator[None]:
    """Hold the resume area. The kernel drops the lock with its owner, so a killed run never blocks the next one."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another process is running this stage with the same inputs ({work} is busy); wait for it or stop it") from None
        yield


def _attempt(job: Job, cfg: ConfigT, run: RunFn) -> int:
    """One tracked attempt. Returns the exit code; the tracked run and the record of the attempt never stay open."""
    started, stop = time.monotonic(), _StopFlag()
    _start_clean(job)
    tracked = StageRun.open(root=job.state_root, stage=job.declared.name, item=job.declared.item, fingerprint=job.fingerprint,
                            params={k: v for key, section in job.params.items() for k, v in flatten(key, section).items()},
                            tags=_tags(job), work=job.work)
    ctx = Context(stage=job.declared.name, item=job.declared.item, seed=job.shared.seed, out=job.staging, work=job.work,
                  deps=job.deps(), sink=_TrackerSink(tracked), stop_requested=stop.is_set)
    status, code, reason, metrics = "FAILED", 1, None, {}
    try:
        with stop.installed():
            metrics = run(cfg, ctx)
        _seal(job, ctx)
        tracked.final(metrics)
        _track_output(tracked, job, ctx.out)
        _publish(job, ctx, metrics)
        status, code = "FINISHED", 0
    except (Interrupted, KeyboardInterrupt) as error:
        status, reason = "KILLED", f"interrupted: {error}"
    except Exception as error:
        if isinstance(error, ValueError) and raised_here(error, job.root):
            code, reason = 2, str(error)
        else:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(job.staging, ignore_errors=True)
        tracked.close(status, reason)
        _record(job, tracked.run_id, status, code, reason, time.monotonic() - started, metrics, ctx.volatiles)
    _say_end(job, status, reason, time.monotonic() - started)
    return code


def raised_here(error: Exception, root: Path) -> bool:
    """Whether the project's own code raised it, hence with a message made for people; a library's ValueError is a fault instead."""
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
    places = (Path(__file__).resolve().parents[1], root.resolve())
    return "site-packages" not in raised_in.parts and any(raised_in.is_relative_to(place) for place in places)


def _start_clean(job: Job) -> None:
    """Remove what a killed attempt left staged; report resume areas of other configurations; forget a recorded result."""
    shutil.rmtree(job.staging, ignore_errors=True)
    done, lock = job.work / ".done", job.root / "dvc.lock"
    if done.is_file() and lock.is_file() and lock.stat().st_mtime > done.stat().st_mtime:
        for entry in job.work.iterdir():  # recorded by DVC since: a run asked for again starts from nothing
            if entry.name not in (".lock", ".done"):  # .done goes last: a kill half-way must not leave half the work to be taken over
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    done.unlink(missing_ok=True)
    resumed = any(entry.name != ".lock" for entry in job.work.iterdir())
    others = [entry for entry in job.work.parent.iterdir() if entry.is_dir() and entry != job.work]
    for other in others:
        if (other / ".done").is_file():
            shutil.rmtree(other)
    unfinished = sum(other.is_dir() for other in others)
    sys.stdout.write(f"[{job.declared.label}] {'continuing an interrupted run' if resumed else 'starting clean'}, inputs {job.fingerprint[:12]}"
                     + (f"; {unfinished} unfinished run(s) of other settings kept in {job.work.parent}" if unfinished else "") + "\n")
    sys.stdout.flush()


def _seal(job: Job, ctx: Context) -> None:
    """Refuse if anything changed under the stage; otherwise complete the staged output with its curves and manifest."""
    if fingerprint(job.root, job.declared.name, job.declared.item) != job.fingerprint:
        raise RuntimeError(f"an input of '{job.declared.label}' (params, code or upstream output) changed while it ran; "
                           "nothing was published, run `dvc repro` again")
    ctx.write_curves()
    files = {file.relative_to(ctx.out).as_posix(): {"bytes": file.stat().st_size, "sha256": hash_file(file)}
             for file in sorted(ctx.out.rglob("*")) if file.is_file()}
    manifest = {"stage": job.declared.label, "params": job.params, "files": files}
    (ctx.out / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _publish(job: Job, ctx: Context, metrics: dict[str, float]) -> None:
    """The last act of a stage: metrics, then the rename that makes the output exist."""
    if job.out.exists():
        shutil.rmtree(job.out)
    os.replace(ctx.out, job.out)
    job.metrics.parent.mkdir(parents=True, exist_ok=True)
    write_json(job.metrics, {name: finite_or_text(value) for name, value in metrics.items()})
    (job.work / ".done").touch()


def _track_output(tracked: StageRun, job: Job, out: Path) -> None:
    """Attach what people look at, and register exports; before publication, so that a tracker that fails fails the stage."""
    for name in ("curve.csv", "val.csv", "report.json", "report.html", "fidelity.json", "samples.txt"):
        if (out / name).is_file():
            tracked.artifact(out / name)
    if job.declared.name == "export":
        tracked.register_model(out, f"headrace-{job.declared.item}", "candidate", {"fingerprint": job.fingerprint})


def _tags(job: Job) -> dict[str, str]:
    """Lineage of the run: commit, experiment, and the hash of each dependency."""
    deps = {f"dep.{dep}": hash_dependency(job.root / dep)[:16] for dep in job.declared.deps}
    env = {"dvc.stage": job.declared.label, "dvc.exp": os.environ.get("DVC_EXP_NAME", ""), "prefect.flow_run_id": os.environ.get("PREFECT__FLOW_RUN_ID", "")}
    return {**{k: v for k, v in env.items() if v}, **deps, **git_state(job.root)}


def git_state(root: Path) -> dict[str, str]:
    """Commit and dirty flag, or nothing outside a repository."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return {}
    dirty = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=False).stdout.strip()
    return {"git.sha": head.stdout.strip(), "git.dirty": str(bool(dirty)).lower()}


def _record(job: Job, run_id: str, status: str, code: int, reason: str | None, seconds: float, metrics: dict, volatile: dict) -> None:
    job.last.parent.mkdir(parents=True, exist_ok=True)
    write_json(job.last, {"stage": job.declared.name, "item": job.declared.item, "fingerprint": job.fingerprint, "run_id": run_id, "status": status,
                          "exit_code": code, "reason": reason, "seconds": round(seconds, 3),
                          "metrics": {k: finite_or_text(v) for k, v in metrics.items()}, "volatile": {k: finite_or_text(v) for k, v in volatile.items()}})


def _say_end(job: Job, status: str, reason: str | None, seconds: float) -> None:
    if status == "FINISHED":
        sys.stdout.write(f"[{job.declared.label}] finished in {format_seconds(seconds)}: {job.out.relative_to(job.root)}\n")
    else:
        sys.stderr.write(f"[{job.declared.label}] {status.lower()} after {format_seconds(seconds)}: {reason}\n")


def _print_plan(job: Job, cfg: ConfigT, plan: PlanFn | None) -> None:
    facts = {"stage": job.declared.label, "config": cfg.model_dump(), "shared": job.shared.model_dump(), "inputs": list(job.declared.deps),
             "outputs": [str(job.out.relative_to(job.root)), str(job.metrics.relative_to(job.root))]}
    if plan is not None:
        ctx = Context.for_plan(job.declared.name, job.declared.item, job.shared.seed, job.deps())
        facts["estimates"] = plan(cfg, ctx)
    sys.stdout.write(json.dumps(facts, indent=1, default=str) + "\n")


class _TrackerSink(Sink):
    def __init__(self, tracked: StageRun) -> None:
        self.tracked = tracked

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.tracked.log(step, metrics)

    def volatile(self, metrics: dict[str, float]) -> None:
        self.tracked.final(metrics)


class _StopFlag:
    """First SIGTERM or Ctrl-C asks the stage to save and stop; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.count = 0

    def is_set(self) -> bool:
        return self.count > 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        def handle(signum: int, frame: object) -> None:
            self.count += 1
            if self.count > 1:
                raise KeyboardInterrupt
            sys.stderr.write(f"{signal.Signals(signum).name}: saving and stopping; once more to stop at once\n")

        previous = {s: signal.signal(s, handle) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for s, old in previous.items():
                signal.signal(s, old)
