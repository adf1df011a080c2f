"""Packed weights that are kept between starts: the same bits, or packed anew."""

from __future__ import annotations

import logging
import os
import pwd
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pageinn.cli.loading import _users_folder
from pageinn.kernels.backend import F32
from pageinn.kernels.cpu import CpuBackend
from pageinn.model.packed_file import MOST_FILES, PackedFile, Shape

FORMATS = ("int8", "float32")
#: Outputs that fill no panel, inputs that fill no group.
SIZES = {"narrow": (5, 3), "odd": (37, 131), "whole": (32, 128)}


def matrix(name: str) -> F32:
    outputs, inputs = SIZES[name]
    return np.random.default_rng(len(name)).standard_normal((outputs, inputs), np.float32)


def shapes(weight_format: str) -> dict[str, Shape]:
    return {name: Shape(*size, weight_format) for name, size in SIZES.items()}


def kept(folder: Path, weight_format: str = "int8", key: str = "ab") -> PackedFile:
    """A file with all matrices."""
    backend = CpuBackend(2)
    file = PackedFile(folder, key, backend)
    file.write({name: backend.pack_linear(matrix(name), weight_format) for name in SIZES})
    return file


@pytest.mark.parametrize("weight_format", FORMATS)
def test_what_was_kept_multiplies_to_the_same_bits(tmp_path: Path, weight_format: str) -> None:
    backend = CpuBackend(2)
    found = kept(tmp_path, weight_format).read(shapes(weight_format))
    assert set(found) == set(SIZES)
    for name, (outputs, inputs) in SIZES.items():
        x = np.random.default_rng(9).standard_normal((4, inputs), np.float32)
        expected, got = np.empty((4, outputs), np.float32), np.empty((4, outputs), np.float32)
        backend.linear(x, backend.pack_linear(matrix(name), weight_format), expected)
        backend.linear(x, found[name], got)
        assert got.tobytes() == expected.tobytes()


def test_a_folder_that_is_made_is_the_owners_alone(tmp_path: Path) -> None:
    """As the XDG Base Directory Specification has it; one that is there may be shared."""
    assert kept(tmp_path / "new" / "folder").path.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "old").mkdir(0o755)
    assert kept(tmp_path / "old").path.parent.stat().st_mode & 0o777 == 0o755


def test_a_file_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert PackedFile(tmp_path / "missing", "ab", CpuBackend(1)).read(shapes("int8")) == {}


@pytest.mark.parametrize("place", [0, 3, 20, 200, -1, -700])
def test_damage_is_found_told_and_removed(tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    file = kept(tmp_path)
    content = bytearray(file.path.read_bytes())
    content[place] ^= 0x11
    file.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert file.read(shapes("int8")) == {}
    assert len(caplog.records) == 1
    assert str(file.path) in caplog.text
    assert not file.path.exists()


@pytest.mark.parametrize("length", [0, 7, 8, 100, 5000])
def test_a_file_that_was_cut_is_removed(tmp_path: Path, length: int) -> None:
    file = kept(tmp_path)
    os.truncate(file.path, length)
    assert file.read(shapes("int8")) == {}
    assert not file.path.exists()


def test_other_shapes_are_not_taken(tmp_path: Path) -> None:
    wider = {**shapes("int8"), "odd": Shape(37, 500, "int8")}
    assert kept(tmp_path).read(wider) == {}


def test_a_folder_that_cannot_be_made_is_told_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        file = kept(tmp_path / "file" / "folder")
    assert len(caplog.records) == 1
    assert file.read(shapes("int8")) == {}


def test_a_file_that_cannot_be_opened_is_told_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a folder of another user: the operating system says no, here to a name that is too long."""
    with caplog.at_level(logging.WARNING):
        assert PackedFile(tmp_path, "ab" * 200, CpuBackend(1)).read(shapes("int8")) == {}
    assert len(caplog.records) == 1
    assert "packing them anew" in caplog.text


def test_writers_at_once_leave_a_whole_file_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Four of them with one process number, as in containers that share a folder."""
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(4) as pool:
        files = list(pool.map(lambda _: kept(tmp_path), range(16)))
    assert not caplog.records
    assert set(files[0].read(shapes("int8"))) == set(SIZES)
    assert list(tmp_path.iterdir()) == [files[0].path]


@pytest.mark.parametrize("home", [True, False])
def test_where_packed_weights_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, home: bool
) -> None:
    """A container's user may have no entry, and so no home."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setenv("HOME", str(tmp_path))
    if not home:
        monkeypatch.delenv("HOME")
    found = _users_folder()
    assert found == (tmp_path / ".cache" / "pageinn" / "weights" if home else None)
    assert ("--weights-cache" in caplog.text) is not home


def test_those_used_longest_ago_go(tmp_path: Path) -> None:
    files = [kept(tmp_path, key=f"{number:02}") for number in range(MOST_FILES)]
    for age, file in enumerate(files):
        os.utime(file.path, (1e9 + age, 1e9 + age))
    files[0].read(shapes("int8"))
    newest = kept(tmp_path, key="ff")
    assert sorted(tmp_path.iterdir()) == sorted(file.path for file in [*files[:1], *files[2:], newest])
