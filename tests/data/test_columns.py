"""Columns: the bytes are those of mosaicml-streaming's own writer, and its reader reads ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming import LocalDataset, MDSWriter

from data.columns import Columns
from data.shards import open_mds, write_mds

ENCODINGS = {"tokens": "ndarray:uint32", "mask": "ndarray:uint8", "id": "str", "raw": "bytes", "extra": "json", "n": "int", "num_bytes": "int64", "score": "float32"}
arrays = st.integers(1, 300).map(lambda n: n) | st.sampled_from([255, 256, 257, 65_535, 65_536])
rows = st.lists(st.fixed_dictionaries({"length": arrays, "id": st.text(max_size=20), "raw": st.binary(max_size=20), "n": st.integers(-(2**63), 2**63 - 1),
                                       "extra": st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)}), min_size=1, max_size=6)


def full(row: dict) -> dict:
    rng = np.random.default_rng(row["length"])
    return {"tokens": rng.integers(0, 2**32, row["length"], dtype=np.uint32), "mask": rng.integers(0, 2, row["length"], dtype=np.uint8), "id": row["id"], "raw": row["raw"],
            "extra": row["extra"], "n": row["n"], "num_bytes": row["n"], "score": float(row["length"]) / 8}


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@settings(max_examples=25, deadline=None)
@given(rows, st.sampled_from([1 << 12, 1 << 20]))
def test_files_equal_those_of_mdswriter(tmp_path_factory: pytest.TempPathFactory, drawn: list[dict], limit: int) -> None:
    """Byte for byte, index included; limits are kept above the first row, where MDSWriter would write an empty shard."""
    data, folder = [full(row) for row in drawn], tmp_path_factory.mktemp("w")
    encoded = [len(Columns(ENCODINGS).encode(row)) for row in data]
    limit = max(limit, 2000 + max(encoded))
    write_mds(folder / "ours", ENCODINGS, data, limit)
    with MDSWriter(out=str(folder / "theirs"), columns=ENCODINGS, hashes=["xxh64"], size_limit=limit) as writer:
        for row in data:
            writer.write(row)
    assert written(folder / "ours") == written(folder / "theirs")
    ours, theirs = open_mds(folder / "theirs"), LocalDataset(str(folder / "ours"))
    assert ours.lengths("tokens").tolist() == ours.lengths("mask").tolist() == [row["length"] for row in drawn]
    for i, row in enumerate(data):
        for found in (ours[i], theirs[i]):
            assert found.keys() == row.keys()
            assert all(np.array_equal(found[name], row[name]) and found[name].dtype == row[name].dtype for name in ("tokens", "mask"))
            assert all(found[name] == row[name] for name in row if name not in ("tokens", "mask"))
        assert ours.read(i, ("mask", "absent")).keys() == {"mask"}


def test_a_row_by_hand() -> None:
    """Sizes of a (2) and t (1 + 1 + 4), the text, the number, one axis with a one-byte length of 2, two elements."""
    data = Columns({"a": "str", "b": "uint16", "t": "ndarray:uint16"}).encode({"a": "hi", "b": 7, "t": np.array([1, 258], dtype=np.uint16)})
    assert data == bytes([2, 0, 0, 0, 6, 0, 0, 0]) + b"hi" + bytes([7, 0, 0b100, 2, 1, 0, 2, 1])


def test_several_axes_come_back(tmp_path: Path) -> None:
    grid = np.arange(600, dtype=np.int16).reshape(2, 300)
    write_mds(tmp_path / "m", {"grid": "ndarray:int16"}, [{"grid": grid}], 1 << 20)
    assert np.array_equal(open_mds(tmp_path / "m")[0]["grid"], grid) and np.array_equal(LocalDataset(str(tmp_path / "m"))[0]["grid"], grid)


def test_values_a_column_cannot_hold_are_refused(tmp_path: Path) -> None:
    columns = Columns({"tokens": "ndarray:uint16"})
    for array in (np.arange(3), np.zeros(0, np.uint16)):
        with pytest.raises(ValueError, match="column 'tokens' got .*expected uint16 with at least one element"):
            columns.encode({"tokens": array})


def test_encodings_that_are_not_read_here_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="picture=jpeg.*expected ndarray:TYPE"):
        Columns({"picture": "jpeg", "id": "str"})
    write_mds(tmp_path / "m", {"id": "str"}, [{"id": "x"}], 1000)
    with pytest.raises(ValueError, match="no array column 'tokens'; the columns are id=str"):
        open_mds(tmp_path / "m").lengths("tokens")
    index = json.loads((tmp_path / "m/index.json").read_text())
    index["shards"][0]["format"] = "csv"
    (tmp_path / "m/index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="of the format csv; expected mds"):
        open_mds(tmp_path / "m")
