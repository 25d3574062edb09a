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

from infra.server import Server, ServerError, announce, announced, check_port, server_env, start_mlflow, start_prefect, withdraw


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.ui", description=__doc__)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    parser.add_argument("--prefect-port", type=int, default=4200)
    args = parser.parse_args(argv)
    root = Path.cwd()
    try:
        check_port(args.mlflow_port, "--mlflow-port")
        check_port(args.prefect_port, "--prefect-port")
        if args.mlflow_port == args.prefect_port:
            raise ValueError(f"both servers got port {args.mlflow_port}; give them different ones with --mlflow-port and --prefect-port")
        if running := announced(root):
            raise ValueError(f"a Prefect server of this project runs already at {running}; stop it first (it belongs to another `make ui` or schedule)")
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _servers(root, args.mlflow_port, args.prefect_port) as servers:
            return _watch(servers)
    except KeyboardInterrupt:
        sys.stdout.write("stopped\n")
        return 0
    except ServerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _servers(root: Path, mlflow_port: int, prefect_port: int) -> Iterator[list[Server]]:
    """Both servers, answering; stopped together however the block ends."""
    with contextlib.ExitStack() as stack:
        sys.stdout.write("starting the Prefect server and the MLflow UI (the first start makes their databases) ...\n")
        sys.stdout.flush()
        prefect = start_prefect(root, prefect_port, full=True)
        stack.callback(prefect.stop)
        init = subprocess.run([sys.executable, "-m", "stages.tracking", "init"], cwd=root, env=server_env(root, {}), capture_output=True, text=True, check=False)
        if init.returncode != 0:
            raise ServerError(f"the tracking store cannot be opened: {init.stderr.strip()}")
        mlflow = start_mlflow(root, mlflow_port)
        stack.callback(mlflow.stop)
        for server in (prefect, mlflow):
            server.wait_ready()
        announce(root, prefect)
        stack.callback(withdraw, root)
        sys.stdout.write(f"MLflow   {mlflow.url}\nPrefect  {prefect.url}\nCtrl-C stops both.\n")
        sys.stdout.flush()
        yield [prefect, mlflow]


def _watch(servers: list[Server]) -> int:
    while True:
        for server in servers:
            if not server.alive():
                raise ServerError(f"{server.name} has ended, so the other one is stopped too; last lines of {server.log}:\n{server.tail()}")
        time.sleep(0.5)


if __name__ == "__main__":
    raise SystemExit(main())
