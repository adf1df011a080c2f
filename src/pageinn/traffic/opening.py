"""Files as byte streams, whatever they are compressed with; '-' is standard input."""

from __future__ import annotations

import codecs
import gzip
import io
import sys
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from pageinn.traffic.report import ReadError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
#: What reading on may raise where a file ends early or is not what it began as.
STREAM_ERRORS = (EOFError, OSError, zlib.error, zstandard.ZstdError)
#: How much of a file is looked at to tell its format.
HEAD = 1 << 16


_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class _Utf8(io.RawIOBase):
    """UTF-16, as shells of Windows write it, turned into UTF-8; what is broken becomes replacement characters."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            data = self._stream.read(HEAD)
            self._ready = self._decoder.decode(data, final=not data).encode()
            if not data:
                break
        part, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Again(io.RawIOBase):
    """A stream whose first bytes have been read already."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(data) :]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self._rest is not sys.stdin.buffer:
            self._rest.close()
        super().close()


def name_of(path: str | Path) -> str:
    """What messages call it."""
    return "<stdin>" if str(path) == "-" else str(path)


def open_log(path: str | Path) -> tuple[bytes, BinaryIO]:
    """Its first bytes, uncompressed, and the stream from its beginning. Raises ReadError."""
    try:
        raw: BinaryIO = sys.stdin.buffer if str(path) == "-" else cast(BinaryIO, open(path, "rb"))  # noqa: SIM115
        head, stream = _peeked(raw, len(_ZSTD))
        if head.startswith(_GZIP):
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream))
        elif head.startswith(_ZSTD):
            stream = _zstd(stream)
        head, stream = _peeked(stream, HEAD)
        encoding = _UTF16.get(head[:2])
        return _peeked(cast(BinaryIO, _Utf8(stream, encoding)), HEAD) if encoding else (head, stream)
    except STREAM_ERRORS as error:
        raise ReadError(f"{name_of(path)}: {getattr(error, 'strerror', None) or error}") from error


def _zstd(stream: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True))


def _peeked(stream: BinaryIO, size: int) -> tuple[bytes, BinaryIO]:
    head = b""
    while len(head) < size:
        data = stream.read(size - len(head))
        if not data:
            break
        head += data
    return head, cast(BinaryIO, io.BufferedReader(_Again(head, stream), 1 << 18))
