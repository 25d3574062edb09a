"""Recipe `bucket`: objects below S3, GCS or any other prefix that fsspec knows, in any format of data/sources.

Credentials, endpoint and region come from the environment, as each service's own tools read them (AWS_ENDPOINT_URL and the like):
they say where, never what. S3 needs the package s3fs, GCS gcsfs. DVC does not see a bucket change; the report names the version
that was read, and the option `revision` pins it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import fsspec

from data.recipes.recipe import Part
from data.sources.files import File, check_encoding, is_known
from data.sources.readers import Row, read_rows

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Options: `paths` and how to read what they name."""

    __pydantic_config__ = {"extra": "forbid", "strict": True, "use_attribute_docstrings": True}
    paths: list[str]
    """Addresses with their protocol (s3://bucket/folder/*.jsonl.gz): objects, globs, or prefixes that stand for every object below."""
    revision: str | None = None
    """The version that must be found, as an earlier report named it; null accepts any and reports it."""
    format: Literal["auto", "jsonl", "json", "text", "csv", "tsv", "parquet", "arrow"] = "auto"
    """Of the objects; auto: by suffix, for each object."""
    documents: Literal["file", "line", "paragraph"] = "file"
    """What one document of a plain text object is."""
    encoding: str = "auto"
    """Of objects that are text; auto: by byte order mark, UTF-8 without one."""

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        for path in self.paths:
            if "://" not in path:
                raise ValueError(f"option `paths`: got '{path}', expected an address with its protocol, such as s3://bucket/folder; "
                                 "files of this machine are recipe local")

    def pieces(self) -> list[Part]:
        objects = self._objects()
        version = _version(objects)
        if self.revision not in (None, version):
            raise ValueError(f"{', '.join(self.paths)} is now version {version}, expected {self.revision}: objects were changed, added or removed; "
                             "restore them, or set the option `revision` to the new version")
        return [(address,) for address in sorted(objects)]

    def stamp(self, part: Part) -> str:
        return _identity(*open_filesystem(part[0]))

    def rows(self, part: Part, columns: Sequence[str] | None = None) -> Iterator[Row]:
        system, path = open_filesystem(part[0])
        file = File(part[0], partial(system.open, path, "rb"))
        return read_rows(file, format=self.format, documents=self.documents, encoding=self.encoding, columns=columns)

    def local_files(self) -> list[Path]:
        return []

    def version(self) -> str | None:
        return _version(self._objects())

    def _objects(self) -> dict[str, str]:
        """Address -> what identifies the object's content."""
        found: dict[str, str] = {}
        for pattern in self.paths:
            try:
                matches = {address: _identity(system, path) for address, system, path in _expand(pattern)}
            except ValueError:
                raise
            except Exception as error:  # network, credentials, no such bucket: each service raises classes of its own
                raise ValueError(f"cannot list '{pattern}' ({type(error).__name__}: {str(error)[:300]}); "
                                 "check the address, the credentials and the endpoint") from error
            if not matches:
                raise ValueError(f"no object matches '{pattern}'; expected an address, glob or prefix that names at least one")
            found |= matches
        return found


def open_filesystem(address: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of an address and the path on it. ValueError names the package that is missing."""
    protocol = address.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        hint = f"install {_PACKAGES[protocol]}" if protocol in _PACKAGES else "expected s3://, gs:// or another protocol of fsspec"
        raise ValueError(f"cannot open '{address}' ({error}); {hint}") from error


def _expand(pattern: str) -> Iterator[tuple[str, fsspec.AbstractFileSystem, str]]:
    system, path = open_filesystem(pattern)
    system.invalidate_cache()  # a listing kept from before would hide what was added since
    if any(mark in path for mark in "*?["):
        matches = system.glob(path)
    elif system.isfile(path):
        matches = [path]
    else:
        root = path.rstrip("/")
        matches = [name for name in system.find(path) if is_known(name.removeprefix(root + "/"))]
    yield from ((system.unstrip_protocol(name), system, name) for name in matches if system.isfile(name))


def _identity(system: fsspec.AbstractFileSystem, path: str) -> str:
    info = system.info(path)
    mark = next((str(info[key]).strip('"') for key in ("ETag", "etag", "md5Hash", "checksum") if info.get(key)), f"changed {info.get('mtime', 'unknown')}")
    return f"{info['size']} bytes, {mark}"


def _version(objects: dict[str, str]) -> str:
    """16 hex digits that change with any name, size or content mark."""
    return hashlib.sha256("".join(f"{address}\0{identity}\n" for address, identity in sorted(objects.items())).encode()).hexdigest()[:16]
