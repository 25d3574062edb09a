"""Shared memory and lock files that a killed reader of mosaicml-streaming left behind.

StreamingDataset numbers its shared memory blocks (/dev/shm/000000_locals, ...) and lock files (000000_barrier_filelock, ... in the
temporary folder) by the first number that is free. A process killed by SIGKILL removes none of them: memory is lost, numbers are used
up, and a new reader of the same folder is refused. Its own clean-up removes every block, also those of readers that live.
Here a number is stale when no living process maps one of its blocks. Linux only: elsewhere nothing is touched. Containers that share
/dev/shm must also share their process numbers, or they do not see each other's readers.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PROCESSES = Path("/proc")
_BLOCK = re.compile(
    r"(\d{6})_(locals|barrier|next_epoch|cache_usage|shard_states|shard_access_times|resume|epoch_shape|epoch_data|barrier_filelock|cache_filelock)"
)
_YOUNG_SECONDS = 2.0
"""A block this young may be between its making and its mapping."""


def clean_leftovers() -> list[Path]:
    """Remove what no living process uses, and return it. Files of other users and numbers in use by anyone are left alone."""
    if not PROCESSES.is_dir() or not SHARED_MEMORY.is_dir():
        return []
    found: dict[str, list[Path]] = {}
    for folder in (SHARED_MEMORY, Path(tempfile.gettempdir())):
        for path in sorted(folder.iterdir()):
            match = _BLOCK.fullmatch(path.name)
            if match:
                found.setdefault(match[1], []).append(path)
    if not found:
        return []
    living, removed = numbers_in_use(), []
    for number, paths in found.items():
        if number not in living and all(_is_old(path) for path in paths):
            removed += [path for path in paths if _remove(path)]
    return removed


def numbers_in_use() -> set[str]:
    """Numbers of which some living process maps a block."""
    numbers, mapped = set(), re.compile(rf"{re.escape(str(SHARED_MEMORY))}/(\d{{6}})_\w+$", re.MULTILINE)  # a deleted one has a remark after it
    for maps in PROCESSES.glob("[0-9]*/maps"):
        try:
            text = maps.read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile, or belongs to another user, whose blocks we could not remove either
            continue
        numbers |= set(mapped.findall(text))
    return numbers


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_ctime > _YOUNG_SECONDS
    except FileNotFoundError:
        return True


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except (PermissionError, FileNotFoundError):
        return False
    return True
