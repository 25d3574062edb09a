"""What save_to_disk of the real library wrote is read back whole."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from data.mixture import find
from data.recipes.saved import Saved

ROWS = [{"conversations": [{"from": "human", "value": f"question {i}"}, {"from": "gpt", "value": f"answer {i}"}], "score": i / 7} for i in range(700)]


def read(recipe: Saved) -> list[object]:
    return [row.value for piece in recipe.pieces() for row in recipe.rows(piece)]


@pytest.fixture(scope="module")
def made() -> datasets.Dataset:
    return datasets.Dataset.from_list(ROWS)


def test_a_data_set_in_several_files(tmp_path: Path, made: datasets.Dataset) -> None:
    made.save_to_disk(tmp_path / "d", num_shards=3)
    recipe = Saved(path=str(tmp_path / "d"))
    assert len(recipe.pieces()) == 3 and read(recipe) == ROWS
    assert recipe.version().startswith("fingerprint ") and len(recipe.local_files()) == 4
    found = find("saved", {"path": str(tmp_path / "d")}, kind="auto", record_format="auto", fields={})
    assert (found.kind, found.format.name, found.sampled) == ("chat", "sharegpt", 20)


def test_a_selection_is_saved_and_read_as_selected(tmp_path: Path, made: datasets.Dataset) -> None:
    made.select([5, 3, 9]).save_to_disk(tmp_path / "d")
    assert read(Saved(path=str(tmp_path / "d"))) == [ROWS[5], ROWS[3], ROWS[9]]


def test_splits_are_named(tmp_path: Path, made: datasets.Dataset) -> None:
    datasets.DatasetDict({"train": made.select(range(600)), "test": made.select(range(600, 700))}).save_to_disk(tmp_path / "d")
    assert read(Saved(path=str(tmp_path / "d"), split="test")) == ROWS[600:]
    with pytest.raises(ValueError, match="has the splits train, test, got None; name one of them"):
        Saved(path=str(tmp_path / "d")).pieces()
    with pytest.raises(ValueError, match="holds no splits, got split 'train'; expected null"):
        Saved(path=str(tmp_path / "d" / "train"), split="train").pieces()


def test_what_is_no_saved_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="state.json does not list the files of a saved data set"):
        Saved(path=str(tmp_path)).pieces()
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../../etc/x.arrow"}]}))
    with pytest.raises(ValueError, match="expected the names of files beside it"):
        Saved(path=str(tmp_path)).pieces()
