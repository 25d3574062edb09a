"""--show: the rows that training sees, from the finished output, without a trace on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.packing import PackedStream
from data.shards import open_mds
from stages.config import StageError
from stages.showing import packed, rendered
from tests.conftest import ROOT
from tests.stages import toy_chain

PARAMS = {"shared": {"seed": 3}, "pretrain": {"seq_len": 64, "packing": "sequential"}, "sft": {"seq_len": 160, "packing": "best_fit"}}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_chain.tokenize_output(tmp_path_factory.mktemp("project"))


def test_every_kind_and_split_is_shown(tokens: Path) -> None:
    texts = list(rendered(tokens, PARAMS, 2, colour=False))
    assert [text.split(",")[0] for text in texts] == [f"{kind}/{split}" for kind in ("text", "chat") for split in ("train", "val", "test")]
    assert all("row 1" in text for text in texts[:3])
    assert "<|im_start|>user↵" in texts[3] and "«" in texts[3]
    assert "<|im_end|>»" in texts[3], "the end of an assistant turn is trained"


def test_training_rows_are_those_of_training(tokens: Path) -> None:
    shown = packed(open_mds(tokens / "text/train"), "train", PARAMS["pretrain"], 3, 4)
    assert shown.tokens_BT.tolist() == PackedStream(open_mds(tokens / "text/train"), 64, 4, 3, "sequential").next().tokens_BT.tolist()
    assert len(packed(open_mds(tokens / "text/train"), "train", PARAMS["pretrain"], 3, 10_000).tokens_BT) < 10_000


def test_no_output_is_a_plain_refusal(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="not a finished output; make it with `dvc repro tokenize`"):
        list(rendered(tmp_path, PARAMS, 1, colour=False))


def test_the_command_line_shows_and_writes_nothing(tmp_path: Path, tokens: Path) -> None:
    (tmp_path / "data/out").mkdir(parents=True)
    (tmp_path / "data/out/tokenize").symlink_to(tokens)
    (tmp_path / "params.yaml").write_text("shared: {seed: 3}\npretrain: {seq_len: 64, packing: sequential}\nsft: {seq_len: 160, packing: best_fit}\n")
    before = sorted(tmp_path.rglob("*"))

    def run(*args: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-m", "stages.tokenize", *args], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)

    shown = run("--show", "1")
    assert shown.returncode == 0 and "text/train, row 0: 64 tokens" in shown.stdout and "\x1b" not in shown.stdout, shown.stderr
    refused = run("--show", "0")
    assert refused.returncode == 2 and "expected at least 1 row" in refused.stderr
    assert sorted(tmp_path.rglob("*")) == before
