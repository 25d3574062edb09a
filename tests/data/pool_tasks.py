"""Tasks for the pool tests; in a module of their own because worker processes import them."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


def square(number: int) -> int:
    return number * number


def loaded_modules(_: int) -> list[str]:
    return sorted(sys.modules)


def refuses(number: int) -> int:
    raise ValueError(f"task {number} got nothing; expected something")


def library_error(_: int) -> object:
    return json.loads("{")


def dies_once(folder: str, number: int) -> int:
    """The first worker to reach task 3 is killed, as the kernel does when memory runs out."""
    mark = Path(folder) / "died"
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (Path(folder) / f"{number}.{os.getpid()}").touch()
    return number


def always_dies(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
