"""Ports, announced servers, and servers that fail to start."""

from __future__ import annotations

import http.server
import os
import socket
import sys
import threading
from pathlib import Path

import psutil
import pytest

from infra.server import HOST, Server, ServerError, announce, announced, answers, check_port, free_port, start, withdraw


@pytest.fixture
def health():
    """A tiny server whose every page answers 200; yields its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/health" else 503)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_a_taken_port_is_refused_with_the_option_that_changes_it() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} .* choose a free one with --mlflow-port"):
            check_port(port, "--mlflow-port")
    check_port(free_port(), "--mlflow-port")
    with pytest.raises(ValueError, match="port 70000"):
        check_port(70000, "--port")


def test_answers_only_on_200(health: int) -> None:
    assert answers(f"http://{HOST}:{health}/api/health")
    assert not answers(f"http://{HOST}:{health}/other")
    assert not answers(f"http://{HOST}:{free_port()}/api/health")


def test_an_announced_server_is_found_while_it_answers_and_its_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, health: int) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    assert announced(tmp_path) is None
    server = Server("x", f"http://{HOST}:{health}", "", tmp_path / "log", None)
    announce(tmp_path, server)
    assert announced(tmp_path) == f"http://{HOST}:{health}"
    record = tmp_path / ".prefect" / "server.json"
    text = record.read_text()
    record.write_text(text.replace(str(os.getpid()), str(2**22 + 1)))
    assert announced(tmp_path) is None
    record.write_text(text.replace(f"{psutil.Process().create_time()}", "1.0"))  # the number was given to a later process
    assert announced(tmp_path) is None
    record.write_text(text)
    withdraw(tmp_path)
    assert announced(tmp_path) is None


def test_a_server_that_dies_while_starting_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    server = start("broken", [sys.executable, "-c", "print('the reason'); raise SystemExit(1)"], root=tmp_path, port=free_port(), health="/", env=os.environ)
    with pytest.raises(ServerError, match="the reason"):
        server.wait_ready(30)
    assert not server.alive()


def test_a_silent_server_is_an_error_and_can_be_stopped(tmp_path: Path) -> None:
    server = start("silent", [sys.executable, "-c", "import time; time.sleep(300)"], root=tmp_path, port=free_port(), health="/", env=os.environ)
    with pytest.raises(ServerError, match="did not answer within"):
        server.wait_ready(0.3)
    server.stop()
    assert not server.alive()
