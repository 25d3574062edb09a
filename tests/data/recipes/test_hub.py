"""The hub: what is refused before the network is asked, and the streaming on files of this machine."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from data.mixture import make_recipe
from data.recipes.hub import Hub, shard_rows, tagged_commit

COMMIT = "3101c7d5072418e28b9008a6636bde82a006892c"


def test_a_commit_or_a_tag_is_taken() -> None:
    assert make_recipe("hub", {"dataset": "openai/gsm8k", "revision": COMMIT, "split": "train"}).version() == COMMIT
    assert make_recipe("hub", {"dataset": "owner/name", "revision": "v1.0", "split": "train", "config": "main"}).revision == "v1.0"


@pytest.mark.parametrize(("change", "message"), [
    ({"revision": None}, "revision: Input should be a valid string"),
    ({"revision": "main"}, "got 'main', expected a commit of 40 hex digits or a tag: a branch moves"),
    ({"revision": "refs/pr/3"}, "got 'refs/pr/3', expected a commit"),
    ({"revision": ""}, "got '', expected a commit"),
    ({"dataset": "/data/raw/mine"}, "expected owner/name; a saved copy on this machine is recipe saved"),
    ({"dataset": "../x"}, "expected owner/name"),
])
def test_what_cannot_be_repeated_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_recipe("hub", {"dataset": "owner/name", "revision": COMMIT, "split": "train", **change})


def test_a_missing_revision_is_refused() -> None:
    with pytest.raises(ValueError, match="options of recipe 'hub': revision: Field required"):
        make_recipe("hub", {"dataset": "owner/name", "split": "train"})


def test_a_branch_is_no_tag() -> None:
    assert tagged_commit("v2", {"v1": "a" * 40, "v2": COMMIT}, "owner/name") == COMMIT
    with pytest.raises(ValueError, match=r"owner/name has no tag 'dev' \(got v1\); expected one of them or a commit"):
        tagged_commit("dev", {"v1": "a" * 40}, "owner/name")


def test_without_a_network_the_message_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="cannot read data set 'owner/name' .*set HF_HUB_OFFLINE=0 and HF_DATASETS_OFFLINE=0"):
        Hub(dataset="owner/name", revision=COMMIT, split="train").pieces()


def test_a_folder_of_that_name_is_not_taken_for_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    with pytest.raises(ValueError, match="'owner/name' is also a path here"):
        Hub(dataset="owner/name", revision=COMMIT, split="train").pieces()


def test_the_shards_of_a_stream_are_its_records(tmp_path: Path) -> None:
    """The same streaming that reads the hub, on Parquet files of this machine."""
    rows = [{"question": f"q{i}", "answer": f"#### {i}"} for i in range(90)]
    for number in range(3):
        datasets.Dataset.from_list(rows[30 * number : 30 * number + 30]).to_parquet(tmp_path / f"{number}.parquet")
    stream = datasets.load_dataset("parquet", data_files=sorted(map(str, tmp_path.glob("*.parquet"))), split="train", streaming=True, cache_dir=str(tmp_path / "cache"))
    read = [list(shard_rows(stream, index, "owner/name@3101c7d5 train")) for index in range(stream.num_shards)]
    assert [row.value for shard in read for row in shard] == rows and len(read) == 3
    assert read[2][1].place == "owner/name@3101c7d5 train, shard 2, record 2"
