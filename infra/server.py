"""Start, watch and stop the local servers: the MLflow UI and the Prefect server.

In: a port and the project's folder. Out: a server on 127.0.0.1 under a guard, its output in a log file, and its address. The
Prefect server of a schedule leaves its address in `<PREFECT_HOME>/server.json`, so that `make ui` shows it and starts no second one.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.env import offline_env
from infra.guard import Guarded

HOST = "127.0.0.1"
START_SECONDS = 300.0  # a first start migrates a database: 13 to 75 s have been seen, more on a busy machine
STOP_SECONDS = 10.0
UNNEEDED_SERVICES = ("SCHEDULER", "LATE_RUNS", "PAUSE_EXPIRATIONS", "CANCELLATION_CLEANUP", "TRIGGERS")  # by a single pipeline run


class ServerError(RuntimeError):
    """A server did not start or has died; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A guarded server process."""

    name: str
    url: str
    health: str
    log: Path
    guarded: Guarded

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.guarded.poll() is None

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return once the server answers. ServerError when it dies or stays silent."""
        limit = time.monotonic() + seconds
        while not answers(self.health):
            if not self.alive():
                raise ServerError(f"{self.name} ended while starting; last lines of {self.log}:\n{self.tail()}")
            if time.monotonic() > limit:
                raise ServerError(f"{self.name} did not answer within {seconds:.0f} s; last lines of {self.log}:\n{self.tail()}")
            time.sleep(0.1)

    def tail(self, lines: int = 15) -> str:
        """Last lines of the log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End the server and everything it started; returns when they are gone."""
        self.guarded.stop()
        self.guarded.wait(STOP_SECONDS * 2)


def start(name: str, argv: Sequence[str], *, root: Path, port: int, health: str, env: Mapping[str, str], keep_open: Sequence[int] = ()) -> Server:
    """Start a server; its log is data/work/logs/<name>.log under `root`. Locks on `keep_open` descriptors are held until it has ended."""
    log = root / "data/work/logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    url = f"http://{HOST}:{port}"
    with log.open("wb") as output:
        guarded = Guarded(argv, grace=STOP_SECONDS, cwd=root, env=env, output=output, keep_open=keep_open)
    return Server(name, url, url + health, log, guarded)


def start_prefect(root: Path, port: int, *, full: bool, keep_open: Sequence[int] = ()) -> Server:
    """Prefect server. `full` adds its UI and the scheduler; a single pipeline run needs neither."""
    settings = {"PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{port}/api", "PREFECT_SERVER_MEMO_STORE_PATH": str(prefect_home(root) / "memo_store.toml")}
    if not full:
        settings |= {f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in UNNEEDED_SERVICES}
    argv = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port), "--log-level", "WARNING", "--ui" if full else "--no-ui"]
    name, env = "prefect-server" if full else "prefect-pipeline", server_env(root, settings)
    return start(name, argv, root=root, port=port, health="/api/health", env=env, keep_open=keep_open)


def start_mlflow(root: Path, port: int) -> Server:
    """MLflow UI over the project's store (or MLFLOW_TRACKING_URI). The store must exist."""
    env = server_env(root, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    argv = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", env["MLFLOW_TRACKING_URI"], "--host", HOST, "--port", str(port), "--workers", "1"]
    return start("mlflow-ui", argv, root=root, port=port, health="/health", env=env)


def server_env(root: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, the offline defaults under it and `extra` over it."""
    return {**offline_env(root), **os.environ, **extra}


def prefect_home(root: Path) -> Path:
    """PREFECT_HOME, or .prefect in the project."""
    return Path(os.environ.get("PREFECT_HOME") or root / ".prefect")


def check_port(port: int, option: str) -> None:
    """ValueError when nothing can listen on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ValueError(f"port {port} on {HOST} cannot be used ({error}); choose a free one with {option}") from None


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def answers(url: str) -> bool:
    """Whether a GET of `url` succeeds within ten seconds."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as response:
            return response.status == 200
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def announce(root: Path, server: Server) -> None:
    """Write where the Prefect server of this process listens."""
    path = prefect_home(root) / "server.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    me = psutil.Process()
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"created": me.create_time(), "pid": me.pid, "url": server.url}) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def withdraw(root: Path) -> None:
    """Remove what `announce` wrote."""
    (prefect_home(root) / "server.json").unlink(missing_ok=True)


def announced(root: Path) -> str | None:
    """Address of the Prefect server that a schedule of this project runs, if there is one."""
    path = prefect_home(root) / "server.json"
    if not path.is_file():
        return None
    entry = json.loads(path.read_text(encoding="utf-8"))
    try:
        same = abs(psutil.Process(entry["pid"]).create_time() - entry["created"]) < 1
    except psutil.NoSuchProcess:
        return None
    return entry["url"] if same and answers(f"{entry['url']}/api/health") else None
