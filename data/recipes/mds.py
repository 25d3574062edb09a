"""Recipe `mds`: a ready folder of MDS shards (MosaicML streaming), on this machine or below a remote prefix.

A piece is a shard. Its bytes are compared with the hash in the index, or with the size where the index has no hash, before a
record is taken out; a remote shard is fetched into a temporary folder for as long as it is read. Columns of type pkl are refused,
because reading one can run code.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from data.recipes.bucket import open_filesystem
from data.recipes.recipe import Part
from data.sources.readers import Row

INDEX = "index.json"
_HASHES = {"xxh64": xxhash.xxh64, "xxh128": xxhash.xxh128, "sha256": hashlib.sha256, "sha1": hashlib.sha1, "md5": hashlib.md5}


@dataclass(frozen=True, kw_only=True)
class Mds:
    """Options: `path`."""

    __pydantic_config__ = {"extra": "forbid", "strict": True, "use_attribute_docstrings": True}
    path: str
    """A folder, or a prefix with its protocol (s3://bucket/shards), that holds index.json."""

    def pieces(self) -> list[Part]:
        shards = self._shards()
        if not shards:
            raise ValueError(f"{self.path}/{INDEX} lists no shard; expected at least one")
        return [(shard["raw_data"]["basename"],) for shard in shards]

    def stamp(self, part: Part) -> str:
        return json.dumps(self._shard(part), sort_keys=True)

    def rows(self, part: Part, columns: Sequence[str] | None = None) -> Iterator[Row]:
        # here, not at the top: they load torch, which no other source of text needs
        from streaming.base.compression import decompress
        from streaming.base.format import reader_from_json

        shard = self._shard(part)
        stored = _stored(shard)
        data = self._read(stored["basename"])
        _check(data, stored, self.path)
        raw = decompress(shard["compression"], data) if shard.get("zip_data") else data
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, part[0]).write_bytes(raw)
            reader = reader_from_json(folder, None, shard)
            reader.validate(allow_unsafe_types=False)
            for number in range(reader.samples):
                yield Row(reader.get_item(number), f"{self.path}/{part[0]}, record {number + 1}")

    def local_files(self) -> list[Path]:
        return [] if "://" in self.path else [Path(self.path, INDEX), *(Path(self.path, _stored(shard)["basename"]) for shard in self._shards())]

    def version(self) -> str | None:
        return hashlib.sha256(self._read(INDEX)).hexdigest()[:16]

    def _shards(self) -> list[dict]:
        try:
            shards = json.loads(self._read(INDEX))["shards"]
            names = [name for shard in shards for name in (shard["raw_data"]["basename"], _stored(shard)["basename"])]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path}/{INDEX} is not an index of MDS shards ({error}); expected a folder that MDSWriter finished") from error
        if any(name != Path(name).name for name in names):
            raise ValueError(f"{self.path}/{INDEX} names files outside its folder; expected the names of files beside it")
        return shards

    def _shard(self, part: Part) -> dict:
        found = [shard for shard in self._shards() if shard["raw_data"]["basename"] == part[0]]
        if len(found) != 1:
            raise ValueError(f"{self.path}/{INDEX} lists {part[0]} {len(found)} times, expected once; was the folder written again meanwhile?")
        return found[0]

    def _read(self, name: str) -> bytes:
        """A whole file of the folder; shards are written to a size limit, so one fits in memory."""
        try:
            if "://" not in self.path:
                return Path(self.path, name).read_bytes()
            system, root = open_filesystem(self.path)
            return system.cat_file(f"{root.rstrip('/')}/{name}")
        except OSError as error:
            raise ValueError(f"cannot read {self.path}/{name} ({type(error).__name__}: {error}); expected a finished folder of MDS shards") from error


def _stored(shard: dict) -> dict:
    """Name, size and hashes of the file that is there: the compressed one where there is one."""
    return shard.get("zip_data") or shard["raw_data"]


def _check(data: bytes, info: dict, path: str) -> None:
    """ValueError when the bytes are not the ones the index describes (STR-04)."""
    if len(data) != info["bytes"]:
        raise ValueError(f"{path}/{info['basename']} has {len(data)} bytes, the index says {info['bytes']}; copy the shard again")
    for name, expected in info["hashes"].items():
        if name in _HASHES and (got := _HASHES[name](data).hexdigest()) != expected:
            raise ValueError(f"{path}/{info['basename']} has {name} {got}, the index says {expected}; copy the shard again")
