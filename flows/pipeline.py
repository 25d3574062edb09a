"""`python -m flows.pipeline`: run the whole chain through Prefect, print its results, and say what to do next.

In: an optional profile, overrides and targets. Out: the stages' outputs, a tracked parent run, a flow run in Prefect, a table. The
Prefect server that PREFECT_API_URL names is used; without one, a private server runs for as long as the pipeline does.
Exit codes: 0 done, 2 bad input or configuration, 1 anything else.
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import sys
import time
from pathlib import Path

from flows.plan import BadInput, Plan, ToolFailed, find_root, make_plan
from flows.stage_task import BAD_INPUT
from flows.table import console_table, duration, next_steps, rows_of
from flows.workspace import Busy, exclusive
from infra.env import missing_env
from infra.server import Server, ServerError, answers, free_port, start_prefect

# Prefect's own line formats, shortened: a person watches stages, not task runs.
LOG_FORMATS = {
    "PREFECT_LOGGING_FORMATTERS_STANDARD_FLOW_RUN_FMT": "%(asctime)s  %(message)s",
    "PREFECT_LOGGING_FORMATTERS_STANDARD_TASK_RUN_FMT": "%(asctime)s  %(task_run_name)-16s %(message)s",
    "PREFECT_LOGGING_COLORS": "false",
}


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    args = parse_args(argv)
    started = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)  # so that every clean-up below runs; Prefect puts its own handler on top
    try:
        root = find_root(Path.cwd())
        prepare_environment(root)
        with exclusive(root, say) as lock:
            server = prefect_server(root, lock)
            plan = make_plan(root, args.profile, args.overrides, args.targets)
            if server:
                server.wait_ready()
            code = _run(plan, args, lock)
    except BadInput as error:
        sys.stderr.write(f"error: {error}\n")
        return BAD_INPUT
    except (Busy, ServerError, ToolFailed) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("stopped; interrupted stages go on from their last checkpoint when the pipeline runs again\n")
        return 1
    say(f"total {duration(time.monotonic() - started)}")
    return code


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description=__doc__)
    parser.add_argument("--profile", help="compose params.yaml from this profile (stages/conf/profile); without it and --set params.yaml stays")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="compose it with this value; repeat for more")
    parser.add_argument("--targets", nargs="+", default=[], metavar="STAGE", help="only these stages and what they need")
    parser.add_argument("--concurrency", type=_positive(int), default=2, help="independent stages side by side (default 2)")
    parser.add_argument("--retries", type=int, default=2, help="further attempts after a lock, a signal or lack of memory (default 2)")
    parser.add_argument("--retry-delay", type=float, default=10.0, help="seconds before the first of them, doubled each time (default 10)")
    parser.add_argument("--deadline", type=_positive(float), help="seconds a stage may take (default: no limit)")
    parser.add_argument("--grace", type=_positive(float), default=60.0, help="seconds a stage gets to save and stop (default 60)")
    parser.add_argument("--no-table", action="store_true", help="do not print the table of results")
    return parser.parse_args(argv)


def prepare_environment(root: Path) -> None:
    """Set what Prefect reads when it is imported; values that the user has set stay."""
    os.environ.update(missing_env(root))
    os.environ.update({name: value for name, value in LOG_FORMATS.items() if name not in os.environ})


def prefect_server(root: Path, lock: int) -> Server | None:
    """Point PREFECT_API_URL at a server; returns the one that we started ourselves, perhaps not answering yet.

    Ours ends with the pipeline and leaves its records in PREFECT_HOME, where the server of `make ui` shows them; a server that
    somebody watches is not relied on, because they may stop it while a stage trains.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        if not answers(f"{url.rstrip('/')}/health"):
            raise ServerError(f"no Prefect server answers at PREFECT_API_URL={url}; start it, or unset the variable to run with a private one")
        return None
    say("starting ...")
    server = start_prefect(root, free_port(), full=False, keep_open=[lock])
    # Prefect sends its last log lines when the interpreter ends, before functions registered here are called
    atexit.register(server.stop)
    os.environ["PREFECT_API_URL"] = f"{server.url}/api"
    return server


def _run(plan: Plan, args: argparse.Namespace, lock: int) -> int:
    # Prefect reads its settings, the server's address among them, when it is imported
    from flows.chain import Settings, run_pipeline

    settings = Settings(concurrency=args.concurrency, retries=args.retries, retry_delay=args.retry_delay, deadline=args.deadline, grace=args.grace)
    result = run_pipeline(plan, settings, lock)
    if not args.no_table:
        sys.stdout.write(f"\n{console_table(rows_of(plan, result.outcomes, result.failure))}\n\n")
    if result.failure:
        sys.stderr.write(f"error: {result.failure}\n")
        return BAD_INPUT if result.failure.code == BAD_INPUT else 1
    sys.stdout.write(f"{next_steps(plan.root)}\n")
    return 0


def say(text: str) -> None:
    """One line for the person who waits."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _positive(kind: type) -> object:
    def parse(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"got {text}, expected a number above 0")
        return value

    return parse


if __name__ == "__main__":
    raise SystemExit(main())
