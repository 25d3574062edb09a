"""The same tasks on a pool of processes or on a Dask cluster.

In: a function of an importable module, argument tuples, a Pool. Out: each result, handed to `done` in this process as it comes. Tasks
must leave their work on disk and be safe to run again: a task whose worker died is run again, and after a stop the next attempt runs
all of them, of which the finished ones return at once. Order of completion varies; nothing may depend on it.

Dask is used through dask.distributed. A flow's task runner (prefect-dask) would not do: the stage runs in a process that DVC
started, and only the flow around it knows Prefect. On a cluster of several machines every worker needs this project importable and the
project's folder at the same path.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal

MAX_DEATHS = 3
"""Worker deaths in one call before it gives up: one may be chance, more point at memory."""
_ENV = {"TOKENIZERS_PARALLELISM": "false"}
"""Workers are the parallelism; threads in each would fight over the same cores."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Where tasks run. Never changes a result."""

    workers: int
    """Processes; 1 runs the tasks in this one (executor "processes") or on one Dask worker."""
    executor: Literal["processes", "dask"] = "processes"
    dask_address: str | None = None
    """Scheduler of a running Dask cluster; None starts one on this machine for the call."""


def check_pool(pool: Pool) -> None:
    """ValueError when the executor cannot be had here."""
    if pool.executor == "dask" and importlib.util.find_spec("distributed") is None:
        raise ValueError("executor: dask needs the package `distributed`, which is not installed; "
                         "install it with `pip install -r requirements-dask.txt` or use executor: processes")  # fmt: skip
    if pool.dask_address is not None and pool.executor != "dask":
        raise ValueError(f"dask_address is {pool.dask_address!r} but executor is {pool.executor!r}; set executor: dask or dask_address: null")


def run_tasks(function: Callable, tasks: Sequence[tuple], pool: Pool, done: Callable[[object], object]) -> None:
    """done(function(*task)) for every task, in any order. `done` may raise to stop: tasks not yet begun then never run.

    ValueError of a task is passed on with its message; RuntimeError when workers keep dying.
    """
    check_pool(pool)
    if pool.executor == "dask":
        _run_on_dask(function, tasks, pool, done)
    elif pool.workers == 1 or len(tasks) < 2:
        for task in tasks:
            done(function(*task))
    else:
        _run_on_processes(function, tasks, pool.workers, done)


def _run_on_processes(function: Callable, tasks: Sequence[tuple], workers: int, done: Callable[[object], object]) -> None:
    waiting, deaths = dict(enumerate(tasks)), 0
    while waiting:
        # spawn, not fork: the parent has threads (the tracker's), and a forked child may inherit their locks in a held state
        executor = ProcessPoolExecutor(min(workers, len(waiting)), mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker)
        try:
            with _bare_main():  # the first submit starts the processes
                futures = {executor.submit(_call, function, task): number for number, task in waiting.items()}
            for future in as_completed(futures):
                result = _unwrap(future.result())
                del waiting[futures[future]]
                done(result)
        except BrokenProcessPool as error:
            deaths += 1
            if deaths > MAX_DEATHS:
                raise RuntimeError(f"a worker process died {deaths} times, which mostly means that memory ran out; finished tasks are kept: "
                                   f"run again with fewer than {workers} workers or smaller tasks") from error  # fmt: skip
        finally:
            executor.shutdown(wait=True, cancel_futures=True)  # after a stop or an error, tasks not yet begun must not run on


def _run_on_dask(function: Callable, tasks: Sequence[tuple], pool: Pool, done: Callable[[object], object]) -> None:
    import distributed  # optional: see check_pool

    with ExitStack() as stack:
        address = pool.dask_address
        if address is None:
            with _bare_main():
                address = stack.enter_context(distributed.LocalCluster(
                    n_workers=pool.workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None, env=_ENV, silence_logs="ERROR"))
        client = stack.enter_context(distributed.Client(address, set_as_default=False))
        futures = [client.submit(_call, function, task, pure=False) for task in tasks]
        stack.callback(client.cancel, futures)
        for future in distributed.as_completed(futures, loop=client.loop):
            try:
                result = _unwrap(future.result())
            except distributed.scheduler.KilledWorker as error:
                raise RuntimeError(f"Dask workers died under a task again and again, which mostly means that memory ran out ({error}); finished tasks "
                                   "are kept: run again with fewer workers or smaller tasks") from error  # fmt: skip
            done(result)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A ValueError of the project's own code, whose message is made for people."""

    message: str


def _call(function: Callable, task: tuple) -> object:
    """In the worker: the result, or what the task refused. A library's ValueError is a fault and stays one, traceback and all."""
    try:
        return function(*task)
    except ValueError as error:
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
        if raised_in.is_relative_to(Path(__file__).resolve().parents[1]) and "site-packages" not in raised_in.parts:
            return _Refusal(str(error))
        raise


def _unwrap(result: object) -> object:
    if isinstance(result, _Refusal):
        raise ValueError(result.message)
    return result


@contextmanager
def _bare_main() -> Iterator[None]:
    """A child started within does not import the program again that its parent runs, with all it imports (tracker, torch)."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_worker() -> None:
    """Leave Ctrl-C and SIGTERM to the parent, which stops between tasks; end at once if the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.update(_ENV)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
