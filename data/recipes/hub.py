"""Recipe `hub`: a data set of the Hugging Face hub at one pinned revision, streamed.

The network is off by default (HF_HUB_OFFLINE and HF_DATASETS_OFFLINE are 1); set both to 0 for the run that reads. A data set that
needs code of its own to load is refused by the library. A commit's files never change, so a piece is known by it alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from data.recipes.recipe import Part
from data.sources.readers import Row

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DATASET = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
T = TypeVar("T")
_BRANCHES = ("main", "master", "HEAD", "latest")


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Options: which data set, at which revision."""

    __pydantic_config__ = {"extra": "forbid", "strict": True, "use_attribute_docstrings": True}
    dataset: str
    """owner/name on the hub."""
    revision: str
    """A commit of 40 hex digits, or a tag; a branch moves, so it is refused."""
    split: str
    """The data set's own split to read."""
    config: str | None = None
    """The data set's configuration; null where it has one only."""

    def __post_init__(self) -> None:
        if not _DATASET.fullmatch(self.dataset):
            raise ValueError(f"option `dataset`: got '{self.dataset}', expected owner/name; a saved copy on this machine is recipe saved")
        if self.revision in _BRANCHES or self.revision.startswith("refs/") or not re.fullmatch(r"[\w.+-]+", self.revision):
            raise ValueError(f"option `revision`: got '{self.revision}', expected a commit of 40 hex digits or a tag: a branch moves, "
                             "so nothing could be repeated")

    def pieces(self) -> list[Part]:
        commit = self._commit()
        return [(commit, str(index)) for index in range(_named(lambda: self._stream(commit).num_shards, self.dataset))]

    def stamp(self, part: Part) -> str:
        return part[0]

    def rows(self, part: Part, columns: Sequence[str] | None = None) -> Iterator[Row]:
        commit, index = part
        stream = _named(lambda: self._stream(commit), self.dataset)
        return shard_rows(stream, int(index), f"{self.dataset}@{commit[:8]} {self.split}")

    def local_files(self) -> list[Path]:
        return []

    def version(self) -> str | None:
        return self._commit()

    def _commit(self) -> str:
        if _COMMIT.fullmatch(self.revision):
            return self.revision
        from huggingface_hub import HfApi  # beside datasets below: both take seconds, and only this recipe needs them

        tags = _named(lambda: {tag.name: tag.target_commit for tag in HfApi().list_repo_refs(self.dataset, repo_type="dataset").tags}, self.dataset)
        return tagged_commit(self.revision, tags, self.dataset)

    def _stream(self, commit: str) -> object:
        return _open_stream(self.dataset, self.config, self.split, commit)


@lru_cache(maxsize=1)  # its shards are read one after the other, and finding them asks the network
def _open_stream(dataset: str, config: str | None, split: str, commit: str) -> object:
    import datasets

    if Path(dataset).exists():  # the library would read that instead, at no revision
        raise ValueError(f"'{dataset}' is also a path here; rename it, or read it with recipe saved or local")
    return datasets.load_dataset(dataset, config, split=split, revision=commit, streaming=True)


def tagged_commit(name: str, tags: dict[str, str], dataset: str) -> str:
    """The commit of a tag; ValueError when it is none (a branch, or nothing at all)."""
    if name not in tags:
        raise ValueError(f"{dataset} has no tag '{name}' (got {_listed(tags)}); expected one of them or a commit of 40 hex digits")
    return tags[name]


def shard_rows(stream: object, index: int, name: str) -> Iterator[Row]:
    """Records of one shard of a streamed data set."""
    shard = stream.shard(num_shards=stream.num_shards, index=index)
    return (Row(value, f"{name}, shard {index}, record {number}") for number, value in enumerate(shard, 1))


def _named(call: Callable[[], T], dataset: str) -> T:
    """The library's many errors as one that says what to do."""
    try:
        return call()
    except Exception as error:  # network, authorisation, unknown name: each layer below raises classes of its own
        raise ValueError(f"cannot read data set '{dataset}' ({type(error).__name__}: {str(error)[:300]}); expected a reachable hub: set HF_HUB_OFFLINE=0 and "
                         "HF_DATASETS_OFFLINE=0, check the name, revision and access, or use recipe saved with a local copy") from error


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:20]) or "none"
