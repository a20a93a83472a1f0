"""A GPU by the name that people write."""

import pytest

from vllm_tuning.budget.gpus import GPUS, gpu_named
from vllm_tuning.units import GIB, InputError


@pytest.mark.parametrize(
    "written, name",
    [
        ("h100-sxm", "H100"),
        ("NVIDIA H100 80GB", "H100"),
        ("H100  SXM5", "H100"),
        ("a10", "A10"),
        ("A100", "A100-80GB"),
        ("A100 SXM4 80GB", "A100-80GB"),
        ("L4", "L4"),
        ("H100 PCIe", "H100-PCIE"),
        ("NVIDIA A10G", "A10G"),
    ],
)
def test_of_those_whose_rates_are_known(written, name):
    assert gpu_named(written, "tensor_rate") == name


@pytest.mark.parametrize(
    "printed, name",
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GB10", "GB10"),
        ("AMD Instinct MI300X", "MI300X"),
        ("rtx5090", "RTX-5090"),
    ],
)
def test_as_nvidia_smi_prints_it(printed, name):
    assert gpu_named(printed, "total_memory") == name


@pytest.mark.parametrize(
    "printed",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "Tesla V100-SXM2-16GB",
        "NVIDIA L40",
        "RTX 3090 Ti",
        "H100 40GB",
        "NVIDIA GH200 480GB",
        "RTX",
    ],
)
def test_another_card_of_a_like_name_is_none(printed):
    with pytest.raises(InputError):
        gpu_named(printed, "total_memory")


@pytest.mark.parametrize("figure", ["total_memory", "tensor_rate"])
@pytest.mark.parametrize("name", ["H1000", "", "A1", "NVIDIA", "80GB", "x" * 10**6])
def test_another_name_lists_what_is_known(name, figure):
    with pytest.raises(InputError, match="expected one of A") as caught:
        gpu_named(name, figure)
    assert len(str(caught.value)) < 400


def test_a_name_that_two_begin_with_is_none():
    with pytest.raises(InputError, match="gpu 'A100': expected"):
        gpu_named("A100", "total_memory")
    with pytest.raises(InputError):
        gpu_named("B300", "tensor_rate")


def test_a_card_is_a_little_less_than_its_name_says():
    for name, size in (("A100-80GB", 80), ("H100", 80), ("V100-32GB", 32), ("T4", 16)):
        assert 0.89 * size < GPUS[name].total_memory / GIB < size
