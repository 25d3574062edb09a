"""Ready MDS shards, local, compressed and remote; a damaged one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from streaming import MDSWriter

from data.recipes.mds import Mds
from data.shards import write_mds

COLUMNS = {"text": "str", "messages": "json", "n": "int"}
ROWS = [{"text": f"document {i} " + "word " * (i % 50), "messages": [{"role": "user", "content": str(i)}], "n": i} for i in range(300)]


def read(recipe: Mds) -> list[object]:
    return [row.value for piece in recipe.pieces() for row in recipe.rows(piece)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_mds(tmp_path / "mds", COLUMNS, ROWS, 20_000)
    return tmp_path / "mds"


def test_a_piece_is_a_shard(folder: Path) -> None:
    recipe = Mds(path=str(folder))
    assert len(recipe.pieces()) == len(list(folder.glob("*.mds"))) > 1
    assert read(recipe) == ROWS
    (place, *_) = (row.place for row in recipe.rows(recipe.pieces()[1]))
    assert place == f"{folder}/shard.00001.mds, record 1"
    assert {path.name for path in recipe.local_files()} == {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("compression", ["zstd:3", "gz:5"])
def test_compressed_shards(tmp_path: Path, compression: str) -> None:
    with MDSWriter(out=str(tmp_path / "z"), columns=COLUMNS, compression=compression, hashes=["sha1"], size_limit=20_000) as writer:
        for row in ROWS:
            writer.write(row)
    assert read(Mds(path=str(tmp_path / "z"))) == ROWS


def test_a_remote_prefix(folder: Path, s3) -> None:
    s3.put(str(folder), "corpus/shards", recursive=True)
    recipe = Mds(path="s3://corpus/shards")
    assert read(recipe) == ROWS and recipe.local_files() == [] and recipe.version() == Mds(path=str(folder)).version()
    with pytest.raises(ValueError, match="cannot read s3://corpus/none/index.json"):
        Mds(path="s3://corpus/none").pieces()


@pytest.mark.parametrize(("damage", "message"), [
    (lambda raw: raw[:-100], "has .* bytes, the index says"),
    (lambda raw: raw[:500] + bytes([raw[500] ^ 1]) + raw[501:], "has xxh64 .*, the index says .*copy the shard again"),
])
def test_str04_a_damaged_shard_is_named(folder: Path, damage, message: str) -> None:
    """STR-04: cut or flipped, it is found before a record is taken out."""
    shard = folder / "shard.00001.mds"
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(ValueError, match=f"shard.00001.mds {message}"):
        read(Mds(path=str(folder)))


def test_columns_that_run_code_are_refused(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / "p"), columns={"text": "pkl"}) as writer:
        writer.write({"text": "x"})
    with pytest.raises(ValueError, match="(?i)pkl|unsafe"):
        read(Mds(path=str(tmp_path / "p")))


def test_what_is_no_mds_folder_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match="cannot read .*index.json .*expected a finished folder of MDS shards"):
        Mds(path=str(tmp_path)).pieces()
    index = folder / "index.json"
    index.write_text(index.read_text().replace('"shard.00000.mds"', '"../shard.00000.mds"'))
    with pytest.raises(ValueError, match="names files outside its folder"):
        Mds(path=str(folder)).pieces()
    index.write_text('{"shards": [{}]}')
    with pytest.raises(ValueError, match="is not an index of MDS shards"):
        Mds(path=str(folder)).pieces()
