"""Backends under test: every instruction set that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernel_cases import cpu

from pageinn.kernels.cpu import CpuBackend


@pytest.fixture(scope="session", autouse=True)
def _backends_end_with_the_tests() -> Iterator[None]:
    """A backend that lives until the interpreter ends is reported as leaked."""
    yield
    cpu.cache_clear()


@pytest.fixture(scope="session", params=["avx512_bf16", "avx512", "avx2", "portable"])
def isa(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        cpu(name, 1)
    except ValueError as error:
        pytest.skip(str(error))
    return name


@pytest.fixture(scope="session")
def backend(isa: str) -> CpuBackend:
    return cpu(isa, 2)
