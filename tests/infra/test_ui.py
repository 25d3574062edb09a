"""`make ui`: both servers answer, and end together by a signal, by the death of one, or not at all when a port is taken."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from infra.server import HOST, Server, announce, answers, free_port
from infra.ui import main
from tests.conftest import ROOT

# A server that answers every page with 200 and prints its port.
PAGES = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args): ...
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def ui(tmp_path: Path):
    """Start `python -m infra.ui` in an empty project; yields a function that returns (process, ports)."""
    started: list[subprocess.Popen] = []

    def run() -> tuple[subprocess.Popen, int, int]:
        ports = free_port(), free_port()
        hidden = ("PREFECT_", "MLFLOW_")
        env = {**{name: value for name, value in os.environ.items() if not name.startswith(hidden)}, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        argv = [sys.executable, "-m", "infra.ui", "--mlflow-port", str(ports[0]), "--prefect-port", str(ports[1])]
        started.append(subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1], *ports

    yield run
    for process in started:
        process.kill()
        process.wait()


def family(process: subprocess.Popen, at_least: int) -> list[psutil.Process]:
    limit = time.monotonic() + 60
    while len(found := psutil.Process(process.pid).children(recursive=True)) < at_least:
        assert time.monotonic() < limit and process.poll() is None
        time.sleep(0.05)
    return found


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_both_answer_and_the_death_of_one_ends_the_other(ui, tmp_path: Path) -> None:
    process, mlflow_port, prefect_port = ui()
    for line in process.stdout:
        if line.startswith("Ctrl-C"):
            break
    assert answers(f"http://{HOST}:{mlflow_port}/health") and answers(f"http://{HOST}:{prefect_port}/api/health")
    assert answers(f"http://{HOST}:{mlflow_port}/") and answers(f"http://{HOST}:{prefect_port}/")
    everything = family(process, 4)
    for part in everything:
        command = " ".join(part.cmdline())
        if "mlflow" in command and "guard.py" not in command:
            part.kill()
    rest = process.stdout.read()
    assert process.wait(60) == 1 and "mlflow-ui has ended, so nothing is left running" in rest
    assert_gone(everything)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_starting_ends_everything(ui, signum: int) -> None:
    process, *_ = ui()
    everything = family(process, 2)
    process.send_signal(signum)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and out.endswith("stopped\n"), out
    assert_gone(everything)


def test_the_server_of_a_running_schedule_is_shown_and_not_started_again(ui, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    pages = subprocess.Popen([sys.executable, "-c", PAGES], stdout=subprocess.PIPE, text=True)
    url = f"http://{HOST}:{int(pages.stdout.readline())}"
    announce(tmp_path, Server("prefect", url, "", tmp_path / "log", None))
    process, *_ = ui()
    assert [process.stdout.readline() for _ in range(2)][1] == f"Prefect  {url} (it belongs to the running schedule)\n"
    assert not any("prefect" in " ".join(part.cmdline()) for part in family(process, 1))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    pages.kill()
    pages.wait()


def test_a_taken_port_is_code_2_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        assert main(["--mlflow-port", str(taken.getsockname()[1])]) == 2
    assert "--mlflow-port" in capsys.readouterr().err and not (tmp_path / "data").exists()
    port = str(free_port())
    assert main(["--mlflow-port", port, "--prefect-port", port]) == 2
    assert "both servers got port" in capsys.readouterr().err
