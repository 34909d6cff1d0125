"""Kernel names: what people read in a table, from whatever the driver gives."""

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpusense._capi import demangle as demangling
from gpusense._capi.demangle import demangle
from gpusense._decode.names import UNNAMED, NameCache, Names, base_name

TORCH_COPY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}>("
    "at::TensorIteratorBase&, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
    "const::{lambda()#7}::operator()() const::{lambda(float)#1} const&)::{lambda(int)#1}>(int, float)"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # plain names
        ("saxpy", "saxpy"),
        ("triton_poi_fused_add_relu_0", "triton_poi_fused_add_relu_0"),
        ("_attn_fwd_0d1d2d3de", "_attn_fwd_0d1d2d3de"),
        ("loop_add_fusion_1", "loop_add_fusion_1"),
        ("input_reduce_fusion.2", "input_reduce_fusion.2"),
        ("render pass 3", "render pass 3"),
        ("sm80_xmma_gemm_f32f32_execute_kernel__5x_cublas", "sm80_xmma_gemm_f32f32_execute_kernel__5x_cublas"),
        # demangled
        ("saxpy(int, float, float const*, float*)", "saxpy"),
        ("void saxpy<float>(int, float)", "saxpy"),
        (
            "void at::native::vectorized_elementwise_kernel<4, F<float>, std::array<char*, 1ul> >(int)",
            "vectorized_elementwise_kernel",
        ),
        (TORCH_COPY, "elementwise_kernel"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm>(cutlass_80_simt_sgemm::Params)", "cutlass_80_simt_sgemm"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<A<1, 2>, B> >(P)", "GemmUniversal"),
        ("void cutlass::Kernel<a::Gemm<int, float>, (b < c)>(P)", "Gemm"),
        ("void mycutlass::Kernel2<f>(P)", "Kernel2"),
        ("cutlass::Kernel2(int)", "Kernel2"),
        ("void cutlass::Kernel2<>(int)", "Kernel2"),
        ("void cutlass::Kernel2<unfinished", "unfinished"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("(anonymous namespace)::fill(float*)", "fill"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 8, true>(float*)", "softmax_warp_forward"),
        ("void outer<int>::inner<2>(float)", "inner"),
        ("void k<(Mode)1, (5 > 3), (a < b)>(int)", "k"),
        ("void k<&A::b, decltype(x->y)>(int)", "k"),
        ("cudapy::__main__::add[abi:v1][abi:cw51cX](Array<float, 1>)", "add"),
        ("main::{lambda(int)#1}::operator()(int) const", "operator()"),
        ("run(float*)::{lambda(float)#2}", "{lambda#2}"),
        ("a::{lambda()}", "{lambda}"),
        ("A::operator<(A const&) const", "operator<"),
        ("bool operator<< <int>(X<int>)", "operator<<"),
        ("A::operator< <int>(int)", "operator<"),
        ("A::operator<<(A const&)", "operator<<"),
        ("A::operator->()", "operator->"),
        ("A::operator bool() const", "operator bool"),
        ("operatorless(int)", "operatorless"),
        ("operator_kernel<int>(int)", "operator_kernel"),
        ("kernel(int) [clone .constprop.0]", "kernel"),
        ("void unfinished<int, std::array<float", "unfinished"),
        ("int (*weird)(int)", "(*weird)"),
        # mangled, without a demangler
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
        # nothing
        ("", UNNAMED),
        ("   ", UNNAMED),
        (b"caf\xc3\xa9(int)", "café"),
        (b"bad\xff<int>(int)", "bad\ufffd"),
    ],
)
def test_base_name(name, expected):
    assert base_name(name) == expected


def test_names_of_four_kibibytes():
    arguments = ", ".join(f"Tensor<float, {n}>" for n in range(250))
    assert len(arguments) > 4096
    assert base_name(f"void ns::big<{arguments}>({arguments})") == "big"
    assert base_name("x" * 4096) == "x" * 4096
    assert base_name("_Z4096" + "y" * 4096 + "v") == "y" * 4096


def test_damaged_names_do_not_take_long():
    for unit in ("<", "(", "{", ">", ")", "::", "operator<", "operator ", "a<(", "_Z9", " "):
        assert base_name(unit * (65536 // len(unit)))


@given(st.text(alphabet="ab_<>(){}[]:, -#&*", max_size=60))
@example("a->b<c>")
def test_any_text_gives_a_name(name):
    assert base_name(name)
    assert base_name(base_name(name))


@given(st.binary(max_size=60))
def test_any_bytes_give_a_name(raw):
    assert base_name(raw)
    assert base_name(b"_Z" + raw)


identifiers = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,20}", fullmatch=True).filter(lambda word: word != "operator")


@given(st.lists(identifiers, min_size=1, max_size=5), st.booleans())
def test_last_component_is_found_in_both_forms(names, template):
    demangled = "void " + "::".join(names) + ("<int, A<3> >" if template else "") + "(float*)"
    assert base_name(demangled) == names[-1]
    mangled = "".join(f"{len(name)}{name}" for name in names)
    assert base_name(f"_ZN{mangled}{'IiE' if template else ''}EPf") == names[-1]


# --- the runtime's demangler --------------------------------------------------------------------------------------

needs_runtime = pytest.mark.skipif(sys.platform == "win32", reason="no Itanium names there")


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(demangling, "_cache", {})
    monkeypatch.setattr(demangling, "_functions", None)
    monkeypatch.setattr(demangling, "_look_at", 0.0)


@needs_runtime
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_Z5saxpyifPKfPf", "saxpy(int, float, float const*, float*)"),
        ("_ZN12_GLOBAL__N_14fillEPf", "(anonymous namespace)::fill(float*)"),
        ("_Z1kIiEvT_", "void k<int>(int)"),
        ("saxpy", None),
        ("", None),
        ("_Z", None),
        ("_Z99short", None),
        ("_Z5saxpy\0hidden", None),
        ("_Zé", None),
        ("_Z1k" + "P" * 70000 + "i", None),
    ],
)
def test_demangle(fresh, name, expected):
    assert demangle(name, may_load=True) == expected


@needs_runtime
def test_demangled_names_are_kept_within_bounds(fresh, monkeypatch):
    monkeypatch.setattr(demangling, "_CACHE_SIZE", 4)
    for n in range(10, 20):
        assert demangle(f"_Z3k{n}v", may_load=True) == f"k{n}()"
        assert len(demangling._cache) <= 4
    assert demangle("_Z3k19v") == "k19()"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
def test_answers_are_freed(run_python):
    code = """if True:
        from gpusense._capi import demangle
        demangle._CACHE_SIZE = 1
        name = "_Z900" + "k" * 900
        def resident_bytes():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        def work(count):
            for n in range(count):
                assert demangle.demangle(f"{name}{'P' * (n % 7)}i", may_load=True)
        work(1000)
        before = resident_bytes()
        work(40000)
        assert resident_bytes() - before < 16_000_000, (before, resident_bytes())
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_without_a_runtime_names_stay_raw(fresh, monkeypatch):
    monkeypatch.setattr(demangling, "load", lambda *_, **__: demangling.CPP_RUNTIME and None)
    assert demangle("_Z5saxpyi") is None
    assert base_name("_Z5saxpyi") == "saxpy"


def test_no_runtime_is_brought_in_unasked(fresh, monkeypatch):
    asked = []
    monkeypatch.setattr(demangling, "load", lambda row, only_mapped: asked.append(only_mapped))
    demangle("_Z1kv")
    demangle("_Z1kv", may_load=True)
    assert asked == [True, False]


def test_a_runtime_that_is_missing_is_not_looked_for_at_every_name(fresh, monkeypatch):
    asked = []
    now = [100.0]
    monkeypatch.setattr(demangling, "load", lambda *_, **__: asked.append(1))
    monkeypatch.setattr(demangling, "monotonic", lambda: now[0])
    for n in range(50):
        assert demangle(f"_Z3k{n:02}v") is None
    assert len(asked) == 1
    now[0] += 1.5
    demangle("_Z1kv")
    assert len(asked) == 2


@needs_runtime
def test_names_become_readable_once_there_is_a_runtime(fresh, monkeypatch):
    real = demangling.load
    monkeypatch.setattr(demangling, "load", lambda *_, **__: None)
    cache = NameCache(demangling)

    def resolve(now_s, pointer=1):
        cache.new_buffer(now_s)
        return cache.resolve(pointer, lambda _: b"_Z1kIiEvT_")

    assert resolve(10.0) == ("k", None, "_Z1kIiEvT_")
    monkeypatch.setattr(demangling, "load", lambda row, **_: real(row))
    monkeypatch.setattr(demangling, "_look_at", 0.0)
    assert resolve(12.0)[1] is None  # nobody has looked since
    demangle("_Z5otheri")
    assert resolve(12.5)[1] is None  # kept for a second
    assert resolve(14.0) == ("k", "void k<int>(int)", "_Z1kIiEvT_")


def test_the_names_of_the_same_kernels_are_looked_up_once_and_read_again_after_a_second():
    texts, reads = {0x100: b"one", 0x140: b"two"}, []

    def read(pointer):
        reads.append(pointer)
        return texts[pointer]

    cache = NameCache(demangling)
    names, both = Names(cache, read), frozenset(texts)
    cache.new_buffer(1.0)
    known, short = names.many(both)
    assert short == {0x100: "one", 0x140: "two"} == {pointer: found[0] for pointer, found in known.items()}
    cache.new_buffer(1.5)
    assert names.many(both)[0] is known
    assert names.many(frozenset([0x100]))[1] == {0x100: "one"}
    assert len(reads) == 2
    texts[0x100] = b"other"  # its module was unloaded, and another came to its place
    cache.new_buffer(1.9)
    assert names.many(both)[1] == short
    cache.new_buffer(2.1)
    assert names.many(both)[1] == {0x100: "other", 0x140: "two"}
    assert names(0x100)[0] == "other"
