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
