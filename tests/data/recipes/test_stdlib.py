"""The standard library as a corpus, and the record of which one it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data.problems import ProblemSource
from data.recipes import stdlib
from data.recipes.recipe import Scope
from data.recipes.stdlib import Stdlib, difference, identity, main, stdlib_files

SCOPE = Scope(target_bytes=1, problems=ProblemSource(seed=0, tasks={}, val_fraction=0.1, test_fraction=0.1))


def texts(kind: str) -> list[str | None]:
    recipe = Stdlib(kind=kind)
    return [record.text for part in recipe.parts(SCOPE) for record in recipe.read(part, SCOPE)]


def test_data13_code_and_documentation_of_a_module_are_one_group() -> None:
    code, docs = (next(Stdlib(kind=kind).read(("json/decoder.py",), SCOPE)) for kind in ("code", "docs"))
    assert code.group == docs.group == "stdlib/json/decoder.py" and code.text != docs.text


def test_files_are_library_sources_in_a_fixed_order() -> None:
    files = stdlib_files()
    assert files == sorted(files) and {"json/decoder.py", "argparse.py"} <= set(files)
    assert not [name for name in files if {"test", "tests", "site-packages"} & set(Path(name).parts) or "_sysconfigdata" in name]


def test_code_is_the_files_as_they_are() -> None:
    code = texts("code")
    assert (stdlib.stdlib_folder() / "json/decoder.py").read_text(encoding="utf-8") in code
    assert sum(len(text or "") for text in code) > 3_000_000 and None not in code


def test_docs_are_prose_under_dotted_names() -> None:
    decoder, *topics = [record.text for record in Stdlib(kind="docs").read(("json/decoder.py", "pydoc_data/topics.py"), SCOPE)]
    assert decoder.startswith("json.decoder\n")
    assert "json.decoder.JSONDecoder.decode\nReturn the Python representation" in decoder and "import" not in decoder.split("\n")[0]
    assert any('The "assert" statement' in text for text in topics) and len(topics) > 50
    assert "self.scan_once = " in (stdlib.stdlib_folder() / "json/decoder.py").read_text() and "self.scan_once = " not in decoder


def test_docstrings_of_a_known_module() -> None:
    source = '"""Head."""\n\nclass A:\n    """Class A."""\n    def f(self):\n        """Do f."""\n    def g(self): pass\n\nasync def h():\n    """ """\n'
    assert stdlib._docstrings("pkg/__init__.py", source) == "pkg\nHead.\n\npkg.A\nClass A.\n\npkg.A.f\nDo f."
    assert stdlib._docstrings("empty.py", "x = 1\n") == ""
    assert stdlib._docstrings("broken.py", "def (") is None


def test_a_source_in_a_declared_encoding_is_decoded_and_a_broken_one_marked(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes("# coding: latin-1\n# é\n".encode("latin-1"))
    (tmp_path / "broken.py").write_bytes(b"# \xe9\n")
    assert stdlib._decode(tmp_path / "latin.py") == "# coding: latin-1\n# é\n"
    assert stdlib._decode(tmp_path / "broken.py") is None


def test_record_is_written_once_and_then_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "interpreter.json"
    assert main(["--check"], record) == 2 and not record.exists()
    assert main([], record) == 0 and json.loads(record.read_text()) == identity()
    before = record.read_bytes(), record.stat().st_mtime_ns
    assert main([], record) == 0 and main(["--check"], record) == 0
    assert (record.read_bytes(), record.stat().st_mtime_ns) == before
    assert "agrees with this interpreter" in capsys.readouterr().out


def test_another_python_is_named_old_and_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "interpreter.json"
    record.write_text(json.dumps({**identity(), "python": "3.0.1"}))
    assert difference(record) == [f"python: 3.0.1 -> {identity()['python']}"]
    assert main([], record) == 0
    out = capsys.readouterr().out
    assert "python: 3.0.1 -> " in out and "`prepare` will rerun" in out and difference(record) == []


def test_identity_follows_the_content_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "t.py").write_text("")
    monkeypatch.setattr(stdlib, "stdlib_folder", lambda: tmp_path)
    first = identity()
    assert first["files"] == 1
    (tmp_path / "test" / "t.py").write_text("changed, but not part of the corpus")
    assert identity() == first
    (tmp_path / "a.py").write_text("x = 2\n")
    assert identity()["stdlib_sha256"] != first["stdlib_sha256"]
    (tmp_path / "a.py").unlink()
    with pytest.raises(ValueError, match="no library sources under"):
        identity()


def test_command_line_runs_clean(repo_root: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-m", "data.recipes.stdlib", "--check"], cwd=repo_root, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2) and "interpreter" in done.stdout and not done.stderr
    assert subprocess.run([sys.executable, "-m", "data.recipes.stdlib", "--chek"], cwd=repo_root, capture_output=True, check=False).returncode == 2
