"""Tasks on this process, on several, and on a Dask cluster of real processes: the same results, whatever dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.pool import Pool, check_pool, run_tasks
from tests.data import pool_tasks

POOLS = [Pool(1), Pool(2), Pool(2, "dask")]
IDS = ["one", "processes", "dask"]


def results(function: object, tasks: list[tuple], pool: Pool) -> list:
    found: list = []
    run_tasks(function, tasks, pool, found.append)
    return found


@pytest.mark.parametrize("pool", POOLS, ids=IDS)
def test_every_task_is_done_once(pool: Pool) -> None:
    assert sorted(results(pool_tasks.square, [(n,) for n in range(20)], pool)) == [n * n for n in range(20)]


@pytest.mark.parametrize("pool", POOLS[1:], ids=IDS[1:])
def test_a_killed_worker_loses_only_its_task(tmp_path: Path, pool: Pool) -> None:
    """STR-05: SIGKILL in the middle of task 3; the others' work stands and task 3 is done by another worker."""
    assert sorted(results(pool_tasks.dies_once, [(str(tmp_path), n) for n in range(8)], pool)) == list(range(8))
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("pool", POOLS[1:], ids=IDS[1:])
def test_workers_that_keep_dying_are_named_with_the_way_out(pool: Pool) -> None:
    with pytest.raises(RuntimeError, match="memory ran out.*finished tasks.*fewer"):
        results(pool_tasks.always_dies, [(n,) for n in range(4)], pool)


@pytest.mark.parametrize("pool", POOLS, ids=IDS)
def test_a_refusal_comes_back_with_its_message(pool: Pool) -> None:
    with pytest.raises(ValueError, match="task . got nothing; expected"):
        results(pool_tasks.refuses, [(n,) for n in range(3)], pool)


def test_a_stop_leaves_the_rest_undone() -> None:
    seen: list[int] = []

    def stop(result: int) -> None:
        seen.append(result)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(pool_tasks.square, [(n,) for n in range(1000)], Pool(2), stop)
    assert len(seen) == 1


def test_a_librarys_error_keeps_its_kind_and_traceback() -> None:
    """It is a fault of the program, not of the input: the runner must not take it for a message to the user."""
    with pytest.raises(ValueError) as caught:
        results(pool_tasks.library_error, [(n,) for n in range(2)], Pool(2))
    assert "library_error" in str(caught.value.__cause__)


def test_a_worker_does_not_import_what_its_parent_runs() -> None:
    """pytest, torch and the tracker are loaded here; a worker has the task's module and what that needs."""
    modules = set(results(pool_tasks.loaded_modules, [(0,), (1,)], Pool(2))[0])
    assert "tests.data.pool_tasks" in modules and not modules & {"torch", "pytest", "mlflow", "transformers", "streaming"}


def test_pools_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="set executor: dask or dask_address: null"):
        check_pool(Pool(1, "processes", "tcp://127.0.0.1:1"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install -r requirements-dask.txt"):
        check_pool(Pool(1, "dask"))


def test_a_cluster_that_runs_already_is_used_and_left_running() -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, silence_logs="ERROR") as cluster:
        for _ in range(2):
            assert sorted(results(pool_tasks.square, [(n,) for n in range(5)], Pool(1, "dask", cluster.scheduler_address))) == [0, 1, 4, 9, 16]
