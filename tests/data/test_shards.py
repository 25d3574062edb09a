"""Token shards: complete or refused, damage found and named, equal rows give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from streaming import LocalDataset, StreamingDataset

from data.shards import open_mds, verify_mds, write_mds

COLUMNS = {"tokens": "ndarray:uint16", "num_bytes": "int64", "source": "str", "id": "str"}


def rows(count: int, length: int = 50) -> Iterator[dict]:
    rng = np.random.default_rng(1)
    for i in range(count):
        yield {"tokens": rng.integers(0, 600, length).astype(np.uint16), "num_bytes": i, "source": "täst", "id": f"d{i}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """About a dozen shards of equal length."""
    assert write_mds(tmp_path / "mds", COLUMNS, rows(100), shard_bytes=2000) == 100
    assert len(list((tmp_path / "mds").glob("*.mds"))) > 5
    return tmp_path / "mds"


def assert_same_rows(found: object, expected: list[dict]) -> None:
    assert len(found) == len(expected)
    for i, row in enumerate(expected):
        got = found[i]
        assert got.keys() == row.keys()
        assert got["tokens"].dtype == row["tokens"].dtype and got["tokens"].tolist() == row["tokens"].tolist()
        assert {k: v for k, v in got.items() if k != "tokens"} == {k: v for k, v in row.items() if k != "tokens"}


def test_rows_come_back(folder: Path) -> None:
    assert_same_rows(open_mds(folder), list(rows(100)))
    assert_same_rows(LocalDataset(str(folder)), list(rows(100)))
    assert verify_mds(folder) == 100


def test_streaming_reads_the_folder_in_order(folder: Path) -> None:
    """The shards serve mosaicml-streaming's own loader as they are."""
    stream = StreamingDataset(local=str(folder), remote=None, shuffle=False, batch_size=1)
    assert [row["id"] for row in stream] == [f"d{i}" for i in range(100)]


def test_document_lengths_count_their_separator(tmp_path: Path) -> None:
    """DATA-02: documents of 4, 1 and 7 tokens, each with its own separator at its end and the next on its own first token."""
    documents = [[5, 6, 7, 8, 0], [9, 0], [1, 2, 3, 4, 5, 6, 7, 0]]
    write_mds(tmp_path / "m", {"tokens": "ndarray:uint16"}, ({"tokens": np.array(d, dtype=np.uint16)} for d in documents), 1 << 20)
    assert [open_mds(tmp_path / "m")[i]["tokens"].tolist() for i in range(3)] == documents


def test_wide_ids_come_back_unchanged(tmp_path: Path) -> None:
    """DATA-04."""
    wide = np.array([65_534, 65_535, 65_536, 65_537, 69_999], dtype=np.uint32)
    write_mds(tmp_path / "m", {"tokens": "ndarray:uint32"}, [{"tokens": wide}], 1 << 20)
    assert open_mds(tmp_path / "m")[0]["tokens"].tolist() == wide.tolist()


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_mds(tmp_path / name, COLUMNS, rows(60), shard_bytes=3000)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert files[0] == files[1] and len(files[0]) > 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def swap(path: Path) -> None:
    other = path.with_name("shard.00003.mds")
    first, second = path.read_bytes(), other.read_bytes()
    assert len(first) == len(second) and first != second
    path.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize("damage", [cut, flip, swap, Path.unlink])
def test_damage_is_found_and_the_shard_named(folder: Path, damage: object) -> None:
    """STR-04."""
    damage(folder / "shard.00002.mds")
    with pytest.raises(ValueError, match="damaged shards.*shard.00002.mds") as error:
        verify_mds(folder)
    assert ("shard.00003.mds" in str(error.value)) == (damage is swap)
    assert "shard.00001.mds" not in str(error.value)


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_cut_or_missing_shard_is_found_on_opening(folder: Path, damage: object) -> None:
    """STR-04: before training, not when its sample is reached."""
    damage(folder / "shard.00004.mds")
    with pytest.raises(ValueError, match="shard.00004.mds"):
        open_mds(folder)


def test_a_writer_that_fails_leaves_nothing_that_opens(tmp_path: Path) -> None:
    """STR-05: shards without an index; the error of the source is passed on."""
    def failing() -> Iterator[dict]:
        yield from rows(40)
        raise RuntimeError("source broke")

    with pytest.raises(RuntimeError, match="source broke"):
        write_mds(tmp_path / "half", COLUMNS, failing(), shard_bytes=2000)
    assert list((tmp_path / "half").glob("*.mds"))
    for reader in (open_mds, verify_mds):
        with pytest.raises(ValueError, match="no index.json.*stopped half-way"):
            reader(tmp_path / "half")
    with pytest.raises(ValueError, match="already holds files"):
        write_mds(tmp_path / "half", COLUMNS, rows(40), shard_bytes=2000)


def test_a_reader_beside_a_working_writer_is_refused(tmp_path: Path) -> None:
    """STR-05."""
    def watched() -> Iterator[dict]:
        for i, row in enumerate(rows(40)):
            if i == 30:
                assert list((tmp_path / "m").glob("*.mds"))
                with pytest.raises(ValueError, match="no index.json"):
                    open_mds(tmp_path / "m")
            yield row

    assert write_mds(tmp_path / "m", COLUMNS, watched(), shard_bytes=2000) == 40
    assert len(open_mds(tmp_path / "m")) == 40


def test_half_an_index_is_refused(folder: Path) -> None:
    """STR-05."""
    text = (folder / "index.json").read_text()
    for broken in (text[: len(text) // 2], "{}", ""):
        (folder / "index.json").write_text(broken)
        with pytest.raises(ValueError, match="not a complete MDS index"):
            open_mds(folder)


def test_leftover_shards_and_unhashed_shards_are_named(folder: Path) -> None:
    """STR-05: old and new shards mixed."""
    (folder / "shard.00099.mds").write_bytes(b"old")
    index = json.loads((folder / "index.json").read_text())
    index["shards"][1]["raw_data"]["hashes"] = {}
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="shard.00001.mds has no xxh64 hash.*shard.00099.mds is not listed"):
        verify_mds(folder)


def test_a_shard_listed_twice_is_refused(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["shards"].append(index["shards"][0])
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="shard.00000.mds more than once"):
        open_mds(folder)


def test_rows_larger_than_a_shard_get_one_of_their_own(tmp_path: Path) -> None:
    long, short = np.arange(3000, dtype=np.uint16), np.arange(5, dtype=np.uint16)
    order = [long, short, short, long, short]
    write_mds(tmp_path / "m", {"tokens": "ndarray:uint16"}, ({"tokens": tokens} for tokens in order), shard_bytes=1000)
    assert [shard["samples"] for shard in json.loads((tmp_path / "m" / "index.json").read_text())["shards"]] == [1, 2, 1, 1]
    assert [len(open_mds(tmp_path / "m")[i]["tokens"]) for i in range(5)] == [3000, 5, 5, 3000, 5]


def test_an_empty_split_opens_with_no_rows(tmp_path: Path) -> None:
    assert write_mds(tmp_path / "m", COLUMNS, [], shard_bytes=1000) == 0
    assert len(open_mds(tmp_path / "m")) == 0 and verify_mds(tmp_path / "m") == 0


def test_rows_outside_the_folder_are_refused(folder: Path) -> None:
    for index in (-1, 100):
        with pytest.raises(IndexError, match="which has 100 rows"):
            open_mds(folder)[index]


def test_columns_that_run_code_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match="tokens are of the unsafe type: pkl, which runs code"):
        write_mds(tmp_path / "m", {"tokens": "pkl"}, [], 1000)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["column_encodings"][0] = "pkl"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="unsafe type: pkl"):
        open_mds(folder)


def test_damaged_shards_can_be_left_out_and_are_counted(folder: Path) -> None:
    """STR-04: by setting; the rest is read in order, each loss is named, and nothing is left when nothing is sound."""
    whole = list(rows(100))
    counts = [shard["samples"] for shard in json.loads((folder / "index.json").read_text())["shards"]]
    flip(folder / "shard.00002.mds")
    cut(folder / "shard.00005.mds")
    (folder / "shard.00006.mds").unlink()
    found = open_mds(folder, damaged="skip")
    assert [fault.split()[0] for fault in found.skipped] == ["shard.00002.mds", "shard.00005.mds", "shard.00006.mds"]
    assert found.skipped_rows == counts[2] + counts[5] + counts[6] == 100 - len(found)
    starts = np.cumsum([0, *counts])
    gone = {i for shard in (2, 5, 6) for i in range(starts[shard], starts[shard + 1])}
    assert_same_rows(found, [row for i, row in enumerate(whole) if i not in gone])
    for path in folder.glob("*.mds"):
        path.unlink()
    with pytest.raises(ValueError, match="damaged shards.*shard.00000.mds is missing"):
        open_mds(folder, damaged="skip")


def test_a_shard_whose_own_count_disagrees_is_named(folder: Path) -> None:
    """STR-04: same size, another number of rows inside; found at the first touch even without its hash."""
    path = folder / "shard.00001.mds"
    path.write_bytes((99).to_bytes(4, "little") + path.read_bytes()[4:])
    with pytest.raises(ValueError, match="shard.00001.mds holds 99 rows, the index says"):
        [open_mds(folder)[i] for i in range(100)]


def test_many_shards_need_few_open_files(tmp_path: Path) -> None:
    data = [{"tokens": np.array([i + 1], dtype=np.uint16)} for i in range(1500)]
    write_mds(tmp_path / "m", {"tokens": "ndarray:uint16"}, data, shard_bytes=1)
    found = open_mds(tmp_path / "m")
    assert len(list((tmp_path / "m").glob("*.mds"))) == 1500
    assert [int(found[i]["tokens"][0]) for i in range(1500)] == list(range(1, 1501)) and found.lengths("tokens").tolist() == [1] * 1500
    assert len(list(Path("/proc/self/fd").iterdir())) < 600
