"""`python -m flows.schedule --cron '0 3 * * *' --set rl.steps=50`: run the pipeline on a schedule, for as long as this process lives.

In: one schedule (cron or interval) and the options of a pipeline run. Out: a Prefect deployment, served here. A run that comes due
while another pipeline holds the workspace is skipped; dates that passed while nobody served are made up for by one run. The Prefect
server that PREFECT_API_URL names is used; without one, a server with its UI is started, and `make ui` shows it.
Exit codes: 0 stopped on request, 2 bad input, 1 anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import datetime
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.pipeline import prepare_environment, say
from flows.plan import BadInput, find_root
from flows.when import When
from infra.server import ServerError, announce, check_port, start_prefect, withdraw

SIGN_SECONDS = 10.0
CODE = Path(__file__).resolve().parents[1]


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    args = _parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        root = find_root(Path.cwd())
        when = When(args.cron, args.interval, args.timezone)
        with _only_one(root, args.name):
            prepare_environment(root)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CODE), os.environ.get("PYTHONPATH")]))  # for the runs' own processes
            _use_server(root, args.port)
            _serve(root, args, when)
    except BadInput as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except ServerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        pass  # asked to stop before serving began
    say("stopped")
    return 0


def _parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flows.schedule", description=__doc__)
    parser.add_argument("--cron", help="five-field cron expression")
    parser.add_argument("--interval", type=float, metavar="SECONDS", help="seconds between runs, counted from midnight, 1 January 2020")
    parser.add_argument("--timezone", default="UTC", help="IANA name; cron hours are local and follow daylight saving (default UTC)")
    parser.add_argument("--name", default="scheduled", help="name of the deployment (default 'scheduled')")
    parser.add_argument("--profile")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--targets", nargs="+", default=[], metavar="STAGE")
    parser.add_argument("--deadline", type=float, help="seconds a stage may take (default: no limit)")
    parser.add_argument("--port", type=int, default=4200, help="port of the Prefect server, if one has to be started (default 4200)")
    return parser.parse_args(argv)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _only_one(root: Path, name: str) -> Iterator[None]:
    """One process serves a schedule; the kernel frees it with its owner."""
    path = root / "data/work/schedule" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"schedule '{name}' is served by another process already; stop it, or choose another --name") from None
        yield


def _use_server(root: Path, port: int) -> None:
    if os.environ.get("PREFECT_API_URL"):
        return
    try:
        check_port(port, "--port")
    except ValueError as error:
        raise BadInput(str(error)) from None
    say("starting the Prefect server ...")
    server = start_prefect(root, port, full=True)
    atexit.register(server.stop)
    os.environ["PREFECT_API_URL"] = f"{server.url}/api"
    server.wait_ready()
    announce(root, server)
    atexit.register(withdraw, root)
    say(f"Prefect  {server.url}")


def _serve(root: Path, args: argparse.Namespace, when: When) -> None:
    # Prefect reads its settings, the server's address among them, when it is imported
    from flows.deployments import describe, missed, next_date, register, serve

    parameters = {"root": str(root), "profile": args.profile, "overrides": args.overrides, "targets": args.targets, "deadline": args.deadline}
    try:
        deployment = describe(args.name, when, parameters)
    except ValueError as error:
        raise BadInput(f"cron expression '{args.cron}' is not valid: {error}") from None
    covered = Covered(root / "data/work/schedule" / f"{args.name}.json")
    gone = missed(when, covered.read(), datetime.datetime.now(datetime.UTC))
    register(deployment, gone)
    if gone:
        say(f"{len(gone)} dates passed while nobody served this schedule, the last at {gone[-1]}; starting one run for them")
    say(f"serving '{args.name}', next at {next_date(when, datetime.datetime.now(datetime.UTC))}; Ctrl-C stops")
    with covered.signing():
        asyncio.run(serve(deployment))


class Covered:
    """Until when the schedule was served, in a file that a thread renews."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> datetime.datetime | None:
        """The last sign of life, or None before the first."""
        if not self.path.is_file():
            return None
        return datetime.datetime.fromisoformat(json.loads(self.path.read_text(encoding="utf-8"))["covered_until"])

    def sign(self) -> None:
        """Write the present time."""
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"covered_until": datetime.datetime.now(datetime.UTC).isoformat()}) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)

    @contextmanager
    def signing(self) -> Iterator[None]:
        """Sign now and every SIGN_SECONDS until the block ends."""
        done = threading.Event()

        def work() -> None:
            while True:
                self.sign()
                if done.wait(SIGN_SECONDS):
                    return

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


if __name__ == "__main__":
    raise SystemExit(main())
