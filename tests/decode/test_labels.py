"""Labels of kernels: 600 names out of public profiles, each with the label that it should have, and any text at all."""

import random
import time
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpusense._decode.labels import LONG, SHORT, UNNAMED, distinct, label, said
from tests.support.kernel_names import NAMES

FILL = "void at::native::{}_kernel<4, at::native::FillFunctor<{}>, std::array<char*, 1ul> >(int)"
#: What names are made of, put together in no order: brackets that do not close, frames of nothing, half an operator.
PIECES = (
    *(
        "<",
        ">",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "::",
        " ",
        ",",
        "&",
        "*",
        "'",
        "->",
        "#1}",
        " const",
        "float",
        "4",
        "T1",
        "a",
    ),
    *(
        "operator",
        "::operator()",
        "{lambda(",
        "[lambda() (instance 1)]",
        "'lambda0'(",
        "(anonymous namespace)",
        "<unnamed>",
    ),
    *(
        "at::native::",
        "vectorized_elementwise_kernel<",
        "reduce_kernel<",
        "ReduceOp<",
        "gpu_kernel_impl<",
        "BinaryFunctor<",
    ),
    *("multi_tensor_apply_kernel<", "flash_fwd_kernel<", "cutlass::Kernel<", "enable_sm90<", "FlashAttnFwdSm90<"),
    *(
        "thrust::",
        "_kernel_agent<",
        "__scan::",
        "unary_transform_f<",
        "cub::",
        "rocprim::trampoline_kernel<",
        "x_impl<",
    ),
    *(
        "EigenMetaKernel<",
        "scalar_sum_op<",
        "cudapy::",
        "add$1",
        "_ZN",
        "12",
        "I",
        "E",
        "sm90_xmma_",
        "Cijk_",
        "\0",
        "é",
    ),
)
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row.label)
def test_names_of_public_profiles_have_these_labels(row):
    assert label(row.name) == row.label


def test_a_label_is_short_and_says_no_less_than_the_list_does():
    labels = [row.label for row in NAMES]
    assert len(labels) > 600
    assert max(map(len, labels)) <= LONG
    assert all(len(row.label) <= SHORT for row in NAMES if "<" in row.name)
    assert sum(count == 1 for count in Counter(labels).values()) > 400


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (FILL.format("vectorized_elementwise", "int"), "elementwise<FillFunctor<int>>"),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, true>(float*)",
            "softmax_warp_forward<float>",
        ),
        ("triton_poi_fused_add_gelu_0", "triton_poi_fused_add_gelu_0"),
        ("void saxpy<float>(int, float)", "saxpy<float>"),
        ("void outer<int>::inner<2>(float)", "inner"),
        ("void ns::kernel<double>(float)", "ns::kernel<double>"),
        ("void k<(Mode)1, (5 > 3), (a < b)>(int)", "k"),
        ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda#1}"),
        ("A::operator<(A const&) const", "A::operator<"),
        ("void mycutlass::Kernel2<f>(P)", "f"),
        ("render pass 3", "render pass 3"),
        (
            "_ZN7cutlass7Kernel2I41cutlass_80_simt_sgemm_64x64_8x5_tn_align1EEvNT_6ParamsE",
            "cutlass_80_simt_sgemm_64x64_8x5_tn_align1",
        ),
        ("_Z5saxpyi", "saxpy"),
        (b"_Z5saxpyi", "saxpy"),
        ("saxpy", "saxpy"),
        ("triton_poi_fused_add_relu_0", "triton_poi_fused_add_relu_0"),
        ("_attn_fwd_0d1d2d3de", "_attn_fwd_0d1d2d3de"),
        ("loop_add_fusion_1", "loop_add_fusion_1"),
        ("input_reduce_fusion.2", "input_reduce_fusion.2"),
        ("sm80_xmma_gemm_f32f32_execute_kernel__5x_cublas", "sm80_xmma_gemm_f32f32_execute_kernel__5x_cublas"),
        ("saxpy(int, float, float const*, float*)", "saxpy"),
        (
            "void at::native::vectorized_elementwise_kernel<4, F<float>, std::array<char*, 1ul> >(int)",
            "elementwise<F<float>>",
        ),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm>(cutlass_80_simt_sgemm::Params)", "cutlass_80_simt_sgemm"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<A<1, 2>, B> >(P)", "GemmUniversal"),
        ("void cutlass::Kernel<a::Gemm<int, float>, (b < c)>(P)", "Gemm<float>"),
        ("cutlass::Kernel2(int)", "cutlass::Kernel2"),
        ("void cutlass::Kernel2<>(int)", "cutlass::Kernel2"),
        ("void cutlass::Kernel2<unfinished", "unfinished"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("(anonymous namespace)::fill(float*)", "fill"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 8, true>(float*)", "softmax_warp_forward<float>"),
        ("void k<&A::b, decltype(x->y)>(int)", "k<b>"),
        ("cudapy::__main__::add[abi:v1][abi:cw51cX](Array<float, 1>)", "add"),
        ("run(float*)::{lambda(float)#2}", "run::{lambda#2}"),
        ("a::{lambda()}", "a::{lambda}"),
        ("bool operator<< <int>(X<int>)", "operator<<<int>"),
        ("A::operator< <int>(int)", "A::operator<<int>"),
        ("A::operator<<(A const&)", "A::operator<<"),
        ("A::operator->()", "A::operator->"),
        ("A::operator bool() const", "A::operator bool"),
        ("operatorless(int)", "operatorless"),
        ("operator_kernel<int>(int)", "operator_kernel<int>"),
        ("kernel(int) [clone .constprop.0]", "kernel"),
        ("void unfinished<int, std::array<float", "unfinished<int>"),
        ("int (*weird)(int)", "int (*weird)(int)"),
        ("_Z5saxpyifPKfPf", "saxpy"),
        ("_Z5saxpyIfEviT_PKS0_PS0_", "saxpy"),
        ("_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfEEEEvT1_", "reduce_kernel"),
        ("_ZN12_GLOBAL__N_14fillEPf", "fill"),
        ("_ZL6kernelPf", "kernel"),
        ("_ZN6cudapy8__main__3addB2v1B7cw51cXTE5ArrayIfLi1EE", "add"),
        ("_ZNSt3fooEv", "foo"),
        ("_ZSt3fooi", "foo"),
        (
            "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("_Z3addP5ArrayS0_", "add"),
        ("_Z3add5Array5Other", "add"),
        (
            "_ZN7cutlass7Kernel2I43cutlass_80_simt_sgemm_256x128_8x4_nn_align1EEvNT_6ParamsE",
            "cutlass_80_simt_sgemm_256x128_8x4_nn_align1",
        ),
        ("_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIiEEEEvT_", "GemmUniversal"),
        ("_ZN7cutlass13device_kernelIN3cut4gemm4GemmIiEEEEvT_", "Gemm"),
        ("_ZN7cutlass7Kernel2IiEEvT_", "Kernel2"),
        ("_Z", "_Z"),
        ("_Z99short", "short"),
        ("_ZplRK1AS1_", "_ZplRK1AS1_"),
        (b"caf\xc3\xa9(int)", "café"),
        (b"bad\xff<int>(int)", "bad�<int>"),
        ("", UNNAMED),
        ("  ", UNNAMED),
    ],
)
def test_names_of_each_kind(name, expected):
    assert label(name) == expected


LIBSTDCXX = (
    "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const"
    "::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int)"
)
NSYS = (
    "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)::[lambda() (instance 2)]::operator "
    "()() const::[lambda() (instance 4)]::operator ()() const::[lambda(c10::BFloat16) (instance 1)], F>(int)"
)
LLVM = (
    "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::'lambda0'()::operator()() const"
    "::'lambda2'()::operator()() const::'lambda'(c10::BFloat16), std::array<char*, 2ul> >(int)"
)


@pytest.mark.parametrize("spelling", [LIBSTDCXX, NSYS, LLVM])
def test_a_lambda_is_named_after_the_function_it_stands_in_however_it_is_spelt(spelling):
    assert label("void at::native::vectorized_elementwise_kernel<4, " + spelling) == "elementwise<gelu<bf16>>"


def test_names_of_four_kibibytes():
    arguments = ", ".join(f"Tensor<float, {n}>" for n in range(250))
    assert len(arguments) > 4096
    assert label(f"void ns::big<{arguments}>({arguments})") == "big<Tensor<float>>"
    assert label("x" * 4096) == "x" * 95 + "…" + "x" * 64
    assert len(label("_Z4096" + "y" * 4096 + "v")) == SHORT


IDENTIFIERS = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,20}", fullmatch=True).filter(lambda word: word != "operator")


@given(st.lists(IDENTIFIERS.map("k{}k".format), min_size=1, max_size=4), st.booleans())
def test_the_last_component_is_found_in_both_forms(names, template):
    demangled = "void " + "::".join(names) + ("<3>" if template else "") + "(float*)"
    assert label(demangled) == names[-1]
    mangled = "".join(f"{len(name)}{name}" for name in names)
    assert label(f"_ZN{mangled}{'IiE' if template else ''}EPf") == names[-1]


@given(HOSTILE | st.text(max_size=60))
@example("void k<&>(int)")
@example("a::b<c")
@example("reduce_kernel<1, ReduceOp<float, ReduceOp<float, ")
def test_any_text_has_a_label_that_is_not_longer_and_stays_as_it_is(name):
    found = label(name)
    assert found
    assert found == label(name)
    assert len(found) <= min(LONG, max(len(name.strip()), len(UNNAMED)))
    assert len(label(found)) <= len(found)
    said(name)


@given(st.binary(max_size=60))
def test_bytes_are_text_of_some_kind(raw):
    assert label(raw)
    assert label(b"_Z" + raw)


@pytest.mark.parametrize("piece", PIECES)
def test_a_megabyte_of_anything_takes_no_longer_than_a_page_of_it(piece):
    name = piece * (1_000_000 // len(piece))
    started = time.process_time()
    assert label(name)
    assert time.process_time() - started < 1.0


# ---- Apart in one session


def test_two_names_of_one_label_say_what_they_differ_in():
    four = FILL.format("vectorized_elementwise", "int")
    two = four.replace("<4,", "<2,")
    assert distinct([two, four]) == {two: "elementwise<FillFunctor<int>, 2>", four: "elementwise<FillFunctor<int>, 4>"}
    other = FILL.format("unrolled_elementwise", "int")
    assert distinct([four, other]) == {
        four: "vectorized_elementwise<FillFunctor<int>>",
        other: "unrolled_elementwise<FillFunctor<int>>",
    }


def test_scopes_tell_apart_what_arguments_do_not_and_numbers_what_nothing_does():
    here, there = "void a::fill<float>(float*)", "void b::fill<float>(float*)"
    assert distinct([here, there]) == {here: "a::fill<float>", there: "b::fill<float>"}
    one, other = "void fill<float>(float*)", "void fill<float>(float*, int)"
    assert distinct([one, other]) == {one: "fill<float>", other: "fill<float> #2"}


def test_a_label_alone_stays_as_it_is():
    names = [FILL.format("vectorized_elementwise", kind) for kind in ("int", "float")]
    assert sorted(distinct(names).values()) == ["elementwise<FillFunctor<float>>", "elementwise<FillFunctor<int>>"]
    assert distinct([]) == {}


def test_the_names_of_the_list_are_all_different():
    found = distinct(row.name for row in NAMES)
    assert len(set(found.values())) == len(NAMES)
    assert max(map(len, found.values())) <= LONG + 2 * SHORT


@given(st.lists(HOSTILE | st.sampled_from([row.name for row in NAMES]), max_size=12), st.randoms(use_true_random=False))
def test_labels_of_different_names_differ_in_any_order(names: list[str], chance: random.Random):
    found = distinct(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(set(names))
    assert all(found.values())
    chance.shuffle(names)
    assert distinct(names) == found
