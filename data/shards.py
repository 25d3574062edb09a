"""Token shards in MDS format: written whole or not at all, verified by hash, read at random.

In: rows (dicts of columns). Out: a folder with shard.NNNNN.mds files and index.json, readable by mosaicml-streaming from disk or
object storage, byte for byte what its MDSWriter writes. Shards are uncompressed, so equal rows in equal order give equal bytes, and a
reader never writes into the folder. The index is written last: a folder without one is a writer's leftover and is refused.

Reading and writing are done here rather than through streaming because a row then costs microseconds, a worker process need not
load torch, and reading leaves no shared memory behind. Shards in object storage go through streaming: data/loading/remote.py.
"""

from __future__ import annotations

import json
import mmap
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from data.columns import Columns

HASH = "xxh64"
INDEX = "index.json"
Row = Mapping[str, object]
Damaged = Literal["fail", "skip"]
_OPEN_SHARDS = 256
"""Shards that stay mapped: bounds file descriptors, not memory, which the page cache owns."""
_LARGEST_SHARD = (1 << 32) - 1
"""Offsets in a shard have 32 bits."""


class ShardWriter:
    """Rows -> shard files in `folder`, without an index: finish() returns the entries to be listed in one."""

    def __init__(self, folder: Path, columns: Mapping[str, str], shard_bytes: int) -> None:
        self.folder, self.shard_bytes = folder, shard_bytes
        self._columns = Columns(columns)
        self._config = {"version": 2, "format": "mds", "compression": None, "hashes": [HASH], "size_limit": shard_bytes, **self._columns.config()}
        self._head = json.dumps(self._config, sort_keys=True).encode()
        self._entries: list[dict] = []
        self._rows: list[bytes] = []
        self._size = self._empty = 8 + len(self._head)

    def write(self, row: Row) -> None:
        """Add a row; a row larger than shard_bytes gets a shard of its own. ValueError for a value its column cannot hold."""
        data = self._columns.encode(row)
        if self._rows and self._size + len(data) + 4 > self.shard_bytes:
            self._flush()
        self._rows.append(data)
        self._size += len(data) + 4

    def finish(self) -> list[dict]:
        """Write what is left; the shards' entries for an index, in order."""
        if self._rows:
            self._flush()
        return self._entries

    def _flush(self) -> None:
        if self._size > _LARGEST_SHARD:
            raise ValueError(f"a row of {self._size:,} bytes does not fit a shard, whose offsets end at {_LARGEST_SHARD:,}; split the record in prepare")
        sizes = np.fromiter(map(len, self._rows), dtype=np.int64, count=len(self._rows))
        begins = 4 + 4 * (len(sizes) + 1) + len(self._head) + np.concatenate([[0], np.cumsum(sizes)])
        data = b"".join([len(sizes).to_bytes(4, "little"), begins.astype("<u4").tobytes(), self._head, *self._rows])
        name = f"shard.{len(self._entries):05}.mds"
        (self.folder / name).write_bytes(data)
        info = {"basename": name, "bytes": len(data), "hashes": {HASH: xxhash.xxh64_hexdigest(data)}}
        self._entries.append({**self._config, "samples": len(sizes), "raw_data": info, "zip_data": None})
        self._rows, self._size = [], self._empty


def write_mds(folder: Path, columns: Mapping[str, str], rows: Iterable[Row], shard_bytes: int) -> int:
    """Write rows to a new folder and return their number.

    columns: name -> MDS encoding, such as "ndarray:uint16", "int64", "str". shard_bytes: largest shard file; a row larger than
    that gets a shard of its own. When `rows` raises, no index is written, so the folder is never taken for complete. ValueError
    when the folder already holds files.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} already holds files; expected a new folder: old and new shards must not mix, remove it first")
    folder.mkdir(parents=True, exist_ok=True)
    writer = ShardWriter(folder, columns, shard_bytes)
    for row in rows:
        writer.write(row)
    entries = writer.finish()
    write_index(folder, entries)
    return sum(entry["samples"] for entry in entries)


def write_index(folder: Path, entries: list[dict]) -> None:
    """The last act of writing a folder."""
    (folder / INDEX).write_text(json.dumps({"version": 2, "shards": entries}, sort_keys=True), encoding="utf-8")


class MdsFolder:
    """Random access to a finished MDS folder: len(folder), folder[i] -> {column: value}. Sizes are checked on opening.

    Arrays are read-only views of the mapped file. `skipped` lists the damaged shards that were left out, `skipped_rows` counts their rows.
    """

    def __init__(self, folder: Path, damaged: Damaged = "fail") -> None:
        self.folder, self.skipped, self.skipped_rows = folder, [], 0
        entries = _read_index(folder)["shards"]
        if damaged == "skip":
            entries = self._leave_out_damaged(entries)
        else:
            _raise_faults(folder, [fault for entry in entries if (fault := _size_fault(folder, entry["raw_data"]))])
        self._paths = [folder / entry["raw_data"]["basename"] for entry in entries]
        self._columns = [_columns_of(entry, path) for entry, path in zip(entries, self._paths)]
        self._ends = list(accumulate(entry["samples"] for entry in entries))
        self._shard = lru_cache(maxsize=_OPEN_SHARDS)(self._map)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> dict[str, object]:
        return self.read(index)

    def read(self, index: int, names: tuple[str, ...] | None = None) -> dict[str, object]:
        """Row `index`, or of it the named columns that the folder has."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {self.folder}, which has {len(self)} rows")
        number = bisect_right(self._ends, index)
        data, begins = self._shard(number)
        place = index - (self._ends[number - 1] if number else 0)
        return self._columns[number].decode(data, int(begins[place]), names)

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Elements of an array column in every row, (num_rows,), without reading the values."""
        parts = []
        for number, columns in enumerate(self._columns):
            data, begins = self._shard(number)
            parts.append(columns.array_lengths(data, begins[:-1], name))
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def _map(self, number: int) -> tuple[memoryview, NDArray[np.uint32]]:
        """The bytes of a shard and where its rows begin, with the end of the last."""
        with self._paths[number].open("rb") as handle:
            data = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
        count = int.from_bytes(data[:4], "little")
        expected = self._ends[number] - (self._ends[number - 1] if number else 0)
        begins = np.frombuffer(data, dtype="<u4", count=min(count, (len(data) - 4) // 4 - 1) + 1, offset=4)
        if count != expected or begins[-1] != len(data):
            raise ValueError(_explain(self.folder, [f"{self._paths[number].name} holds {count} rows, the index says {expected}"]))
        return data, begins

    def _leave_out_damaged(self, entries: list[dict]) -> list[dict]:
        """The sound ones, all of them hashed: the order of training must not change when a bad shard is met later."""
        sound = []
        for entry in entries:
            fault = _fault(self.folder, entry["raw_data"])
            if fault is None:
                sound.append(entry)
            else:
                self.skipped.append(fault)
                self.skipped_rows += entry["samples"]
        if entries and not sound:
            raise ValueError(_explain(self.folder, self.skipped))
        return sound


def open_mds(folder: Path, damaged: Damaged = "fail") -> MdsFolder:
    """Open a finished folder. damaged="fail": ValueError names missing, cut or lengthened shards (verify_mds also checks content).

    damaged="skip": every shard is hashed, and bad ones are left out, listed and counted; ValueError when none is sound.
    """
    return MdsFolder(folder, damaged)


def verify_mds(folder: Path) -> int:
    """Read and hash every shard; return the number of rows.

    ValueError names every shard that is missing, has another size, another content or no hash to compare with, and every .mds
    file that the index does not list.
    """
    shards = _read_index(folder)["shards"]
    faults = [fault for shard in shards if (fault := _fault(folder, shard["raw_data"]))]
    listed = {shard["raw_data"]["basename"] for shard in shards}
    faults += [f"{path.name} is not listed in {INDEX}" for path in sorted(folder.glob("*.mds*")) if path.name not in listed]
    _raise_faults(folder, faults)
    return sum(shard["samples"] for shard in shards)


def _read_index(folder: Path) -> dict:
    path = folder / INDEX
    if not path.is_file():
        raise ValueError(f"{folder} has no {INDEX}: it is missing or its writer was stopped half-way; run the stage that makes it again")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        basenames = [shard["raw_data"]["basename"] for shard in index["shards"]]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a complete MDS index ({error}); run the stage that makes it again") from error
    twice = sorted({name for name in basenames if basenames.count(name) > 1}) if len(set(basenames)) < len(basenames) else []
    if twice:
        raise ValueError(f"{path} lists {', '.join(twice)} more than once; run the stage that makes it again")
    return index


def _columns_of(entry: dict, path: Path) -> Columns:
    if entry["format"] != "mds":
        raise ValueError(f"{path} is of the format {entry['format']}; expected mds: write the set again as MDS")
    return Columns(dict(zip(entry["column_names"], entry["column_encodings"], strict=True)))


def _fault(folder: Path, info: dict) -> str | None:
    return _size_fault(folder, info) or _hash_fault(folder, info)


def _size_fault(folder: Path, info: dict) -> str | None:
    path = folder / info["basename"]
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        return f"{path.name} is missing" + (", only a compressed copy is there" if list(folder.glob(f"{path.name}.*")) else "")
    return None if size == info["bytes"] else f"{path.name} has {size} bytes, the index says {info['bytes']}"


def _hash_fault(folder: Path, info: dict) -> str | None:
    expected = info["hashes"].get(HASH)
    if expected is None:
        return f"{info['basename']} has no {HASH} hash in the index, so it cannot be verified"
    digest = xxhash.xxh64()
    with (folder / info["basename"]).open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return None if digest.hexdigest() == expected else f"{info['basename']} has {HASH} {digest.hexdigest()}, the index says {expected}"


def _raise_faults(folder: Path, faults: list[str]) -> None:
    if faults:
        raise ValueError(_explain(folder, faults))


def _explain(folder: Path, faults: list[str]) -> str:
    return f"damaged shards in {folder}: {'; '.join(faults)}; remove the folder and make it again (`dvc repro`) or restore it (`dvc checkout`)"
