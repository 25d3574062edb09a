"""Who owns a run: a process told apart from a later one with the same number, and the command that started it all.

A run whose owner is dead is not running, whatever its status says. Owners on other machines, or in another container, cannot be
looked up, so they are judged by the age of their last sign of life instead.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import PurePath

import psutil

SILENT_SECONDS = 900  # a recorder signs every 60 s; fifteen missed signs mean that nobody is there


@dataclass(frozen=True, slots=True)
class Owner:
    """A process by host, number and start time (seconds since 1970)."""

    host: str
    pid: int
    created: float

    @classmethod
    def of(cls, pid: int | None = None) -> Owner:
        """Owner record of a living process (default: this one). ValueError when there is no such process."""
        pid = os.getpid() if pid is None else pid
        try:
            return cls(socket.gethostname(), pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            raise ValueError(f"process {pid} does not exist; expected the number of a running process") from None

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Inverse of str(); None for text of another form."""
        parts = text.rsplit(":", 2)
        if len(parts) != 3 or not parts[1].isdigit():
            return None
        try:
            return cls(parts[0], int(parts[1]), float(parts[2]))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.created:.2f}"

    def alive(self, last_sign: float, now: float) -> bool:
        """Whether the process still runs. `last_sign` and `now` (seconds since 1970) decide for owners elsewhere."""
        if self.host != socket.gethostname():
            return now - last_sign < SILENT_SECONDS
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def invocation() -> tuple[Owner, str]:
    """The `dvc` process this one descends from, else this one: (owner, its command line as a person would type it)."""
    here = psutil.Process()
    for process in [here, *here.parents()]:
        try:
            words = process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        start = next((index for index, word in enumerate(words[:3]) if PurePath(word).name == "dvc"), None)
        if start is not None and process.pid != here.pid:
            return Owner.of(process.pid), " ".join(["dvc", *words[start + 1 :]])
    return Owner.of(here.pid), " ".join(["python", *here.cmdline()[1:]])
