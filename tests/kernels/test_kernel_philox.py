from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pageinn.kernels import bfloat16
from pageinn.kernels.philox import philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    """Random123's kat_vectors, philox4x32 with 10 rounds."""
    assert philox4x32(counter, key) == words


def test_uniform_is_the_53_bit_number_of_the_first_two_words() -> None:
    words = philox4x32((5, 3, 0, 0), (0x89ABCDEF, 0x01234567))
    assert uniform(0x0123456789ABCDEF, choice=3, position=5) == ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
def test_bfloat16_rounds_as_torch_does_whatever_the_bits(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    ours = bfloat16.from_float32(values)
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    is_nan = np.isnan(values)
    assert (ours[~is_nan] == theirs[~is_nan]).all()
    assert np.isnan(bfloat16.to_float32(ours)[is_nan]).all()


def test_bfloat16_ties_go_to_even() -> None:
    halfway_up, halfway_down = 0x3F818000, 0x3F808000
    values = np.array([halfway_up, halfway_down], np.uint32).view(np.float32)
    assert bfloat16.from_float32(values).tolist() == [0x3F82, 0x3F80]
