"""What the torch ops do beyond the golden ones (those comparisons are in test_table and test_attention)."""

import torch
from torch.nn import functional as F

from lullm.ops import torch_cpu


def test_linear_meets_few_numbers_of_rows():
    sizes = [torch_cpu.padded_rows(n) for n in range(1, 2049)]
    assert all(n <= size <= max(n + 7, n * 9 / 8) for n, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 70


def test_padded_rows_change_nothing():
    weight, bias = torch.randn(24, 16).bfloat16(), torch.randn(24).bfloat16()
    for num_rows in (1, 8, 9, 63, 65, 300):
        x = torch.randn(num_rows, 16).bfloat16()
        torch.testing.assert_close(torch_cpu.linear(x, weight, bias), F.linear(x, weight, bias))
