"""`python -m infra.ui`: the MLflow UI and the Prefect server on loopback; Ctrl-C, SIGTERM or the death of one ends both.

In: ports. Out: two addresses printed once both answer. Nothing is reachable from other machines. Exit codes: 0 stopped on
request, 2 a port is taken, 1 a server failed.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from infra.server import Server, ServerError, announced, check_port, server_env, start_mlflow, start_prefect


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.ui", description=__doc__)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    parser.add_argument("--prefect-port", type=int, default=4200)
    args = parser.parse_args(argv)
    root = Path.cwd()
    try:
        check_port(args.mlflow_port, "--mlflow-port")
        scheduled = announced(root)
        if scheduled is None:
            check_port(args.prefect_port, "--prefect-port")
        if args.mlflow_port == args.prefect_port:
            raise ValueError(f"both servers got port {args.mlflow_port}; give them different ones with --mlflow-port and --prefect-port")
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _servers(root, args.mlflow_port, args.prefect_port, scheduled) as servers:
            return _watch(servers)
    except KeyboardInterrupt:
        say("stopped")
        return 0
    except ServerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _servers(root: Path, mlflow_port: int, prefect_port: int, scheduled: str | None) -> Iterator[list[Server]]:
    """The servers, answering; stopped together however the block ends. A schedule's Prefect server is shown, not started again."""
    with contextlib.ExitStack() as stack:
        say("starting (the first start makes the databases) ...")
        servers = []
        if scheduled:
            say(f"Prefect  {scheduled} (it belongs to the running schedule)")
        else:
            servers.append(start_prefect(root, prefect_port, full=True))
            stack.callback(servers[-1].stop)
        make_store = [sys.executable, "-m", "stages.tracking", "init"]
        init = subprocess.run(make_store, cwd=root, env=server_env(root, {}), capture_output=True, text=True, check=False)
        if init.returncode != 0:
            raise ServerError(f"the tracking store cannot be opened: {init.stderr.strip()}")
        mlflow = start_mlflow(root, mlflow_port)
        stack.callback(mlflow.stop)
        servers.append(mlflow)
        for server in servers:
            server.wait_ready()
        if not scheduled:
            say(f"Prefect  {servers[0].url}")
        say(f"MLflow   {mlflow.url}")
        say("Ctrl-C stops " + ("MLflow." if scheduled else "both."))
        yield servers


def say(text: str) -> None:
    """One line for the person who waits."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _watch(servers: list[Server]) -> int:
    while True:
        for server in servers:
            if not server.alive():
                raise ServerError(f"{server.name} has ended, so nothing is left running; last lines of {server.log}:\n{server.tail()}")
        time.sleep(0.5)


if __name__ == "__main__":
    raise SystemExit(main())
