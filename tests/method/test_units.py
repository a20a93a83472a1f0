import math

import numpy as np
import pytest

from vllm_tuning.units import GIB, parse_size, printed_half_widths


@pytest.mark.parametrize(
    "text, value",
    [
        ("8192", 8192),
        ("80K", 81920),
        ("80k", 80000),
        ("1.5k", 1500),
        ("2M", 2 * 1024**2),
        ("131,072", 131072),
        (" 16K ", 16384),
    ],
)
def test_sizes_as_vllm_reads_them(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "1.5K", "1.5", "-8", "8KB", "eight", "1.2345k", "1e3"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    "gib, half",
    [
        ([3.6, 2.85], 0.005),
        ([5, 6], 0.005),
        ([15.3916, 1.0], 0.00005),
        ([-0.22], 0.005),
        ([], 0.005),
    ],
)
def test_width_of_a_column_is_that_of_its_most_precise_value(gib, half):
    widths = printed_half_widths([value * GIB for value in gib])
    assert widths == pytest.approx(np.full(len(gib), half * GIB))


def test_exact_bytes_keep_half_a_byte_also_where_they_are_round():
    assert (
        list(printed_half_widths([12571137.0, 75497472.0, 27000 * 2.0**21, math.nan])[:3])
        == [0.5] * 3
    )


def test_exact_bytes_do_not_make_the_printed_figures_beside_them_exact():
    widths = printed_half_widths([54.5 * GIB, 37985058816.0, 3.67 * GIB, math.nan])
    assert widths[:3] == pytest.approx([0.005 * GIB, 0.5, 0.005 * GIB]) and math.isnan(widths[3])
