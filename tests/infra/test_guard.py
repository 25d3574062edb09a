"""A guarded command's whole tree ends: on request, when its caller is killed, and after it has ended itself (PRE-06)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from infra.guard import Guarded
from tests.conftest import ROOT

# Starts a child and a grandchild that left the session, writes the three process numbers, then waits.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import subprocess, sys, time; p = subprocess.Popen(['sleep', '300'], start_new_session=True); print(p.pid, flush=True); time.sleep(300)"],
                         stdout=subprocess.PIPE, text=True)
grandchild = child.stdout.readline().strip()
with open(sys.argv[1] + ".tmp", "w") as file:
    file.write(f"{os.getpid()} {child.pid} {grandchild}")
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
"""


def family(tmp_path: Path, rest: str = "time.sleep(300)") -> list[str]:
    return [sys.executable, "-c", FAMILY + rest, str(tmp_path / "pids")]


def guarded(argv: list[str], tmp_path: Path, grace: float = 5.0, output: int = subprocess.DEVNULL) -> Guarded:
    return Guarded(argv, grace=grace, cwd=tmp_path, env=os.environ, output=output)


def pids(tmp_path: Path, seconds: float = 30) -> list[int]:
    limit = time.monotonic() + seconds
    while not (tmp_path / "pids").exists():
        assert time.monotonic() < limit, "the command did not start"
        time.sleep(0.05)
    return [int(word) for word in (tmp_path / "pids").read_text().split()]


def living(numbers: list[int]) -> list[int]:
    alive = []
    for number in numbers:
        try:
            if psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
                alive.append(number)
        except psutil.NoSuchProcess:
            continue
    return alive


def wait_gone(numbers: list[int], seconds: float = 30) -> None:
    limit = time.monotonic() + seconds
    while living(numbers):
        assert time.monotonic() < limit, f"{living(numbers)} still run"
        time.sleep(0.05)


def test_pre06_stop_ends_child_and_grandchild_even_outside_the_session(tmp_path: Path) -> None:
    run = guarded(family(tmp_path), tmp_path, grace=0.5)
    numbers = pids(tmp_path)
    assert len(living(numbers)) == 3
    run.stop()
    run.stop()
    assert run.wait(30) == 128 + signal.SIGTERM
    assert living(numbers) == []


def test_pre06_the_tree_ends_when_its_caller_is_killed(tmp_path: Path) -> None:
    caller = (
        "import os, sys, time\nfrom pathlib import Path\nfrom infra.guard import Guarded\n"
        f"Guarded({family(tmp_path)!r}, grace=0.5, cwd=Path({str(tmp_path)!r}), env=os.environ, output=None)\ntime.sleep(300)"
    )
    process = subprocess.Popen([sys.executable, "-c", caller], cwd=ROOT)
    numbers = pids(tmp_path)
    process.kill()
    process.wait()
    wait_gone(numbers)


def test_a_command_may_use_its_grace_to_save(tmp_path: Path) -> None:
    code = "import pathlib, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: (time.sleep(0.5), pathlib.Path('saved').touch(), sys.exit(3)))\npathlib.Path('pids').write_text('0')\ntime.sleep(300)"
    run = guarded([sys.executable, "-c", code], tmp_path, grace=30)
    pids(tmp_path)
    run.stop()
    assert run.wait(30) == 3 and (tmp_path / "saved").exists()


def test_a_command_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    code = "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\npathlib.Path('pids').write_text('0')\ntime.sleep(300)"
    run = guarded([sys.executable, "-c", code], tmp_path, grace=0.3)
    pids(tmp_path)
    run.stop()
    assert run.wait(30) == 128 + signal.SIGKILL


def test_what_an_ended_command_leaves_behind_ends_too(tmp_path: Path) -> None:
    run = guarded(family(tmp_path, "sys.exit(7)"), tmp_path)
    assert run.wait(60) == 7
    assert living(pids(tmp_path)) == []


def test_exit_codes_and_output_pass_through(tmp_path: Path) -> None:
    run = guarded([sys.executable, "-c", "import sys; print('out'); sys.stderr.write('err\\n'); sys.exit(5)"], tmp_path, output=subprocess.PIPE)
    assert sorted(run.process.stdout.read().decode().split()) == ["err", "out"] and run.wait(10) == 5
    killed = guarded([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path)
    assert killed.wait(10) == 128 + signal.SIGKILL


def test_the_command_hears_signals_and_the_terminal_does_not_reach_it(tmp_path: Path) -> None:
    code = "import os, signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.getsignal(signal.SIGINT) == signal.default_int_handler, os.getsid(0) == os.getpid())"
    run = guarded([sys.executable, "-c", code], tmp_path, output=subprocess.PIPE)
    assert run.process.stdout.read().decode().split() == ["True", "True", "True"]
    run.wait(10)
    assert os.getsid(os.getpid()) != run.process.pid


def test_a_command_that_does_not_exist_is_code_127(tmp_path: Path) -> None:
    run = guarded(["/no/such/command"], tmp_path, output=subprocess.PIPE)
    assert b"cannot start /no/such/command" in run.process.stdout.read() and run.wait(10) == 127


@pytest.mark.parametrize("argv", [[], ["--grace", "1"], ["--grace", "1", "sleep", "1"]])
def test_wrong_arguments_are_code_2(argv: list[str]) -> None:
    from infra.guard import main

    assert main(argv) == 2
