"""One stage through real DVC: what it did, why it failed, and whether another attempt can help."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from flows.stage_task import LINES_PER_SECOND, Limits, Speaker, StageFailed, Tail, _failure, run_stage
from tests.flows.project import Project


def run(project: Project, stage: str, limits: Limits | None = None, stop: threading.Event | None = None):
    said: list[str] = []
    return run_stage(project.root, stage, say=said.append, stop=stop or threading.Event(), limits=limits or Limits(grace=5), env=os.environ), said


def test_ran_unchanged_restored(project: Project) -> None:
    outcome, said = run(project, "a")
    assert outcome.did == "ran" and any("Running stage 'a'" in line for line in said)
    assert not any("git add" in line or "Updating lock file" in line for line in said)
    assert "Running stage 'a'" in (project.root / "data/work/logs/a.log").read_text()
    assert run(project, "a")[0].did == "unchanged"
    project.set("a", "value", 2)
    assert run(project, "a")[0].did == "ran"
    project.set("a", "value", 1)
    assert run(project, "a")[0].did == "restored" and len(project.starts("a")) == 2


def test_bad_input_is_code_2_with_the_stages_own_words_and_no_retry(project: Project) -> None:
    for folder in ("b/x", "flaky"):
        (project.root / "data/out" / folder).mkdir(parents=True)
    project.set("late", "bad", 1)
    with pytest.raises(StageFailed) as caught:
        run(project, "late")
    error = caught.value
    assert (error.stage, error.code, error.retryable) == ("late", 2, False)
    assert error.reason == "late.bad=1, expected 0" and "stage 'late' failed" in str(error) and str(error.log) in str(error)


def test_pre06_a_deadline_ends_the_process_tree(project: Project) -> None:
    project.set("late", "bad", 0)
    project.set("late", "wait", 1)
    for deadline in (3, 12, 50):  # a busy machine may not get as far as the grandchild in three seconds
        with pytest.raises(StageFailed) as caught:
            run(project, "late", Limits(deadline=deadline, grace=0.5))
        assert f"passed its limit of {deadline} s" in caught.value.reason and not caught.value.retryable
        if (project.root / "counts/pids").exists():
            break
    for word in (project.root / "counts/pids").read_text().split():
        assert not Path(f"/proc/{word}").exists() or "Z" in Path(f"/proc/{word}/stat").read_text().split()[2]


def test_stop_set_before_the_start_ends_it_at_once(project: Project) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StageFailed, match="stopped on request"):
        run(project, "late", stop=stop)


def judged(lines: list[str], record: dict | None = None, guard_code: int = 255) -> StageFailed:
    tail = Tail()
    for line in lines:
        tail.add(line)
    return _failure("rl", None, guard_code, tail, record or {}, Path("log"))


EXITED = "ERROR: failed to reproduce 'rl': failed to run: python -m stages.rl, exited with {}"


@pytest.mark.parametrize(
    ("lines", "record", "code", "retryable"),
    [
        ([EXITED.format(1)], {}, 1, False),
        ([EXITED.format(1)], {"exit_code": 2, "reason": "bad"}, 2, False),
        ([EXITED.format(-9)], {}, 1, True),
        ([EXITED.format(137)], {}, 1, True),
        ([EXITED.format(1)], {"exit_code": 1, "status": "KILLED", "reason": "interrupted"}, 1, True),
        (["torch.OutOfMemoryError: CUDA out of memory.", EXITED.format(1)], {}, 1, True),
        (["ERROR: Unable to acquire lock. Most likely another DVC process is running"], {}, 1, True),
        (["ERROR: '/p/data/out/a' is busy, it is being blocked by:"], {}, 1, True),
        (["ERROR: './dvc.yaml' is invalid."], {}, 1, False),
        (["ERROR: failed to reproduce 'rl': missing data 'source': input.txt"], {"exit_code": 0}, 1, False),
    ],
)
def test_which_failures_another_attempt_can_help(lines: list[str], record: dict, code: int, retryable: bool) -> None:
    error = judged(lines, record)
    assert (error.code, error.retryable) == (code, retryable)


def test_dvc_killed_before_it_could_speak_is_worth_another_attempt() -> None:
    assert judged([], guard_code=137).retryable and not judged([], guard_code=255).retryable


def test_the_runners_record_counts_only_when_it_is_of_this_attempt(project: Project) -> None:
    from flows.stage_task import last_attempt

    path = project.root / "data/work/last/rl.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"exit_code": 2}))
    assert last_attempt(project.root, "rl", time.time()) == {"exit_code": 2}
    os.utime(path, (1, 1))
    assert last_attempt(project.root, "rl", time.time()) == {}
    assert last_attempt(project.root, "never", 0) == {}


def test_a_flood_of_lines_is_bounded_and_counted() -> None:
    said: list[str] = []
    speaker = Speaker(said.append, Path("the.log"))
    for number in range(5000):
        speaker.line(f"line {number}")
    speaker.end()
    shown = [line for line in said if line.startswith("line ")]
    assert 10 * LINES_PER_SECOND <= len(shown) < 1000
    assert said[-1].startswith("... ") and said[-1].endswith(" more lines in the.log")
    assert sum(int(line.split()[1]) for line in said if line.startswith("... ")) + len(shown) == 5000


def test_a_failure_survives_being_pickled_by_an_executor() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(StageFailed("rl", 2, "why", False, Path("log"))))
    assert (error.stage, error.code, error.reason, error.log) == ("rl", 2, "why", Path("log"))
