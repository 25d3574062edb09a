"""Tensor files and one-rename folders: byte equality with the safetensors library, faults, a full disk (CKPT-04)."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest
import safetensors.torch
import torch

from models.storage import DTYPE_NAMES, publish_folder, read_tensors, sha256_file, write_tensors


def every_dtype() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for dtype in DTYPE_NAMES:
        values = torch.randint(0, 2, (3, 5), generator=generator)
        tensors[f"x.{DTYPE_NAMES[dtype].lower()}"] = values.to(dtype)
    return tensors | {"a scalar": torch.tensor(7.5), "empty": torch.zeros(0, 4), "naïve \"name\"": torch.ones(1, dtype=torch.float64)}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_bytes_are_those_of_the_safetensors_library(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    tensors = every_dtype()
    digest = write_tensors(tmp_path / "ours", tensors, metadata)
    safetensors.torch.save_file(tensors, tmp_path / "theirs", metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert digest == sha256_file(tmp_path / "ours")


def test_round_trip_is_bit_exact_for_every_dtype(tmp_path: Path) -> None:
    tensors = every_dtype() | {"nan": torch.tensor([float("nan"), -0.0, float("inf")])}
    write_tensors(tmp_path / "file", dict(reversed(tensors.items())))
    loaded = read_tensors(tmp_path / "file")
    assert set(loaded) == set(tensors)
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype and loaded[name].shape == value.shape
        assert torch.equal(loaded[name].reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8)), name


def test_tensors_read_are_aligned_and_outlive_the_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {f"t{size}": torch.ones(size, dtype=torch.float16) for size in range(1001, 1006)})
    loaded = read_tensors(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"")
    assert all(value.data_ptr() % 64 == 0 and value.sum() == value.numel() for value in loaded.values())


def test_views_are_written_as_their_own_values(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    write_tensors(tmp_path / "file", {"t": base.t(), "slice": base[:, 1:3], "base": base})
    loaded = read_tensors(tmp_path / "file")
    assert torch.equal(loaded["t"], base.t()) and torch.equal(loaded["slice"], base[:, 1:3])


def test_unstorable_dtype_and_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tensor z has dtype torch.complex64"):
        write_tensors(tmp_path / "file", {"z": torch.zeros(1, dtype=torch.complex64)})
    write_tensors(tmp_path / "file", {"z": torch.zeros(100)})
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:-1])
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        read_tensors(tmp_path / "file")
    with pytest.raises(ValueError, match="no such tensor file"):
        read_tensors(tmp_path / "other")


def test_publish_replaces_the_whole_folder(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    publish_folder(target, lambda folder: (folder / "old").write_text("1") and None)
    publish_folder(target, lambda folder: (folder / "new").write_text("2") and None)
    assert sorted(path.name for path in target.parent.rglob("*")) == ["new", "out"]


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_failed_fill_leaves_the_old_folder_and_no_debris(tmp_path: Path, error: BaseException) -> None:
    publish_folder(tmp_path / "out", lambda folder: (folder / "old").write_text("1") and None)

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise error

    with pytest.raises(type(error)):
        publish_folder(tmp_path / "out", fail)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["old", "out"]


@pytest.mark.parametrize(("faults", "calls"), [(2, 3), (3, 3)])
def test_ckpt_04_a_passing_fault_is_tried_again_three_times(tmp_path: Path, faults: int, calls: int) -> None:
    seen = []

    def flaky(folder: Path) -> None:
        seen.append(sorted(path.name for path in folder.iterdir()))
        (folder / "file").write_text("x")
        if len(seen) <= faults:
            raise OSError(errno.EIO, "Input/output error")

    if faults < 3:
        publish_folder(tmp_path / "out", flaky)
        assert (tmp_path / "out" / "file").is_file()
    else:
        with pytest.raises(OSError, match="out was not written: Input/output error"):
            publish_folder(tmp_path / "out", flaky)
        assert not list(tmp_path.iterdir())
    assert seen == [[]] * calls


def test_ckpt_04_full_disk_names_the_cause_and_cleans_up(tiny_disk: Path) -> None:
    publish_folder(tiny_disk / "first", lambda folder: write_tensors(folder / "t", {"x": torch.ones(150_000)}) and None)
    with pytest.raises(OSError, match="second was not written: the disk is full") as caught:
        publish_folder(tiny_disk / "second", lambda folder: write_tensors(folder / "t", {"x": torch.ones(150_000)}) and None)
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tiny_disk.iterdir()] == ["first"]
    assert torch.equal(read_tensors(tiny_disk / "first" / "t")["x"], torch.ones(150_000))


def test_ckpt_04_process_file_limit_names_the_cause(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="process limit allows"):
            publish_folder(tmp_path / "out", lambda folder: write_tensors(folder / "t", {"x": torch.ones(50_000)}) and None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
