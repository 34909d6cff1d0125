"""Families and arithmetic of kernels by their names: public names, each with what it should be."""

import typing
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense.analysis.families import Family, Precision, family, is_collective, precision, uses_tensor_cores
from tests.support.kernel_names import NAMES

MATRIX = ("matmul", "convolution", "attention")


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row.label)
def test_names_of_public_profiles_are_of_these_families(row):
    assert (family(row.name), precision(row.name), uses_tensor_cores(row.name)) == row[2:]


def test_the_list_has_every_family_and_every_precision():
    assert {row.family for row in NAMES} == set(typing.get_args(Family))
    assert {row.precision for row in NAMES} >= set(typing.get_args(Precision)) - {"int8", "fp4"}
    assert Counter(row.family for row in NAMES)["other"] < len(NAMES) / 20


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "fp16"),
        ("nvjet_sm100_ootst_128x256_256x5_2x1_2cta_v_bz_TNT", "fp4"),
        ("nvjet_sss_128x256_TNT", None),  # float or tf32: the name does not say
        ("volta_sgemm_128x64_nn", "fp32"),
        ("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", "tf32"),
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1", "bf16"),
        ("cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16", "int8"),
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_nt_align1", "fp64"),
        ("ampere_h16816gemm_128x128_ldg8_stages_32x5_tn", "fp16"),
        ("sm90_xmma_gemm_e4m3f32_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1", "fp8"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4", "fp32"),
        (
            "sm90_xmma_gemm_f32f32_f32_nn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_on_kernel__5x_cublas",
            "tf32",
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1",
            None,
        ),  # half or bfloat16
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", None),  # not of a family that multiplies
        ("triton_poi_fused_add_bf16_0", None),
    ],
)
def test_arithmetic_by_the_conventions_of_the_libraries(name, expected):
    assert precision(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "triton_poi_fused__scaled_dot_product_flash_attention_cat_transpose_view_10",
            "elementwise",
        ),  # named after what is near
        ("triton_tem_fused_bmm_3", "matmul"),
        ("void flashinfer::norm::RMSNormKernel<8u, __half>(__half*)", "normalisation"),
        (
            "void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>(float*)",
            "elementwise",
        ),  # GEMM is in its namespace
        ("void at::native::reduce_kernel<512, 1, X>(cudnn::reduced_divisor)", "reduction"),
        ("void fill<float>(float*, nccl_argument)", "elementwise"),  # what it is called with is not what it does
        ("", "other"),
        ("saxpy", "other"),
    ],
)
def test_families_are_of_what_a_kernel_does_and_not_of_what_stands_near(name, expected):
    assert family(name) == expected


def test_a_label_alone_nearly_always_says_the_family_too():
    rows = [row for row in NAMES if row.family in (*MATRIX, "communication", "optimizer")]
    same = [row for row in rows if family(row.label) == row.family]
    assert len(same) > 0.95 * len(rows)


@given(st.text(max_size=80))
def test_any_text_has_a_family_and_only_those_that_multiply_an_arithmetic(name):
    assert family(name) in typing.get_args(Family)
    assert is_collective(name) == (family(name) == "communication")
    if family(name) not in MATRIX:
        assert precision(name) is None
        assert uses_tensor_cores(name) is None
