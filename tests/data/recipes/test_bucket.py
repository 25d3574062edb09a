"""Objects of a real S3 server, read as files are."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from data.mixture import find, make_recipe
from data.recipes.bucket import Bucket
from data.recipes.recipe import Location
from stages.config import parse_section
from stages.context import Context
from stages.prepare import Config, run
from tests.stages.test_prepare import BASE

ROWS = [{"text": f"note {i}", "n": i} for i in range(500)]


def jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read(location: Location, columns: tuple[str, ...] | None = None) -> list[object]:
    return [row.value for piece in location.pieces() for row in location.rows(piece, columns)]


@pytest.fixture(scope="module")
def filled(s3) -> str:
    table = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS[300:]), table, row_group_size=64)
    for name, data in {"a.jsonl.gz": gzip.compress(jsonl(ROWS[:100])), "deep/b.jsonl.zst": zstandard.compress(jsonl(ROWS[100:200])), "deep/c.json": json.dumps(ROWS[200:300]).encode(),
                       "deep/d.parquet": table.getvalue(), "deep/e.png": b"no records", "deep/.hidden.jsonl": b"{}", "_SUCCESS": b""}.items():
        s3.pipe(f"corpus/pre/{name}", data)
    return "s3://corpus/pre"


def test_a_prefix_is_every_object_of_a_known_format_below_it(filled: str) -> None:
    bucket = Bucket(paths=[filled])
    assert [piece[0].removeprefix(filled) for piece in bucket.pieces()] == ["/a.jsonl.gz", "/deep/b.jsonl.zst", "/deep/c.json", "/deep/d.parquet"]
    assert read(bucket) == ROWS and bucket.local_files() == []
    assert read(bucket, ("text",))[-1] == {"text": "note 499"}


def test_globs_objects_and_places(filled: str) -> None:
    assert read(Bucket(paths=[f"{filled}/deep/*.parquet", f"{filled}/a.jsonl.gz"])) == ROWS[:100] + ROWS[300:]
    (piece,) = (bucket := Bucket(paths=[f"{filled}/a.jsonl.gz"])).pieces()
    assert next(bucket.rows(piece)).place == f"{filled}/a.jsonl.gz:1"
    with pytest.raises(ValueError, match="no object matches 's3://corpus/none/'"):
        Bucket(paths=["s3://corpus/none/"]).pieces()


def test_a_changed_object_changes_stamp_and_version_and_a_pin_refuses_it(filled: str, s3) -> None:
    s3.pipe("corpus/moving/a.jsonl", jsonl(ROWS[:3]))
    bucket = Bucket(paths=["s3://corpus/moving"])
    (piece,), version = bucket.pieces(), bucket.version()
    stamp, pinned = bucket.stamp(piece), Bucket(paths=bucket.paths, revision=version)
    assert pinned.pieces() == [piece] and Bucket(paths=bucket.paths).stamp(piece) == stamp
    s3.pipe("corpus/moving/a.jsonl", jsonl(ROWS[3:6]))
    assert bucket.stamp(piece) != stamp and bucket.version() != version
    with pytest.raises(ValueError, match=f"is now version {bucket.version()}, expected {version}: objects were changed"):
        pinned.pieces()


def test_the_format_is_detected_from_a_bucket(filled: str) -> None:
    found = find("bucket", {"paths": [filled]}, kind="auto", record_format="auto", fields={})
    assert found.facts() == {"kind": "text", "format": "text", "detected_from": 20, "revision": found.location.version()}


@pytest.mark.parametrize(("options", "message"), [
    ({"paths": ["corpus/pre"]}, "got 'corpus/pre', expected an address with its protocol"),
    ({"paths": ["s3://corpus/pre"], "encoding": "utf-9"}, "option `encoding`: got 'utf-9'"),
    ({"paths": ["s3://corpus/pre"], "field": "text"}, "field: Unexpected keyword argument"),
])
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_recipe("bucket", options)


def test_a_bucket_that_is_not_there_is_named(s3) -> None:
    with pytest.raises(ValueError, match="cannot list 's3://absent/x/.*.jsonl' .*check the address, the credentials|no object matches 's3://absent/x/"):
        Bucket(paths=["s3://absent/x/*.jsonl"]).pieces()


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(ValueError, match="cannot open 'nowhere://x/y' .*expected s3://, gs://"):
        Bucket(paths=["nowhere://x/y"]).pieces()


def test_prepare_reads_text_and_chats_from_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: str, s3) -> None:
    """Nothing of it is on this machine, so nothing is asked of DVC; the report names the version that was read."""
    monkeypatch.chdir(tmp_path)
    s3.pipe("corpus/chats/a.jsonl.gz", gzip.compress(jsonl([{"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "a"}]} for i in range(200)])))
    section = {**BASE, "workers": 2, "num_chats": 0, "mixture": {"text": {"recipe": "bucket", "weight": 1.0, "options": {"paths": [filled]}},
                                                              "chats": {"recipe": "bucket", "licence": "MIT", "options": {"paths": ["s3://corpus/chats/*"]}}}}
    run(parse_section(Config, "prepare", {"prepare": section}), Context.for_test(tmp_path / "a", "prepare", {}, 7))
    sources = json.loads((tmp_path / "a" / "out" / "report.json").read_text())["sources"]
    assert {name: (source["kept"], source["format"]) for name, source in sources.items()} == {"text": (500, "text"), "chats": (200, "messages")}
    assert sources["text"]["revision"] == Bucket(paths=[filled]).version()
