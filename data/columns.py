"""The columns of an MDS row: values to bytes and back.

In: column names with their MDS encodings. Out: the bytes of a row as mosaicml-streaming lays them out, and rows from such bytes.
Layout, columns in the order of their names: the sizes (uint32) of those without a fixed one, then the values. An array is one byte
(its number of axes times 4, plus the logarithm of the width of a length), its lengths, its elements. Everything is little endian.
Only encodings that hold plain data are known: a pickle runs code when read and is refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

_SCALARS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
_WIDTHS = (1, 2, 4, 8)


class Columns:
    """Encoder and decoder of rows. ValueError for an encoding that is unknown, or that runs code ("pkl")."""

    def __init__(self, encodings: Mapping[str, str]) -> None:
        unsafe = sorted(name for name, encoding in encodings.items() if encoding == "pkl")
        if unsafe:
            raise ValueError(f"column(s) {', '.join(unsafe)} are of the unsafe type: pkl, which runs code when read; "
                             "expected ndarray, str, bytes, json or a number type")  # fmt: skip
        unknown = sorted(f"{name}={encoding}" for name, encoding in encodings.items() if not _is_known(encoding))
        if unknown:
            raise ValueError(f"column(s) {', '.join(unknown)} have an encoding that is not read here; expected ndarray:TYPE, str, bytes, json, int or "
                             f"one of {', '.join(_SCALARS)}")  # fmt: skip
        self.names = sorted(encodings)
        self.encodings = [encodings[name] for name in self.names]
        self.sizes = [_fixed_size(encoding) for encoding in self.encodings]
        self._encoders = [_encoder(name, encodings[name]) for name in self.names]
        self._decoders = [_decoder(encodings[name]) for name in self.names]
        self._head = struct.Struct(f"<{self.sizes.count(None)}I")

    def config(self) -> dict[str, list]:
        """What a shard states about its columns."""
        return {"column_names": self.names, "column_encodings": self.encodings, "column_sizes": self.sizes}

    def encode(self, row: Mapping[str, object]) -> bytes:
        """The bytes of a row. ValueError for a value its column cannot hold."""
        values = [encode(row[name]) for name, encode in zip(self.names, self._encoders)]
        sizes = [len(value) for value, size in zip(values, self.sizes) if size is None]
        return b"".join((self._head.pack(*sizes), *values))

    def decode(self, data: memoryview, start: int, names: tuple[str, ...] | None = None) -> dict[str, object]:
        """The row at `start`: all columns, or those of `names` that exist. Arrays are views of `data`."""
        sizes = iter(self._head.unpack_from(data, start))
        place, row = start + self._head.size, {}
        for name, fixed, decode in zip(self.names, self.sizes, self._decoders):
            size = next(sizes) if fixed is None else fixed
            if names is None or name in names:
                row[name] = decode(data, place, size)
            place += size
        return row

    def array_lengths(self, data: memoryview, starts: NDArray[np.integer], name: str) -> NDArray[np.int64]:
        """Elements of a one-dimensional array column in each row that begins at `starts`. ValueError when there is no such column."""
        if name not in self.names or not self.encodings[self.names.index(name)].startswith("ndarray:"):
            raise ValueError(f"there is no array column '{name}'; the columns are {', '.join(map('='.join, zip(self.names, self.encodings)))}")
        place = self.names.index(name)
        slot = sum(size is None for size in self.sizes[:place])
        columns = np.frombuffer(data, dtype=np.uint8)
        at = starts.astype(np.int64)[:, None] + 4 * slot + np.arange(4)
        sizes = columns[at].astype(np.int64) @ (1 << np.arange(0, 32, 8))
        width = np.dtype(self.encodings[place].removeprefix("ndarray:")).itemsize
        lengths = np.full(len(sizes), -1, dtype=np.int64)
        for bytes_of_length in reversed(_WIDTHS):  # the smallest that holds the length is the one that was used
            count = (sizes - 1 - bytes_of_length) // width
            lengths = np.where((count >= 0) & (count < 1 << (8 * bytes_of_length)), count, lengths)
        return lengths


def _is_known(encoding: str) -> bool:
    return encoding in ("str", "bytes", "json", "int", *_SCALARS) or encoding.removeprefix("ndarray:") in _SCALARS


def _fixed_size(encoding: str) -> int | None:
    if encoding == "int":
        return 8
    return np.dtype(encoding).itemsize if encoding in _SCALARS else None


def _encoder(name: str, encoding: str) -> Callable[[object], bytes]:
    if encoding == "str":
        return lambda value: value.encode("utf-8")
    if encoding == "bytes":
        return bytes
    if encoding == "json":
        return lambda value: json.dumps(value).encode()
    if encoding.startswith("ndarray:"):
        return partial(_array_bytes, name, np.dtype(encoding.removeprefix("ndarray:")))
    kind = np.dtype("int64" if encoding == "int" else encoding).type
    return lambda value: kind(value).tobytes()


def _array_bytes(name: str, dtype: np.dtype, array: NDArray) -> bytes:
    if array.dtype != dtype or array.size == 0:
        raise ValueError(f"column '{name}' got {array.dtype} of shape {array.shape}; expected {dtype} with at least one element")
    longest = max(array.shape)
    log = next(place for place, width in enumerate(_WIDTHS) if longest < 1 << (8 * width))
    lengths = b"".join(length.to_bytes(_WIDTHS[log], "little") for length in array.shape)
    return bytes([array.ndim << 2 | log]) + lengths + array.tobytes()


def _decoder(encoding: str) -> Callable[[memoryview, int, int], object]:
    if encoding == "str":
        return lambda data, place, size: str(data[place : place + size], "utf-8")
    if encoding == "bytes":
        return lambda data, place, size: bytes(data[place : place + size])
    if encoding == "json":
        return lambda data, place, size: json.loads(bytes(data[place : place + size]))
    if encoding.startswith("ndarray:"):
        return partial(_array, np.dtype(encoding.removeprefix("ndarray:")))
    if encoding == "int":
        return lambda data, place, size: int.from_bytes(data[place : place + 8], "little", signed=True)
    dtype = np.dtype(encoding)
    return lambda data, place, size: np.frombuffer(data, dtype=dtype, count=1, offset=place)[0]


def _array(dtype: np.dtype, data: memoryview, place: int, size: int) -> NDArray:
    axes, width = data[place] >> 2, _WIDTHS[data[place] & 3]
    begin = place + 1 + axes * width
    flat = np.frombuffer(data, dtype=dtype, count=(place + size - begin) // dtype.itemsize, offset=begin)
    if axes == 1:
        return flat
    return flat.reshape([int.from_bytes(data[place + 1 + i * width : place + 1 + (i + 1) * width], "little") for i in range(axes)])
