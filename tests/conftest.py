"""Fixtures shared by the whole suite."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


FIRST = ("tests/test_chain.py", "tests/flows/")
"""What takes longest begins first, so that neither worker is left alone with it at the end."""


def pytest_configure(config: pytest.Config) -> None:
    """No test reaches the network, and test processes do not fight over the cores."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: the programs under test would inherit it and not hear Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(2, os.cpu_count() or 1))
    hypothesis.settings.register_profile("headrace", deadline=None)  # a busy machine is not a failing test
    hypothesis.settings.load_profile("headrace")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first; GPU tests are skipped where there is none."""
    items.sort(key=lambda item: next((i for i, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST)))
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout under test."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real public files beside the checkout; absent on a user's machine."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real sample files are not beside this checkout")
    return folder
