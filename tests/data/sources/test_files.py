"""Which files a pattern names, and what a name tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.sources.files import check_encoding, expand_paths, file_format, is_known


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "deep/d.jsonl.zst", "odd[1].txt", "deep/picture.png", "deep/.hidden.txt", "deep/.cache/e.txt", "photos/f.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")
    return tmp_path


def test_paths_and_globs(folder: Path) -> None:
    assert expand_paths(["*.txt", "a.txt"]) == [Path("a.txt"), Path("b.txt"), Path("odd[1].txt")]
    assert expand_paths(["deep/er/**/c.txt", "odd[1].txt"]) == [Path("deep/er/c.txt"), Path("odd[1].txt")]
    with pytest.raises(ValueError, match="no file matches 'none/\\*.txt'"):
        expand_paths(["a.txt", "none/*.txt"])


def test_a_folder_is_every_file_of_a_known_format_below_it(folder: Path) -> None:
    assert expand_paths(["deep"]) == [Path("deep/d.jsonl.zst"), Path("deep/er/c.txt")]
    assert expand_paths(["deep/", "deep/er/c.txt"]) == [Path("deep/d.jsonl.zst"), Path("deep/er/c.txt")]
    with pytest.raises(ValueError, match=r"no file matches 'photos'.*it holds no file that ends in \.jsonl"):
        expand_paths(["photos"])


@pytest.mark.parametrize(("name", "format"), [("a.jsonl.gz", "jsonl"), ("b.MD", "text"), ("c.tar.csv", "csv"), ("d.txt.zst", "text"), ("e.json", "json"),
                                              ("s3://b/k/f.arrow", "arrow"), ("g.parquet.gz", "parquet")])
def test_file_format(name: str, format: str) -> None:
    assert file_format(name) == format and is_known(name)


def test_unknown_suffixes() -> None:
    with pytest.raises(ValueError, match=r"a\.docx: cannot tell the format of '\.docx' files; name one of"):
        file_format("a.docx")
    assert not is_known("README") and not is_known("x/.git/a.txt") and not is_known("a.gz")


def test_encodings_are_checked_by_name() -> None:
    for name in ("auto", "utf-8", "UTF16", "cp1252"):
        check_encoding(name)
    for name in ("utf-9", "base64", "rot13", ""):
        with pytest.raises(ValueError, match=f"option `encoding`: got '{name}', expected auto or a text encoding"):
            check_encoding(name)
