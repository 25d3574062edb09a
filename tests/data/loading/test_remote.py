"""Shards from elsewhere: each source in a folder of its own, whole and verified, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from streaming import MDSWriter

from data.loading.remote import cache_folder, fetch_shards
from data.shards import open_mds, write_mds

COLUMNS = {"tokens": "ndarray:uint16"}


def make(folder: Path, first: int) -> str:
    write_mds(folder, COLUMNS, ({"tokens": np.arange(first + i, first + i + 9, dtype=np.uint16)} for i in range(40)), 400)
    return str(folder)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))


def tokens(folder: Path) -> list[list[int]]:
    rows = open_mds(folder)
    return [rows[i]["tokens"].tolist() for i in range(len(rows))]


def test_str06_two_sources_under_one_cache_are_kept_apart(tmp_path: Path) -> None:
    """STR-06: training and evaluation shards with the same names, the same sizes and the same cache."""
    train, val = make(tmp_path / "remote/train", 1), make(tmp_path / "remote/val", 5000)
    copies = [fetch_shards(source, tmp_path / "cache") for source in (train, val)]
    assert copies[0] != copies[1] and tokens(copies[0]) == tokens(Path(train)) and tokens(copies[1]) == tokens(Path(val))
    before = {path: path.stat().st_mtime_ns for path in copies[0].iterdir()}
    assert fetch_shards(train, tmp_path / "cache") == copies[0]
    assert {path: path.stat().st_mtime_ns for path in copies[0].iterdir()} == before


def test_str06_a_folder_of_another_source_is_refused(tmp_path: Path) -> None:
    train = make(tmp_path / "remote/train", 1)
    folder = cache_folder(train, tmp_path / "cache")
    folder.mkdir(parents=True)
    (folder / "source.txt").write_text("s3://other/val")
    with pytest.raises(ValueError, match="holds a copy of s3://other/val, not of .*give each source a folder"):
        fetch_shards(train, tmp_path / "cache")


def test_str04_a_damaged_copy_is_fetched_again_and_a_damaged_source_named(tmp_path: Path) -> None:
    """STR-04: never wrong tokens."""
    train = make(tmp_path / "remote/train", 1)
    copy = fetch_shards(train, tmp_path / "cache")
    flip(copy / "shard.00002.mds")
    assert tokens(fetch_shards(train, tmp_path / "cache")) == tokens(Path(train))
    flip(Path(train) / "shard.00002.mds")
    with pytest.raises(ValueError, match="cannot fetch the shards at .*shard.00002.mds"):
        fetch_shards(train, tmp_path / "other")


def test_str05_an_unfinished_set_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "half", 1)
    (tmp_path / "half/index.json").unlink()
    with pytest.raises(ValueError, match="cannot fetch the shards at .*half.*expected a finished MDS folder"):
        fetch_shards(str(tmp_path / "half"), tmp_path / "cache")


def test_compressed_sets_of_others_are_read(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / "theirs"), columns=COLUMNS, compression="zstd", hashes=["xxh64"], size_limit=400) as writer:
        for i in range(40):
            writer.write({"tokens": np.arange(i, i + 9, dtype=np.uint16)})
    with pytest.raises(ValueError, match="shard.00000.mds is missing, only a compressed copy is there"):
        open_mds(tmp_path / "theirs")
    assert tokens(fetch_shards(str(tmp_path / "theirs"), tmp_path / "cache")) == [list(range(i, i + 9)) for i in range(40)]
