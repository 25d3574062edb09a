"""Token shards in MDS format: written whole or not at all, verified by hash, read at random.

In: rows (dicts of columns). Out: a folder with shard.NNNNN.mds files and index.json, readable by mosaicml-streaming from disk or
object storage. Shards are uncompressed, so equal rows in equal order give equal bytes, and a reader never writes into the folder.
The index is written last: a folder without one is a writer's leftover and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import xxhash
from streaming import LocalDataset, MDSWriter

HASH = "xxh64"
INDEX = "index.json"
Row = Mapping[str, object]


class MdsFolder:
    """Random access to a finished MDS folder: len(folder), folder[i] -> {column: value}. Sizes are checked on opening."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shards = _read_index(folder)["shards"]
        faults = [fault for shard in shards if (fault := _size_fault(folder, shard["raw_data"]))]
        if faults:
            raise ValueError(_explain(folder, faults))
        self._rows = LocalDataset(str(folder)) if shards else None  # LocalDataset cannot open an index without shards
        for shard in self._rows.shards if self._rows is not None else []:
            shard.validate(allow_unsafe_types=False)

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def __getitem__(self, index: int) -> dict[str, object]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {self.folder}, which has {len(self)} rows")
        return self._rows.get_item(int(index))


def write_mds(folder: Path, columns: Mapping[str, str], rows: Iterable[Row], shard_bytes: int) -> int:
    """Write rows to a new folder and return their number.

    columns: name -> MDS encoding, such as "ndarray:uint16", "int64", "str". shard_bytes: largest shard file; a row larger than
    that gets a shard of its own. When `rows` raises, no index is written, so the folder is never taken for complete. ValueError
    when the folder already holds files.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} already holds files; expected a new folder: old and new shards must not mix, remove it first")
    unsafe = sorted(name for name, encoding in columns.items() if encoding == "pkl")
    if unsafe:
        raise ValueError(f"column(s) {', '.join(unsafe)} are 'pkl', which runs code when read; expected ndarray, str, bytes, json or a number type")
    writer = MDSWriter(out=str(folder), columns=dict(columns), compression=None, hashes=[HASH], size_limit=shard_bytes)
    count = 0
    with ExitStack() as on_failure:  # MDSWriter's own `with` block would write the index of an unfinished set
        on_failure.callback(writer.cancel_future_jobs)
        for row in rows:
            _start_shard_if_needed(writer, row)
            writer.write(row)
            count += 1
        on_failure.pop_all()
    writer.finish()
    return count


def open_mds(folder: Path) -> MdsFolder:
    """Open a finished folder. ValueError names missing, cut or lengthened shards; their content is checked by verify_mds."""
    return MdsFolder(folder)


def verify_mds(folder: Path) -> int:
    """Read and hash every shard; return the number of rows.

    ValueError names every shard that is missing, has another size, another content or no hash to compare with, and every .mds
    file that the index does not list.
    """
    shards = _read_index(folder)["shards"]
    faults = [fault for shard in shards if (fault := _size_fault(folder, shard["raw_data"]) or _hash_fault(folder, shard["raw_data"]))]
    listed = {shard["raw_data"]["basename"] for shard in shards}
    faults += [f"{path.name} is not listed in {INDEX}" for path in sorted(folder.glob("*.mds*")) if path.name not in listed]
    if faults:
        raise ValueError(_explain(folder, faults))
    return sum(shard["samples"] for shard in shards)


def _start_shard_if_needed(writer: MDSWriter, row: Row) -> None:
    """MDSWriter puts an empty shard before a first row that is larger than its limit; such a row must not meet the limit."""
    if not writer.new_samples and writer.size_limit is not None:
        size = writer.new_shard_size + len(writer.encode_sample(dict(row))) + writer.extra_bytes_per_sample
        writer.new_shard_size -= max(0, size - writer.size_limit)


def _read_index(folder: Path) -> dict:
    path = folder / INDEX
    if not path.is_file():
        raise ValueError(f"{folder} has no {INDEX}: it is missing or its writer was stopped half-way; run the stage that makes it again")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        basenames = [shard["raw_data"]["basename"] for shard in index["shards"]]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a complete MDS index ({error}); run the stage that makes it again") from error
    twice = sorted({name for name in basenames if basenames.count(name) > 1})
    if twice:
        raise ValueError(f"{path} lists {', '.join(twice)} more than once; run the stage that makes it again")
    return index


def _size_fault(folder: Path, info: dict) -> str | None:
    path = folder / info["basename"]
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        return f"{path.name} is missing"
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


def _explain(folder: Path, faults: list[str]) -> str:
    return f"damaged shards in {folder}: {'; '.join(faults)}; remove the folder and make it again (`dvc repro`) or restore it (`dvc checkout`)"
