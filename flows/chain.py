"""The Prefect flow: one task per stage, each a `dvc repro -s` under a guard.

In: a Plan, or the options to make one. Out: an outcome per stage; a flow run that is Completed only when every stage is. Prefect
owns order, retries and what people see; its result cache is off, because DVC alone decides what is up to date. The names of
outcomes are the names of task states: Cached, Completed, Restored, Unchanged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture, as_completed
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task

from flows.plan import Plan, end_run, find_root, make_plan, stage_env
from flows.stage_task import Limits, Outcome, StageFailed, log_file, run_stage
from flows.table import console_table, duration, markdown_table, rows_of
from flows.workspace import Busy, exclusive

PREFECT_REMARKS = ("Beginning flow run", "View at ", "Finished in state")


@dataclass(frozen=True, slots=True)
class Settings:
    """How the pipeline runs; no value here can move a metric."""

    concurrency: int = 2
    """Independent stages side by side."""
    retries: int = 2
    """Further attempts after a lock, a signal or lack of memory."""
    retry_delay: float = 10.0
    """Seconds before the first further attempt; doubled each time."""
    deadline: float | None = None
    """Seconds a stage may take."""
    grace: float = 60.0
    """Seconds a stage gets to save its checkpoint and stop."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a pipeline run came to. `failure` is the first stage that failed."""

    outcomes: dict[str, Outcome]
    failure: StageFailed | None


def run_pipeline(plan: Plan, settings: Settings, lock: int) -> Result:
    """Run a planned pipeline as a flow run of its own and close its tracked parent run. Raises what ended it early."""

    @flow(name="headrace", flow_run_name=f"{plan.profile}", persist_result=False, task_runner=ThreadPoolTaskRunner(max_workers=settings.concurrency))
    def headrace(profile: str) -> State:
        results.append(_tracked(plan, settings, lock))
        return _final_state(results[-1])

    results: list[Result] = []
    _quiet_console()
    headrace(plan.profile, return_state=True)
    return results[-1]


@flow(name="headrace-scheduled", persist_result=False, task_runner=ThreadPoolTaskRunner(max_workers=Settings().concurrency))
def scheduled(root: str, profile: str | None = None, overrides: Sequence[str] = (), targets: Sequence[str] = (), deadline: float | None = None) -> State:
    """The flow that a deployment runs. A workspace in use skips the run: runs never overlap."""
    log = get_run_logger()
    try:
        with exclusive(find_root(Path(root)), log.warning) as lock:
            plan = make_plan(find_root(Path(root)), profile, overrides, targets)
            result = _tracked(plan, Settings(deadline=deadline), lock)
    except Busy as error:
        log.warning("not started: %s", error)
        return Cancelled(name="Skipped", message=str(error))
    log.info("\n%s", console_table(rows_of(plan, result.outcomes, result.failure)))
    return _final_state(result)


def _tracked(plan: Plan, settings: Settings, lock: int) -> Result:
    """Run the stages and close the parent run with what came of it, however this ends."""
    outcomes: dict[str, Outcome] = {}
    status, reason = "KILLED", "the pipeline was stopped"
    try:
        failure = _run_stages(plan, settings, lock, outcomes)
        status, reason = ("FAILED", str(failure)) if failure else ("FINISHED", None)
        table = markdown_table(rows_of(plan, outcomes, failure))
        create_markdown_artifact(table, key="headrace-results", description=f"Results of profile {plan.profile}")
        return Result(outcomes, failure)
    finally:
        end_run(plan, status, reason, [label for label, outcome in outcomes.items() if outcome.did != "ran"])


def _run_stages(plan: Plan, settings: Settings, lock: int, outcomes: dict[str, Outcome]) -> StageFailed | None:
    """Submit each stage once its upstream is done; after a failure let running ones end and start no more."""
    stop, work = threading.Event(), stage_task(settings)
    env = stage_env(plan, str(runtime.flow_run.id))
    waiting, futures = list(plan.graph), {}
    running: dict[PrefectFuture, str] = {}
    failure: StageFailed | None = None
    try:
        while running or (waiting and failure is None):
            for label in [label for label in waiting if failure is None and all(up in outcomes for up in plan.graph[label])]:
                if len(running) == settings.concurrency:
                    break
                waiting.remove(label)
                known = label in plan.clean and all(outcomes[up].did == "cached" for up in plan.graph[label])
                upstream = [futures[up] for up in plan.graph[label]]
                futures[label] = work.with_options(name=label, task_run_name=label).submit(
                    plan.root, label, known, stop, env, lock, Limits(settings.deadline, settings.grace), wait_for=upstream)
                running[futures[label]] = label
            if not running:  # nothing can start any more, so what still waits would be forgotten
                return StageFailed(waiting[0], 1, f"never started; it waits for {', '.join(plan.graph[waiting[0]])}", False, log_file(plan.root, waiting[0]))
            done = next(as_completed(list(running)))
            label = running.pop(done)
            result = done.result(raise_on_failure=False)
            if isinstance(result, Outcome):
                outcomes[label] = result
            elif failure is None:
                failure = result if isinstance(result, StageFailed) else StageFailed(label, 1, repr(result), False, log_file(plan.root, label))
    except BaseException:
        stop.set()  # cancelled: the flow engine now waits for the tasks, and each ends its process tree
        raise
    return failure


def stage_task(settings: Settings) -> Task:
    """The task that runs one stage, retried by Prefect where another attempt can help."""
    delays = [settings.retry_delay * 2**attempt for attempt in range(settings.retries)]
    return task(_stage, cache_policy=NO_CACHE, persist_result=False, retries=settings.retries, retry_delay_seconds=delays, retry_condition_fn=_can_retry)


def _stage(root: Path, label: str, known: bool, stop: threading.Event, env: dict[str, str], lock: int, limits: Limits) -> State:
    log = get_run_logger()
    if known:
        log.info("up to date")
        return Completed(name="Cached", message="up to date", data=Outcome(label, "cached", 0.0))
    try:
        outcome = run_stage(root, label, say=log.info, stop=stop, limits=limits, env=env, lock=lock)
    except StageFailed as error:
        log.error("FAILED: %s", error.reason)
        raise
    log.info("%s in %s", outcome.did, duration(outcome.seconds))
    names = {"ran": "Completed", "restored": "Restored", "unchanged": "Unchanged"}
    return Completed(name=names[outcome.did], message=f"{outcome.did} in {duration(outcome.seconds)}", data=outcome)


def _can_retry(work: Task, run: TaskRun, state: State) -> bool:
    error = state.result(raise_on_failure=False)
    return isinstance(error, StageFailed) and error.retryable


def _quiet_console() -> None:
    """Keep Prefect's own remarks (states, addresses of a server that ends with us) off the console; its API still gets them."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            handler.addFilter(lambda record: not record.getMessage().startswith(PREFECT_REMARKS))


def _final_state(result: Result) -> State:
    if result.failure:
        return Failed(message=str(result.failure))
    ran = [label for label, outcome in result.outcomes.items() if outcome.did == "ran"]
    return Completed(message=f"{len(ran)} of {len(result.outcomes)} stages ran" + (f": {', '.join(ran)}" if ran else ""))
