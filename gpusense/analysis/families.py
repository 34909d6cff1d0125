"""What kind of work a kernel does, and in which arithmetic, read from its name alone. Pure.

Both are conventions of the libraries that name the kernels, not facts that the driver gives: a name that follows none
is of the family "other", and its precision is unknown (None).
"""

import re
from functools import lru_cache
from typing import Literal, TypeVar

from .._decode.labels import said
from .._runtime.patterns import pattern

Family = Literal[
    "matmul", "attention", "convolution", "elementwise", "reduction", "normalisation", "softmax", "embedding/indexing",
    "optimizer", "random", "sort/scan", "copy", "communication", "fft", "rnn", "graphics", "other",
]  # fmt: skip
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"]

MAX_NAMES = 4096  # names whose answers are remembered

_T = TypeVar("_T")
_Table = tuple[tuple[_T, re.Pattern[str]], ...]


def _table(*rows: tuple[_T, list[str]]) -> "_Table[_T]":
    """Of each row the answer, and what finds any of its words."""
    return tuple((answer, pattern("|".join(words))) for answer, words in rows)


#: The first that is found in what the name says, in lower case, is the family. Narrow ones come before wide ones:
#: attention multiplies matrices, and a fused kernel is named after all it does.
_FAMILIES: "_Table[Family]" = _table(
    # NCCL, RCCL, MSCCL, NVSHMEM, DeepEP, Transformer Engine's userbuffers, vLLM's and PyTorch's own
    (
        "communication",
        [
            r"nccl|rccl|msccl|nvshmem|deep_?ep::|(?:intra|inter)node::|userbuffers|cross_device_(?:reduce|store)|multimem_(?:all_|one_shot)",
            r"(?:one|two)_?shot_all_?reduce|all_?reduce_(?:fusion|kernel|oneshot|twoshot)|lamport",
        ],
    ),
    # Inductor says how a kernel is made (poi: pointwise, red and per: reductions, tem: a template) and of what
    ("attention", [r"^triton_tem_fused\w*attention"]),
    ("convolution", [r"^triton_tem_fused\w*conv"]),
    ("matmul", [r"^triton_(?:tem_fused|mm|bmm)"]),
    ("softmax", [r"^triton_(?:red|per)_fused\w*softmax"]),
    ("normalisation", [r"^triton_(?:red|per)_fused\w*(?:_norm|rsqrt|var_mean)"]),
    ("reduction", [r"^triton_(?:red|per)_fused"]),
    (
        "copy",
        [
            r"^triton_poi_fused(?:__to_copy|__unsafe_view|_(?:clone|transpose|view|t|permute|cat|copy_?|stack|slice|unbind|unsqueeze|expand|constant_pad_nd|split))+_\d+$"
        ],
    ),
    ("random", [r"^triton_poi_fused\w*(?:dropout|_rand)"]),
    ("elementwise", [r"^triton_(?:poi_fused|for_fused)"]),
    ("elementwise", [r"rotary|(?<![a-z])rope(?![a-z])"]),
    # writes into the cache of keys and values, and what plans attention, are not attention
    (
        "embedding/indexing",
        [r"reshape_and_cache|store_kv_?cache|kv_buffer|copy_page_indices|kv_indices|embedding|bounds_check_ind"],
    ),
    ("normalisation", [r"norm::|(?:layer|rms|batch|group|instance)_?norm(?!al)|gammabeta|rowwisemoments"]),
    ("normalisation", [r"(?:compute(?:backward)?fusedparams|computeinternalgradients)cuda|\bbn_(?:fw|bw)_"]),
    ("rnn", [r"lstm|cudnn_?rnn|persist_?rnn|(?<![a-z])(?:gru|rnn)(?![a-z])"]),
    (
        "attention",
        [
            r"fmha|flash(?!infer)|attention|(?<![a-z])attn|_attn|sdpa|(?:prefill|decode)with(?:paged|ragged)kvcache|sage_fwd",
            r"mla_(?:fwd|decode|kernel)|decode_mha",
        ],
    ),
    (
        "copy",
        [
            r"nchwtonhwc|nhwctonchw|transpose|cat_?array|chunk_cat|_copy(?:_kernel|<|\b)|<copy[<>]|copybuffer|copy_async|memcpy",
            r"swapdimension|cupy_copy__|convert_?(?:tensor|kernel|fp|bf)|\bconvert<|split_with_sizes_copy|copy_fusion",
            r"(?:loop|wrapped|input)_(?:copy|transpose|convert|concatenate|slice|bitcast)\b|subtensoropwithcast",
            r"(?:loop|wrapped)_(?:copy|transpose|convert|concatenate|slice)_\w*fusion|nchw2cnhw|cnhw2nchw",
        ],
    ),
    (
        "convolution",
        [
            r"fprop|dgrad(?!_gemm)|wgrad(?!_gemm)|conv(?!er)|winograd|igemm_(?:fwd|bwd|wrw)|im2d?2?col|scudnn",
            r"computew?(?:grad)?\w*offsetskernel|fft2d_[rc]2[rc]_|_bwd_weight\b",
        ],
    ),
    ("fft", [r"fft"]),
    (
        "embedding/indexing",
        [
            r"\bindex|_index_|index(?:select|func|_select|_put|_copy)|scatter|gather(?!topk)|bucketize|linearize_ind",
            r"permute_(?:2d|indices|pooled)|offsets_range|routing|moe_align|to_dense|resolve_future",
        ],
    ),
    ("optimizer", [r"adam|adagrad|(?<![a-z])(?:sgd|lamb|lion|muon)(?![a-z])|multi_tensor_apply|optimizer"]),
    ("softmax", [r"soft_?max"]),
    (
        "matmul",
        [
            r"(?<!fb)gemm|gemv|nvjet|matmul|cijk_|splitk_?reduce|reducesplitk|_xmma_|(?<![a-z])tensorop_|(?<![a-z])[bm]mm_|\bdot_kernel",
            r"spmm|sddmm|reduce_1block|xdlops|marlin|fused_moe|epilogue::impl|dot_fusion|\bmm_kernel|wmma|mfma",
        ],
    ),
    (
        "random",
        [
            r"distribution|philox|curand|random|dropout|multinomial|randperm|(?<![a-z])rng|bernoulli|gumbel|uniform_kernel"
        ],
    ),
    (
        "sort/scan",
        [
            r"sort|scan|radix|top_?k|unique|compact|partition|select_if|deviceselect|histogram|cumsum|cumprod|nonzero",
            r"reducebykey|lookback|find_long_segments",
        ],
    ),
    ("elementwise", [r"eigenmetakernel<scalar_"]),
    ("graphics", [r"\brender|raster|\bdraw|shader|fragment|\bblit"]),
    ("reduction", [r"reduc|argm(?:ax|in)|pool|\bsum_|_sum\b|_sum_|meanops|moments|_amax|welford|segments"]),
    (
        "elementwise",
        [
            r"elementwise|eigenmetakernel|loop_\w*fusion|^wrapped_|cupy_\w+__|gelu|silu|relu|act_and_mul",
            r"fill|memset|scal(?:e|_|ar)|quant|upsample|clamp|::transform|to_float|add_|_add|mul_|_mul|subtensorop",
        ],
    ),
)

_WITH_PRECISION = ("matmul", "convolution", "attention")

# cuBLAS names its kernels for Hopper and later after their types, a letter each: ``nvjet_hsh``, ``nvjet_qqtst``. Three
# letters are inputs, what is summed in, and output; five are A, B, C, what is summed in, and D. The letters are read
# from profiles whose types are known: h and t from products of half and bfloat16 (summed in s, float), q and r from
# scaled ones of e4m3 and e5m2, o from NVFP4. NVIDIA documents none of them. Where s is the input, "tf32" stands beside.
_NVJET = pattern(r"nvjet_(?:sm\d+_)?([a-z])([a-z]{2,4})_")
_NVJET_INPUT: "dict[str, Precision]" = {
    "h": "fp16", "t": "bf16", "q": "fp8", "r": "fp8", "o": "fp4", "d": "fp64",
}  # fmt: skip

# Tensile (rocBLAS, hipBLASLt) writes the types after the layouts of A and B.
_TENSILE = pattern(r"cijk_a[a-z]+_b[a-z]+_(f8|b8|i8|[bhsdcz])")
_TENSILE_INPUT: "dict[str, Precision]" = {
    "f8": "fp8", "b8": "fp8", "i8": "int8", "b": "bf16", "h": "fp16", "s": "fp32", "d": "fp64",
    "c": "fp32", "z": "fp64",
}  # fmt: skip
# TensorRT-LLM writes output, A and B, accumulator: ``bmm_Bfloat16_E2m1E4m3_Fp32``; attention ``QkvE4m3OBfloat16``.
_TRTLLM = pattern(r"\bbmm_[a-z0-9]+_((?:mx)?[a-z]+\d*(?:m\d)?\w*?)_fp32|qkv(e4m3|e5m2|e2m1|bfloat16|fp16|bf16)")

#: The first that is found; only for the families above.
_PRECISIONS: "_Table[Precision | None]" = _table(
    (None, [r"splitk_?reduce|reducesplitk|offsetskernel"]),  # sums parts; what the products were in is not said
    (None, [r"sdpa_sm\d+_flash_\w*?_f16"]),  # cuDNN: 16 bits, of half and bfloat16 alike
    ("fp8", [r"e4m3|e5m2|fp8|float8|(?<![a-z0-9])f8"]),
    ("fp4", [r"e2m1|(?<!mx)fp4"]),
    ("tf32", [r"tf32"]),
    ("bf16", [r"bf16|bfloat16"]),
    ("int8", [r"int8|(?<![a-z])i8i8|imma|i(?:8816|16816|16832|16864)|_s8_"]),
    ("fp16", [r"f16|fp16|half|h(?:884|1688|16816)|hgemm"]),
    ("fp64", [r"f64|fp64|double|[dz]gemm|d884|d1684"]),
    ("fp32", [r"simt|ffma|[sc]gemm|scudnn|fp32"]),
    ("tf32", [r"s1688|xmma_\w*f32f32\w*(?:warpgroup|tensor\d)"]),
    ("fp32", [r"xmma_\w*f32f32|_f32_|\bfloat2?\b|_float\b"]),
)

_TENSOR_CORES = pattern(
    r"nvjet|tensorop|[hsdi](?:884|8816|1688|16816|16832|1684|161616)|wmma|mfma|xdl|gtcx|_mi\d+x|umma|tcgen05|warpgroup"
    r"|tensor\d+x|warpspecialized|flash_?(?:attn|fprop|bprop|(?:fwd|bwd)(?!_splitkv_combine))|fmhasm|\bbmm_\w+_sm1|sm90_|sm100"
)
_NO_TENSOR_CORES = pattern(r"simt|ffma|gemv|\bdot_kernel|gemmk1|scudnn|(?<![a-z])[sdcz]gemm|_[sdcz]gemm|gcgemm")


@lru_cache(MAX_NAMES)
def family(full_name: str) -> Family:
    """What kind of work a kernel of this name does; "other" where the name does not say."""
    words = said(full_name).lower()
    return next((family for family, words_of in _FAMILIES if words_of.search(words)), "other")


def is_collective(name: str) -> bool:
    """Whether a kernel of this name communicates with other devices."""
    return family(name) == "communication"


@lru_cache(MAX_NAMES)
def precision(full_name: str) -> "Precision | None":
    """The arithmetic of a matmul, convolution or attention kernel: the type that is multiplied, not the one summed in.

    None where the name does not say, and of other families. "fp32" is float as it is, "tf32" float on tensor cores.
    """
    if family(full_name) not in _WITH_PRECISION:
        return None
    words = said(full_name).lower()
    if found := _NVJET.search(words):
        return "tf32" if "tf32" in words else _NVJET_INPUT.get(found[1])
    if found := _TENSILE.search(words):
        return _TENSILE_INPUT[found[1]]
    if found := _TRTLLM.search(words):
        words = found[1] or found[2]
    return next((precision for precision, words_of in _PRECISIONS if words_of.search(words)), None)


@lru_cache(MAX_NAMES)
def uses_tensor_cores(full_name: str) -> "bool | None":
    """Whether a matmul, convolution or attention kernel multiplies on tensor (AMD: matrix) cores; None: not said."""
    if family(full_name) not in _WITH_PRECISION:
        return None
    words = said(full_name).lower()
    if _TENSILE.search(words):
        return "_mi" in words
    if _NO_TENSOR_CORES.search(words) and "tensorop" not in words:
        return False
    return True if _TENSOR_CORES.search(words) else None
