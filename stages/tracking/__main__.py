"""`python -m stages.tracking COMMAND`: what flows and people ask of the tracker without importing it.

    init                                    make store and experiment
    begin --name N [--owner-pid P]          start a pipeline's parent run and print its id
    end ID --status S [--links FILE]        record links (JSON list of {stage, item, fingerprint}), then end the run
    link --parent ID --stage S --fingerprint F [--item I]   record one skipped stage and print its run's id
    sweep                                   end runs whose process is dead
    best --metric M --mode min|max          id of the best finished stage run
    show                                    newest pipelines with their stages
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from stages.tracking.processes import Owner
from stages.tracking.store import PARENT_TAG, Run, Store, TrackingError


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    args = _parser().parse_args(argv)
    root = Path(os.environ.get("DVC_ROOT") or args.root)
    try:
        return COMMANDS[args.command](Store.open(root), args)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except TrackingError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stages.tracking", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="project folder (default: DVC_ROOT, else the current folder)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init")
    begin = commands.add_parser("begin")
    begin.add_argument("--name", required=True)
    begin.add_argument("--owner-pid", type=int, default=os.getppid(), help="process that will call `end` (default: the caller)")
    begin.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE")
    end = commands.add_parser("end")
    end.add_argument("run")
    end.add_argument("--status", choices=["FINISHED", "FAILED", "KILLED"], required=True)
    end.add_argument("--reason")
    end.add_argument("--links", type=Path)
    link = commands.add_parser("link")
    link.add_argument("--parent", required=True)
    link.add_argument("--stage", required=True)
    link.add_argument("--item")
    link.add_argument("--fingerprint", required=True)
    commands.add_parser("sweep")
    best = commands.add_parser("best")
    best.add_argument("--metric", required=True)
    best.add_argument("--mode", choices=["min", "max"], required=True)
    best.add_argument("--stage")
    show = commands.add_parser("show")
    show.add_argument("--last", type=int, default=3, help="how many pipelines (default 3)")
    return parser


def _init(store: Store, args: argparse.Namespace) -> int:
    sys.stdout.write(f"{store.uri}\n")
    return 0


def _begin(store: Store, args: argparse.Namespace) -> int:
    pairs = [pair.partition("=") for pair in args.tag]
    owner = {"kind": "pipeline", "owner": str(Owner.of(args.owner_pid)), "heartbeat": f"{time.time():.0f}"}
    with store.exclusive():
        store.sweep()
    sys.stdout.write(store.start(args.name, {**{key: value for key, _, value in pairs}, **owner}) + "\n")
    return 0


def _end(store: Store, args: argparse.Namespace) -> int:
    if store.get(args.run) is None:
        raise ValueError(f"run {args.run} is not in {store.uri}; expected an id that `begin` printed")
    for entry in json.loads(args.links.read_text(encoding="utf-8")) if args.links else []:
        store.link(args.run, entry["stage"], entry.get("item"), entry["fingerprint"])
    store.finish(args.run, args.status, args.reason)
    return 0


def _link(store: Store, args: argparse.Namespace) -> int:
    sys.stdout.write(store.link(args.parent, args.stage, args.item, args.fingerprint) + "\n")
    return 0


def _sweep(store: Store, args: argparse.Namespace) -> int:
    with store.exclusive():
        swept = store.sweep()
    sys.stdout.writelines(f"{run_id} ended: its process is dead\n" for run_id in swept)
    return 0


def _best(store: Store, args: argparse.Namespace) -> int:
    best = store.best_run(args.metric, args.mode, args.stage)
    if best is None:
        raise ValueError(f"no finished stage run has a finite '{args.metric}'; see the names in the MLflow UI")
    sys.stdout.write(f"{best[0].info.run_id} {best[0].info.run_name} {args.metric}={best[1]}\n")
    return 0


def _show(store: Store, args: argparse.Namespace) -> int:
    parents = store.find("tags.kind != 'stage' and tags.kind != 'link'", limit=args.last)
    for parent in parents:
        sys.stdout.write(_line(parent, ""))
        children = store.find(f"tags.`{PARENT_TAG}` = '{parent.info.run_id}'")
        sys.stdout.writelines(_line(child, "  ") for child in reversed(children))
    return 0


def _line(run: Run, indent: str) -> str:
    seconds = ((run.info.end_time or time.time() * 1000) - run.info.start_time) / 1000
    attempt = run.data.tags.get("attempt", "1")
    tail = (f"  attempt {attempt}" if attempt != "1" else "") + (f"  {run.data.tags['reason']}" if run.data.tags.get("reason") else "")
    return f"{indent}{run.info.run_name:<{32 - len(indent)}} {run.info.status:<9} {seconds:8.1f} s  {run.info.run_id}{tail}\n"


COMMANDS = {"init": _init, "begin": _begin, "end": _end, "link": _link, "sweep": _sweep, "best": _best, "show": _show}

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is written; tearing the libraries down takes as long as the work
