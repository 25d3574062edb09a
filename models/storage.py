"""Files that are either whole or absent: tensor files in the safetensors format, and folders published by one rename.

In: named tensors, a function that fills a folder. Out: files on disk, their sha256. Format: a little-endian u64 header length, a JSON
header (name -> dtype, shape, byte range), then the raw little-endian data. The writer here gives the bytes the safetensors library
gives, but hashes while it writes, holds one tensor at a time, and lets the operating system's own error (disk full) reach the caller.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

# Safetensors' names, in its own order: wider types come first in the file, so every tensor is aligned to its element size.
DTYPE_NAMES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
PASSING_ERRORS = {errno.EIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT}
ATTEMPTS = 3
PAUSE_S = 0.2
CAUSES = {
    errno.ENOSPC: "the disk is full; free space or keep fewer checkpoints",
    errno.EDQUOT: "the disk quota is used up; free space or raise the quota",
    errno.EFBIG: "the file is larger than this file system or process limit allows (ulimit -f)",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "this user may not write there",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Writes a safetensors file and returns the sha256 of its bytes. Tensors may be on any device and need not be contiguous.

    The same tensors and metadata give the same bytes. Raises ValueError for a dtype the format lacks, OSError from the disk.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise ValueError(f"{path.name}: tensor {name} has dtype {tensor.dtype}; expected one of {list(DTYPE_NAMES.values())}")
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPE_NAMES)}
    order = sorted(tensors, key=lambda name: (ranks[tensors[name].dtype], name))
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for name in order:
        size = tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": DTYPE_NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for chunk in (struct.pack("<Q", len(head)), head):
            digest.update(chunk)
            file.write(chunk)
        for name in order:
            data = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            digest.update(data)
            file.write(data)
    return digest.hexdigest()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, on CPU, in memory of its own. Raises ValueError when the file is damaged or missing.

    Copies are made because mapped file data may lie unaligned, which can change the last bit of a vectorised sum.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such tensor file; expected a complete folder with it inside")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error}); restore it or write it anew") from error


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, value: object) -> None:
    """JSON with sorted keys and a final newline: equal values give equal bytes."""
    path.write_text(json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def publish_folder(folder: Path, fill_fn: Callable[[Path], None]) -> None:
    """Calls fill_fn on a temporary sibling, flushes it to the disk, then renames it to `folder`, replacing what was there.

    A reader sees the old folder, the new one or (for an instant while replacing) none, never a part. A passing fault is tried
    again, three times in all; then, or on a full disk, OSError names the cause and the temporary files are gone.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(folder)
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            fill_fn(temporary)
            _flush(temporary)
            break
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if error.errno in PASSING_ERRORS and attempt < ATTEMPTS:
                time.sleep(PAUSE_S * attempt)
                continue
            raise OSError(error.errno, f"{folder} was not written: {_cause(error, folder)}") from error
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    replaced = replaced_name(folder)
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(folder, replaced)
    try:
        os.rename(temporary, folder)
    except OSError:
        if replaced.exists():
            os.rename(replaced, folder)
        raise
    flush_entry(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def temporary_name(folder: Path) -> Path:
    """Where `folder` is built before its rename."""
    return folder.with_name(f".tmp-{folder.name}")


def replaced_name(folder: Path) -> Path:
    """Where the folder that `folder` replaces waits for its removal."""
    return folder.with_name(f".old-{folder.name}")


def flush_entry(path: Path) -> None:
    """Asks the operating system to put a file or a directory's entries on the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        flush_entry(path)
    flush_entry(folder)


def _cause(error: OSError, folder: Path) -> str:
    free_mb = shutil.disk_usage(folder.parent).free / 1e6
    cause = CAUSES.get(error.errno or 0, error.strerror or str(error))
    return f"{cause} ({free_mb:.0f} MB free at {folder.parent}); anything written before is untouched"
