"""Run a command whose whole process tree ends with its caller, even when the caller is killed.

The caller starts `guard.py --grace SECONDS -- COMMAND ...` through `Guarded` and holds the guard's standard input open. The guard
ends the tree when that input closes (the caller asked for it, or died): SIGTERM to the command's process group, after `grace`
seconds SIGKILL to everything left. It also ends what the command leaves behind when it exits. Exit code: the command's, with
128 + n for signal n. On Linux the guard adopts orphaned descendants, so nothing escapes by starting its own session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LEFTOVER_SECONDS = 5.0  # what a finished command leaves running gets this long after SIGTERM


class Guarded:
    """A command under a guard, in its own session: Ctrl-C in the terminal reaches the caller alone, which decides."""

    def __init__(self, argv: Sequence[str], *, grace: float, cwd: Path, env: Mapping[str, str], output: int | IO[bytes], keep_open: Sequence[int] = ()) -> None:
        """`output` takes both standard output and error. `keep_open` descriptors stay open (and locks held) until the tree is gone."""
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--grace", str(grace), "--", *argv]
        self.process = subprocess.Popen(
            command, cwd=cwd, env=dict(env), stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, pass_fds=tuple(keep_open), start_new_session=True
        )

    def stop(self) -> None:
        """Ask for the end of the tree; returns at once. Safe to call again."""
        self.process.stdin.close()

    def poll(self) -> int | None:
        """Exit code, or None while anything of the tree is alive."""
        return self.process.poll()

    def wait(self, seconds: float | None = None) -> int:
        """Wait for the end of the tree; subprocess.TimeoutExpired after `seconds`."""
        return self.process.wait(seconds)


def main(argv: list[str]) -> int:
    """See the module docstring."""
    if len(argv) < 4 or argv[0] != "--grace" or argv[2] != "--":
        sys.stderr.write("usage: guard.py --grace SECONDS -- COMMAND [ARG ...]\n")
        return 2
    grace, command = float(argv[1]), argv[3:]
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        # only the closing of standard input ends a guard; a handler, unlike SIG_IGN, is not inherited by the command
        signal.signal(signum, lambda signum, frame: None)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        return 127
    while child.poll() is None:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap(child)
        if 0 in ready and not os.read(0, 4096):
            end_tree(child, grace)
    end_tree(child, LEFTOVER_SECONDS)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def end_tree(child: subprocess.Popen[bytes], grace: float) -> None:
    """SIGTERM to the child's group, up to `grace` seconds for all descendants to end, then SIGKILL to the rest."""
    _signal_group(child.pid, signal.SIGTERM)
    limit = time.monotonic() + grace
    while _living(child) and time.monotonic() < limit:
        time.sleep(0.05)
    while left := _living(child):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue  # ended between the listing and the signal
        time.sleep(0.05)


def _living(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Descendants still running; zombies are reaped on the way."""
    _reap(child)
    found = psutil.Process().children(recursive=True)
    return [process for process in found if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Collect exit codes: the child's through its Popen, those of adopted orphans here."""
    child.poll()
    for process in psutil.Process().children():
        if process.pid != child.pid:
            try:
                os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                continue  # collected already


def _signal_group(leader: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the whole group has ended
        os.killpg(leader, signum)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
