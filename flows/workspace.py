"""One pipeline per workspace at a time.

In: the project's root folder. Out: a held lock. The kernel holds it for the pipeline and for the guard of every stage it started,
and drops it when the last of them ends, so a killed pipeline blocks nothing once its stages have gone. The file names the owner.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import psutil

TAKE_OVER_SECONDS = 180.0  # longer than the grace that a killed pipeline's stages get to save and stop


class Busy(RuntimeError):
    """Another pipeline runs in this workspace."""


@contextmanager
def exclusive(root: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the workspace and yield the lock's file descriptor. Busy when its owner is alive; a dead owner's lock is taken over."""
    path = root / "data/work/pipeline.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as handle:
        _acquire(handle, path, say)
        dead = _owner(handle)
        if dead:
            say(f"took over the workspace from process {dead['pid']}, which ended without releasing it")
        _write(handle, {"created": psutil.Process().create_time(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
        try:
            yield handle.fileno()
        finally:
            _write(handle, None)


def _acquire(handle: TextIO, path: Path, say: Callable[[str], None]) -> None:
    limit, told = time.monotonic() + TAKE_OVER_SECONDS, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            owner = _owner(handle)
        if owner and _alive(owner):
            raise Busy(f"a pipeline runs in this workspace already (process {owner['pid']}, since {owner['since']}; {path}); wait for it or stop it")
        if time.monotonic() > limit:
            raise Busy(f"a killed pipeline's stages are still running and hold {path}; end them and try again")
        if owner and not told:
            told = True
            say(f"process {owner['pid']} was killed; waiting for its stages to save and stop")
        time.sleep(0.2)


def _owner(handle: TextIO) -> dict | None:
    handle.seek(0)
    text = handle.read()
    return json.loads(text) if text.endswith("\n") else None


def _alive(owner: dict) -> bool:
    try:
        process = psutil.Process(owner["pid"])
        return abs(process.create_time() - owner["created"]) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _write(handle: TextIO, owner: dict | None) -> None:
    handle.seek(0)
    handle.truncate()
    if owner:
        handle.write(json.dumps(owner, sort_keys=True) + "\n")
    handle.flush()
