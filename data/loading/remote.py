"""Ready shards in object storage (or another folder) -> a verified local copy.

In: where the shards are, as mosaicml-streaming names it (s3://, gs://, a path), and a cache folder. Out: a folder for open_mds. Each
source has a folder of its own under the cache, so a training and an evaluation set never read each other's shards whatever their
settings. Streaming does the fetching: retries, decompression, hashes. Packing needs the length of every document before the first
batch, so all shards are fetched first; a copy that is complete and sound is used as it is. For programs of one's own and benchmarks: the
stages read outputs that DVC has put on this machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from streaming import StreamingDataset

from data.loading.leftovers import clean_leftovers
from data.shards import HASH, verify_mds

_SOURCE = "source.txt"


def cache_folder(remote: str, cache: Path) -> Path:
    """The folder of one source: named by a hash of its address."""
    return cache / hashlib.sha256(remote.encode()).hexdigest()[:16]


def fetch_shards(remote: str, cache: Path) -> Path:
    """Copy every shard of `remote` under `cache`, verify all of them, and return the folder.

    ValueError when the folder holds another source's copy, when there is no finished set at `remote`, and when shards are damaged, by name.
    """
    folder = cache_folder(remote, cache)
    _claim(folder, remote)
    if (folder / "index.json").is_file():
        try:
            verify_mds(folder)
            return folder
        except ValueError:  # half a copy, damage, or another version of the source: fetch it again
            shutil.rmtree(folder)
            _claim(folder, remote)
    clean_leftovers()
    try:
        dataset = StreamingDataset(remote=remote, local=str(folder), validate_hash=HASH, batch_size=1, shuffle=False, allow_unsafe_types=False)
        for shard in range(dataset.num_shards):
            dataset.prepare_shard(shard)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        raise ValueError(f"cannot fetch the shards at {remote}: {error}; expected a finished MDS folder with {HASH} hashes") from error
    verify_mds(folder)
    return folder


def _claim(folder: Path, remote: str) -> None:
    """Write down whose copy a folder holds; ValueError when it is another's."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / _SOURCE
    if marker.is_file():
        claimed = marker.read_text(encoding="utf-8")
        if claimed != remote:
            raise ValueError(f"{folder} holds a copy of {claimed}, not of {remote}; give each source a folder of its own or remove this one")
        return
    temporary = folder / f".{_SOURCE}.{os.getpid()}"
    temporary.write_text(remote, encoding="utf-8")
    os.replace(temporary, marker)
