"""Batches made ahead are the batches of the stream, whatever runs ahead, stops, or shares them out."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from data.layout import IGNORE, PackedBatch
from data.loading.prefetch import Prefetched
from data.packing import PackedStream, eval_rows
from data.shards import open_mds, write_mds
from tests.conftest import ROOT

FIELDS = ("tokens_BT", "targets_BT", "positions_BT", "segments_BT")


def same(a: PackedBatch, b: PackedBatch) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in FIELDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents, each of tokens of its own, in several shards."""
    rng, first, rows = np.random.default_rng(0), 1, []
    for length in rng.integers(3, 40, 60):
        rows.append({"tokens": np.arange(first, first + length, dtype=np.uint16)})
        first += length
    path = tmp_path_factory.mktemp("shards") / "m"
    write_mds(path, {"tokens": "ndarray:uint16"}, rows, shard_bytes=600)
    return path


def plain(folder: Path, policy: str = "sequential") -> PackedStream:
    return PackedStream(open_mds(folder), 16, 4, 7, policy)


def ahead(folder: Path, policy: str = "sequential", **settings: int) -> Prefetched:
    return Prefetched(plain(folder, policy), **settings)


@pytest.mark.parametrize("policy", ["sequential", "best_fit", "none"])
@pytest.mark.parametrize(("workers", "depth"), [(1, 1), (2, 3), (4, 9)])
def test_workers_and_depth_change_nothing(folder: Path, policy: str, workers: int, depth: int) -> None:
    expected, found = plain(folder, policy), ahead(folder, policy, workers=workers, depth=depth)
    for _ in range(40):
        assert found.state() == expected.state() and found.report() == expected.report()
        assert same(found.next(), expected.next())
    assert expected.state()["epoch"] >= 1
    found.close()


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_out_the_batches_of_one(folder: Path, ranks: int) -> None:
    """STR-03, in training: the ranks' rows in order are the global batch, each row in one rank."""
    whole, parts = ahead(folder), [ahead(folder, workers=2, rank=rank, ranks=ranks) for rank in range(ranks)]
    for _ in range(25):
        batch, shares = whole.next(), [part.next() for part in parts]
        assert all(np.array_equal(getattr(batch, name), np.concatenate([getattr(share, name) for share in shares])) for name in FIELDS)
        assert len({json.dumps(part.state()) for part in [whole, *parts]}) == 1


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_str03_evaluation_counts_each_sample_once(tmp_path: Path, ranks: int) -> None:
    """STR-03: ten samples over ranks that do not divide their rows; nothing repeated, nothing left out."""
    rows = [{"tokens": np.arange(10 * i + 1, 10 * i + 8, dtype=np.uint16)} for i in range(10)]
    write_mds(tmp_path / "m", {"tokens": "ndarray:uint16"}, rows, shard_bytes=100)
    batch = eval_rows(open_mds(tmp_path / "m"), 8).batch
    targets = [int(t) for rank in range(ranks) for t in batch.share(rank, ranks).targets_BT.ravel() if t != IGNORE]
    assert sorted(targets) == sorted(int(t) for row in rows for t in row["tokens"][1:])


@pytest.mark.parametrize("policy", ["sequential", "best_fit"])
def test_str01_a_new_reader_goes_on_where_the_place_was_saved(folder: Path, policy: str) -> None:
    """STR-01: in the same process beside the old reader, and in the old one used again."""
    first = ahead(folder, policy, depth=4)
    batches = [first.next() for _ in range(5)]
    state = json.loads(json.dumps(first.state()))
    rest = [first.next() for _ in range(5)]
    second = ahead(folder, policy, workers=2)
    for reader in (second, first):
        reader.restore(state)
        assert all(same(reader.next(), batch) for batch in rest)
    first.restore(plain(folder, policy).state())
    assert all(same(first.next(), batch) for batch in [*batches, *rest])


CHILD = """
import json, sys
from pathlib import Path
from data.loading.prefetch import Prefetched
from data.packing import PackedStream
from data.shards import open_mds
stream = Prefetched(PackedStream(open_mds(Path(sys.argv[1])), 16, 4, 7, "sequential"), depth=int(sys.argv[3]), workers=2)
if sys.argv[2] != "-":
    stream.restore(json.loads(sys.argv[2]))
tokens = [stream.next().tokens_BT.tolist() for _ in range(int(sys.argv[4]))]
print(json.dumps([tokens, stream.state()]))
"""


def test_str01_str07_a_new_process_goes_on_twice_in_the_same_epoch(folder: Path) -> None:
    """STR-01, STR-07: three batches trained with five fetched ahead, saved; two more in a process with another depth, saved; two more in a third."""
    expected = plain(folder)
    wanted = [expected.next().tokens_BT.tolist() for _ in range(7)]
    state, found = "-", []
    for depth, count in ((5, 3), (1, 2), (8, 2)):
        done = subprocess.run([sys.executable, "-c", CHILD, str(folder), state, str(depth), str(count)], cwd=ROOT, capture_output=True, text=True, check=True)
        tokens, place = json.loads(done.stdout)
        assert place["epoch"] == 0
        state, found = json.dumps(place), [*found, *tokens]
    assert found == wanted


def test_str02_resume_at_the_end_of_an_epoch(folder: Path) -> None:
    """STR-02: saved after the last batch of epoch 0 and of epoch 2, with more fetched ahead across the border each time."""
    reader, states, batches = ahead(folder, depth=3), [], []
    while not states or states[-1]["epoch"] < 4:
        states.append(reader.state())
        batches.append(reader.next())
    for epoch in (0, 2):
        last = max(i for i, state in enumerate(states) if state["epoch"] == epoch)
        place = next(i for i in range(last, len(states)) if i + 1 == len(states) or states[i + 1]["epoch"] > epoch)
        resumed = ahead(folder, depth=2)
        resumed.restore(states[place])
        assert all(same(resumed.next(), batch) for batch in batches[place : place + 4])
    assert not same(batches[0], batches[next(i for i, state in enumerate(states) if state["epoch"] == 1)])


def test_str07_what_was_fetched_and_not_trained_on_is_not_counted(folder: Path) -> None:
    """STR-07: two workers, eight batches ahead; three trained; resumed with another depth at the fourth, and the report counts three."""
    expected, reader = plain(folder), ahead(folder, depth=8, workers=2)
    for _ in range(3):
        assert same(reader.next(), expected.next())
    assert reader.state() == expected.state() and reader.report() == expected.report()
    resumed = ahead(folder, depth=1)
    resumed.restore(reader.state())
    assert same(resumed.next(), expected.next())
    reader.close()
    assert reader.state() == resumed._stream.state() or reader.state()["batch"] == 3


def test_a_damaged_shard_surfaces_in_the_training_thread(folder: Path, tmp_path: Path) -> None:
    """STR-04: an error of a thread is neither lost nor turned into a hang, and the place is not moved."""
    class Broken(list):
        def __getitem__(self, index: int) -> dict:
            if threading.current_thread().name.startswith("batch"):
                raise ValueError("shard.00003.mds is damaged")
            return super().__getitem__(index)

    rows = open_mds(folder)
    reader = Prefetched(PackedStream(Broken([rows[i] for i in range(len(rows))]), 16, 4, 7, "sequential"))
    before = reader.state()
    for _ in range(2):
        with pytest.raises(ValueError, match="shard.00003.mds is damaged"):
            reader.next()
    assert reader.state() == before


def test_settings_that_cannot_be_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="4 rows does not divide among 3 ranks; use a multiple of 3 rows, such as 6"):
        ahead(folder, ranks=3)
    for settings in ({"depth": 0}, {"workers": 0}, {"rank": 2, "ranks": 2}):
        with pytest.raises(ValueError, match="expected at least one batch and one thread"):
            ahead(folder, **settings)
    reader, before = ahead(folder), plain(folder).state()
    with pytest.raises(ValueError, match="seed=8"):
        reader.restore({**before, "seed": 8})
    assert reader.state() == before


def test_waiting_is_measured(folder: Path) -> None:
    reader = ahead(folder)
    reader.next()
    assert reader.wait_seconds > 0
