"""Recipe `saved`: a Hugging Face data set that `save_to_disk` wrote: Arrow streams and the state.json that lists them.

Read as Arrow files, so that nothing but the layout on disk is relied on and memory stays bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.recipes.recipe import Part
from data.sources.files import local_file
from data.sources.readers import Row, read_rows

STATE, SPLITS = "state.json", "dataset_dict.json"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Options: `path` and which split."""

    __pydantic_config__ = {"extra": "forbid", "strict": True, "use_attribute_docstrings": True}
    path: str
    """The folder given to save_to_disk."""
    split: str | None = None
    """A split's name; needed when the folder holds several, null when it holds one data set without splits."""

    def pieces(self) -> list[Part]:
        folder = self._folder()
        return [(str(folder / entry["filename"]),) for entry in self._state()["_data_files"]]

    def stamp(self, part: Part) -> str:
        status = Path(part[0]).stat()
        return f"{status.st_size} bytes, {status.st_mtime_ns} ns"

    def rows(self, part: Part, columns: Sequence[str] | None = None) -> Iterator[Row]:
        return read_rows(local_file(Path(part[0])), format="arrow", documents="file", encoding="auto", columns=columns)

    def local_files(self) -> list[Path]:
        return [self._folder() / STATE, *(Path(part[0]) for part in self.pieces())]

    def version(self) -> str | None:
        return f"fingerprint {self._state().get('_fingerprint')}"

    def _state(self) -> dict:
        path = self._folder() / STATE
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            names = [entry["filename"] for entry in state["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} does not list the files of a saved data set ({error}); expected a folder that `save_to_disk` wrote") from error
        if not names or any(name != Path(name).name for name in names):
            raise ValueError(f"{path} lists {names}; expected the names of files beside it")
        return state

    def _folder(self) -> Path:
        root = Path(self.path)
        if not (root / SPLITS).is_file():
            if self.split is not None:
                raise ValueError(f"{root} holds no splits, got split '{self.split}'; expected null")
            return root
        try:
            names = json.loads((root / SPLITS).read_text(encoding="utf-8"))["splits"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{root / SPLITS} does not name splits ({error}); expected a folder that `save_to_disk` wrote") from error
        if self.split not in names:
            raise ValueError(f"{root} has the splits {', '.join(names)}, got {self.split!r}; name one of them in the option `split`")
        return root / self.split
