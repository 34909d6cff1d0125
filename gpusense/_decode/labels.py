"""What people read for a kernel: from its full name a short label that says what it does. Pure; any text is answered.

A kernel's name is often a frame: ``vectorized_elementwise_kernel`` runs whatever functor it is given, ``Kernel2`` the
class in its brackets. A label names what runs and, where the name has it, the type it runs on:
``elementwise<FillFunctor<int>>``, ``gemvx::kernel<bf16>``, ``flash_fwd_kernel<128, bf16, causal>``. Names without
template arguments, such as those of Triton, JAX, CuPy and plain C, stay as they are.

Spellings of demangled C++ differ: libstdc++ and NVIDIA write ``{lambda(float)#1}`` and ``4``, nsys
``[lambda(float) (instance 1)]`` and ``(int)4``, LLVM ``'lambda'(float)``; all are read. Of a mangled name, where no
demangler is at hand, the label is the last component: what it is given cannot be read without decoding all of it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .._runtime.patterns import pattern
from .._runtime.text import decoded

UNNAMED = "(unnamed)"
#: Labels that are composed, and names of kernel libraries, are cut to so many characters; no label is longer than
#: the other, which only names that a compiler or a person gave ever reach.
SHORT, LONG = 64, 160
#: What tells a kernel stands at the beginning of its name; the parameters, at the end, say the same again.
_READ = 8192
_DEEP = 8  # frames in frames
_CUT = "…"

# ---- The text: brackets, components, arguments. Every function reads it once, from left to right. ------------------

_OPEN = {"(": ")", "<": ">", "{": "}", "[": "]"}
_BRACKET = pattern(r"[<>(){}\[\]]")
_STOP = pattern(r"::|[ (<{\[']|\boperator(?!\w)")  # where something other than a letter of a component begins
_BRACKET_OR_COMMA = pattern(r"[<({\[,]")
# Longest first, so that ``<<`` is not taken for ``<``; the space is that of ``operator< <int>``.
_SIGNS = r"<=>|<<=|>>=|->\*|\(\)|\[\]|<<|>>|->|\+\+|--|&&|\|\||[<>=!+\-*/%&|^]=|[<>=!+\-*/%&|^~,]"
_OPERATOR = pattern(rf"operator ?(?:({_SIGNS})(?: (?=<))?|(?![A-Za-z0-9_])[^(<]*)")
_QUOTED_LAMBDA = pattern(r"'lambda(\d*)'\(")
_QUALIFIER = pattern(r" ?(?:const|volatile)\b| ?&&?")
_NUMBER_OF_LAMBDA = pattern(r"(?:#|\(instance )(\d+)\)?[}\]]\Z")
_LAUNCHER = pattern(r"(?: \[clone [^\]]*\]| ?\(?\.kd\)?|\.kd)\Z")  # ROCm marks what a kernel's descriptor is
_ANONYMOUS = "(anonymous namespace)"
_NO_NAME = {_ANONYMOUS, "_3clocals_3e", "_GLOBAL__N__", "locals"}


class _Part(NamedTuple):
    """One component of a qualified name."""

    name: str
    arguments: str | None = None  # between its angle brackets; of a lambda what it is called with
    called: bool = False  # a parameter list follows

    @property
    def is_lambda(self) -> bool:
        return self.name.startswith("{lambda")


def _closing(text: str, at: int) -> int:
    """Index after the bracket that closes the one at ``at``; the end of the text where none does.

    Round brackets may hold comparisons: there a ``>`` closes nothing, and what a ``<`` opened ends with them.
    """
    expected: list[str] = []
    for found in _BRACKET.finditer(text, at):
        sign = found[0]
        if sign == ">":
            if expected[-1] == ">" and text[found.start() - 1] != "-":
                expected.pop()
        elif sign in _OPEN:
            expected.append(_OPEN[sign])
        else:
            while expected and expected[-1] == ">":
                expected.pop()
            if expected and expected[-1] == sign:
                expected.pop()
        if not expected:
            return found.end()
    return len(text)


def _path(text: str) -> list[_Part]:
    """Components of a qualified name, without what comes before it (a return type) and after (its parameters)."""
    parts: list[_Part] = []
    part, at = _Part(""), 0
    while stop := _STOP.search(text, at):
        part = part._replace(name=part.name + text[at : stop.start()])
        at, sign = stop.end(), stop[0]
        if sign == "::":
            if part.name:
                parts.append(part)
            part = _Part("")
        elif sign == " ":  # what came before was a return type
            parts, part = [], _Part("")
        elif sign in _OPEN:
            part, at = _with_group(part, text, at - 1)
            if part.called and not text.startswith("::", at):
                return [*parts, part]  # all that follows says how to call it
        else:
            part, at = _with_word(part, text, stop.start(), sign)
    part = part._replace(name=part.name + text[at:])
    return [*parts, part] if part.name else parts


def _with_group(part: _Part, text: str, at: int) -> tuple[_Part, int]:
    """What the brackets that open at ``at`` make of a component, and the index after them."""
    end = _closing(text, at)
    inner = text[at + 1 : end - 1 if text[end - 1] == _OPEN[text[at]] else end]
    if not part.name:
        return _of_group(text[at:end], inner), end
    if text[at] == "(":
        qualifier = _QUALIFIER.match(text, end)
        return part._replace(called=True), qualifier.end() if qualifier else end
    return (part._replace(arguments=inner) if text[at] == "<" else part), end  # else [abi:v1]


def _with_word(part: _Part, text: str, at: int, word: str) -> tuple[_Part, int]:
    """As :func:`_with_group`, for an operator and for a lambda as LLVM writes it."""
    if not part.name and (operator := _OPERATOR.match(text, at)):
        return _Part(operator[0].rstrip()), operator.end()
    if not part.name and (quoted := _QUOTED_LAMBDA.match(text, at)):
        end = _closing(text, quoted.end() - 1)
        return _Part(f"{{lambda#{quoted[1] or 1}}}", text[quoted.end() : end - 1]), end
    return part._replace(name=part.name + word), at + len(word)


def _last(text: str) -> _Part:
    parts = _path(text)
    return parts[-1] if parts else _Part("")


def _of_group(group: str, inner: str) -> _Part:
    """A component that is a group in brackets: ``{lambda(float)#1}``, ``(anonymous namespace)``; none of a cast."""
    if group[0] == "(":
        return _Part(_ANONYMOUS if group == _ANONYMOUS else "")
    if group[0] == "<":
        return _Part(_ANONYMOUS)  # <unnamed>, <locals>
    if not inner.startswith("lambda"):
        return _Part(group)
    number = _NUMBER_OF_LAMBDA.search(group)
    end = _closing(inner, 6) if inner.startswith("(", 6) else 6
    return _Part(f"{{lambda#{number[1]}}}" if number else "{lambda}", inner[7 : end - 1])


def _split(text: "str | None") -> list[str]:
    """The arguments of a list, apart."""
    if not text:
        return []
    found: list[str] = []
    start = at = 0
    while stop := _BRACKET_OR_COMMA.search(text, at):
        if stop[0] == ",":
            found.append(text[start : stop.start()].strip())
            start = at = stop.end()
        else:
            at = _closing(text, stop.start())
    found.append(text[start:].strip())
    return found


# ---- Types ---------------------------------------------------------------------------------------------------------

_TYPES = {
    "__half": "half", "__half2": "half", "half": "half", "half_t": "half", "Half": "half", "_Float16": "half",
    "__nv_bfloat16": "bf16", "__hip_bfloat16": "bf16", "hip_bfloat16": "bf16", "__bf16": "bf16", "bfloat16": "bf16",
    "bfloat16_t": "bf16", "BFloat16": "bf16", "bf16": "bf16", "bf16_t": "bf16", "__nv_bfloat162": "bf16",
    "tfloat32_t": "tf32", "tf32": "tf32",
    "Float8_e4m3fn": "e4m3", "Float8_e4m3fnuz": "e4m3", "float_e4m3_t": "e4m3", "__nv_fp8_e4m3": "e4m3", "e4m3": "e4m3",
    "Float8_e5m2": "e5m2", "Float8_e5m2fnuz": "e5m2", "float_e5m2_t": "e5m2", "__nv_fp8_e5m2": "e5m2", "e5m2": "e5m2",
    "float_e2m1_t": "e2m1", "__nv_fp4_e2m1": "e2m1", "e2m1": "e2m1",
    "float": "float", "double": "double", "float2": "float2", "double2": "double2", "float4": "float4",
}  # fmt: skip
_INTEGERS = {
    "bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned int", "unsigned",
    "long", "unsigned long", "long long", "unsigned long long", "__int64", "int8_t", "uint8_t", "int32_t", "int64_t",
}  # fmt: skip
_MODIFIERS = pattern(r"\b(?:const|volatile|struct|class|enum)\b|[*&]")
_CAST = pattern(r"\((?:[\w: ]|\(anonymous namespace\))+\)(?=-?[\w])|\w+=(?=-?\d)")  # (int)4; nvprof: int=4
_NUMBER = pattern(r"(-?\d+)[uUlL]*\Z")
_TILE = pattern(r"tuple<(?:(?:cute::)?C<(?:\(int\))?\d+>[, ]*)+|(?:GemmShape|MatrixShape)<(?:(?:\(int\))?\d+[, ]*)+")
_DIGITS = pattern(r"\d+")
_ELEMENT = pattern(
    r"\b(?:half_t|bfloat16_t|tfloat32_t|float_e[45]m[23]_t|float_e2m1_t|__half|__nv_bfloat16|__nv_fp8_e[45]m[23]|float|double)\b"
)


def _type(argument: str) -> "str | None":
    """The short word for an arithmetic type; None of all else."""
    if len(argument) > 60:
        return None
    plain = " ".join(_MODIFIERS.sub("", argument).split())
    if plain in _INTEGERS:
        return plain
    if plain.endswith(">") and "complex<" in plain:
        return plain[plain.index("complex<") :]
    return _TYPES.get(plain.rpartition("::")[2])


def _number(argument: str) -> "str | None":
    found = _NUMBER.match(_CAST.sub("", argument))
    return found[1] if found else None


def _is_true(argument: str) -> bool:
    return argument in ("true", "(bool)1", "bool=1")


def _element(text: str) -> "str | None":
    """What a matrix kernel multiplies: the first type narrower than float, else the first of all."""
    found = [_TYPES[word] for word in _ELEMENT.findall(text)]
    return next((word for word in found if word not in ("float", "double")), found[0] if found else None)


def _tile(text: str) -> "str | None":
    """``128x128x64``, of the first shape that is not a cluster's."""
    for found in _TILE.finditer(text):
        sides = _DIGITS.findall(found[0])
        if len(sides) > 1 and max(map(int, sides)) > 4:
            return "x".join(sides[:3])
    return None


def _templated(name: str, *arguments: "str | None") -> str:
    told = [argument for argument in arguments if argument]
    return f"{name}<{', '.join(told)}>" if told else name


# ---- What runs in a frame ------------------------------------------------------------------------------------------

_AFFIX = pattern(
    r"^(?:launch_)?(.+?)(?:_kernel_cuda|_cuda_kernel|_cuda_out|CUDAKernelImpl|KernelImplInternal|CUDAKernel|KernelImpl"
    r"|_kernel_impl|_kernel|_cuda|_gpu|_functor)?\Z"
)
#: Functions and classes that only pass on what they are given, and which of their arguments that is.
_WRAPPERS = {
    "gpu_kernel_impl": 0, "gpu_kernel_impl_nocast": 0, "gpu_kernel": 0, "apply": 0, "gpu_index_kernel": 0,
    "opmath_gpu_kernel_with_scalars": -1, "opmath_symmetric_gpu_kernel_with_scalars": -1,
    "ReduceOp": 1, "func_wrapper_t": 1, "ReduceJitOp": 1,
    "BinaryFunctor": 3, "AUnaryFunctor": 3, "BUnaryFunctor": 3,
    "uniform_and_transform": None, "normal_and_transform": None,
    "unary_transform_f": 3, "binary_transform_f": 4, "wrapped_function": 0,
}  # fmt: skip


_CARRIER = pattern(r"(?:[Tt]raits|Params|device_ptr)\Z")  # only carry the types of what they are given to


def _plain_function(name: str) -> str:
    """``GeluCUDAKernelImpl`` → ``gelu``, ``direct_copy_kernel_cuda`` → ``direct_copy``."""
    found = _AFFIX.match(name)
    bare = found[1] if found else name
    return bare if "_" in bare[:1] or not bare[:1].isupper() or bare.isupper() else bare[0].lower() + bare[1:]


def _functor(argument: str, depth: int = 0) -> "str | None":
    """What a functor, a lambda or what wraps one does; None of types and numbers."""
    if depth > _DEEP or _number(argument) is not None or argument in ("true", "false") or argument[:8] == "decltype":
        return None
    if word := _type(argument):
        return word
    parts = [part for part in _path(argument.rstrip("*& ")) if part.name not in _NO_NAME]
    if not parts:
        return None
    if any(part.is_lambda for part in parts):
        return _of_lambda(parts, depth)
    last = parts[-1]
    arguments = _split(last.arguments)
    if last.name in _WRAPPERS:
        inside = _wrapped(last, arguments, depth)
        if inside:
            return inside
    if _CARRIER.search(last.name) and (inside := _first_type(arguments, depth)):
        return inside
    size = _number(arguments[0]) if len(arguments) == 1 else None  # OpaqueType<4>
    return _templated(last.name, size or _first_type(arguments, depth))


def _wrapped(part: _Part, arguments: list[str], depth: int) -> "str | None":
    at = _WRAPPERS[part.name]
    if at is None:  # the distribution is the name of the wrapper
        return _templated(part.name.partition("_")[0], _first_type(arguments, depth))
    return _functor(arguments[at], depth + 1) if -len(arguments) <= at < len(arguments) else None


def _of_lambda(parts: list[_Part], depth: int) -> str:
    """By the function it stands in, or the class whose call operator that is; the type is that of its argument."""
    called = next((at for at, part in enumerate(parts) if part.called and not part.is_lambda), -1)
    last = next(part for part in reversed(parts) if part.is_lambda)
    types = [word for one in _split(last.arguments) if "*" not in one and (word := _type(one))]
    kind = next((word for word in types if word != "bool"), types[0] if types else None)
    if called < 0:
        return last.name if len(parts) == 1 else f"{parts[0].name}::{last.name}"
    function = parts[called]
    arguments = _split(function.arguments)
    if function.name.startswith("operator") and called:
        inside = next((found for found in (_functor(one, depth + 1) for one in arguments) if found), None)
        owner = parts[called - 1]
        return inside or _templated(owner.name, kind or _first_type(_split(owner.arguments), depth))
    if function.name in _WRAPPERS and (inside := _wrapped(function, arguments, depth)):
        return inside
    return _templated(_plain_function(function.name), kind or _first_type(arguments, depth))


def _first_type(arguments: list[str], depth: int = 0) -> "str | None":
    """The floating type that comes first, else the type or class that does."""
    found = next((word for word in map(_type, arguments) if word and word not in _INTEGERS), None)
    if found or depth > _DEEP:
        return found
    told = (_functor(argument, depth + 1) for argument in arguments if "olicy" not in argument[:60])
    return next((word for word in told if word), None)


# ---- Kernels -------------------------------------------------------------------------------------------------------

#: Names that say nothing alone.
_GENERIC = {
    "kernel", "Kernel", "Kernel2", "device_kernel", "main_kernel", "kentry", "run", "launch", "apply", "globalKernel",
    "static_kernel", "trampoline_kernel", "entry", "forward", "backward", "main", "dispatch", "combine",
}  # fmt: skip
_FRAMED = ("Kernel", "Kernel2", "device_kernel", "kentry")
_TRANSPARENT = pattern(r"enable_sm\w+|enable_if_sm\w+|enable_\w+|KernelWrapper|SM\d+\w*Only")
_ELEMENTWISE = pattern(r"(?:\w+_)?elementwise_kernel(?:_with_index|_manual_unroll|_for_multi_outputs)?")
_FLASH = pattern(r"flash_(?:fwd|bwd)\w*")
_EIGEN_OP = pattern(r"\b(scalar_\w+_op|\w+Reducer)<([\w:]+)")
_MERGED = {  # names of ATen for a frame → the word for it
    "index_elementwise_kernel": "index",
    "_scatter_gather_elementwise_kernel": "scatter_gather",
    "distribution_elementwise_grid_stride_kernel": "distribution",
    "reduce_kernel": "reduce",
}
_THRUST_ALGORITHM = pattern(r"\b__(?!parallel_for\b|int64\b)([a-z_]+)::")
_OPERATION = pattern(r"(?:cub|hipcub|thrust|std|cuda|cuda::std|cuda::std::__4|rocprim)::(?:\w+::)*(\w+)")
_OPERATIONS = {
    "plus", "minus", "multiplies", "divides", "maximum", "minimum", "max", "min", "Sum", "Max", "Min", "ArgMax",
    "ArgMin", "identity", "logical_and", "logical_or", "bit_or", "bit_and", "less", "greater", "negate",
    "equal_to", "not_equal_to", "Equality",
}  # fmt: skip


def _matrix(text: str, depth: int = 0) -> "str | None":
    """Of what CUTLASS and its like launch: the class, its tile and what it multiplies; attention by head and mask."""
    last = _last(text)
    if not last.name or depth > _DEEP:
        return None
    if last.arguments is None:
        return last.name
    arguments = _split(last.arguments)
    if _TRANSPARENT.fullmatch(last.name) and arguments:
        return _matrix(arguments[0], depth + 1)
    mask = None
    if last.name.startswith("FlashAttnFwd"):  # Element, ElementAccum, ArchTag, Is_causal, Is_local
        inner = _split(_last(arguments[0]).arguments) if arguments else []
        arch = next((at for at, one in enumerate(inner) if "arch::Sm" in one), len(inner))
        mask = _mask(inner[arch + 1 : arch + 3])
    return _templated(last.name, _tile(last.arguments), _element(last.arguments), mask)


def _framed(arguments: list[str]) -> "str | None":
    return next((found for found in map(_matrix, arguments) if found), None)


def _mask(flags: list[str]) -> "str | None":
    return next((word for word, flag in zip(("causal", "local"), flags, strict=False) if _is_true(flag)), None)


def _flash(part: _Part, arguments: list[str]) -> str:
    """FlashAttention 2: the traits hold the head's size and the type; dropout, causal, local follow."""
    traits = _split(_last(arguments[0]).arguments)
    head = next((number for number in map(_number, traits[:1]) if number), None)
    flags = arguments[1:] if "splitkv" in part.name else arguments[2:]
    return _templated(part.name, head, _element(", ".join(traits)), _mask(flags))


def _multi_tensor(arguments: list[str]) -> str:
    """The functor, without that word, and what is done with its operands."""
    for at, argument in enumerate(arguments):
        name = _last(argument).name
        if not name or "TensorList" in name or _number(argument) is not None or _type(argument):
            continue
        bare = re.sub(r"(?:Math)?Functor\Z", "", name) or name
        applied = arguments[at + 1] if at + 1 < len(arguments) and "<" in arguments[at + 1] else ""
        operation = _functor(applied) if applied else None
        same = operation and operation.startswith(f"{bare}<")  # CopyFunctor and Copy
        return _templated("multi_tensor_apply", operation if same else _templated(bare, operation))
    return "multi_tensor_apply"


def _elementwise(word: str, arguments: list[str]) -> str:
    for argument in arguments:
        if not _type(argument) and (inside := _functor(argument)):
            return f"{word}<{inside}>"
    return _templated(word, _first_type(arguments))


def _algorithm(parts: list[_Part], text: str) -> "str | None":
    """Thrust, CUB and rocPRIM: library, algorithm and what is applied."""
    last = parts[-1]
    root = next((part.name for part in parts if part.name in ("cub", "hipcub", "rocprim", "thrust")), "")
    arguments = _split(last.arguments)
    inside = last.arguments or ""
    applied = next((found[1] for found in _OPERATION.finditer(inside) if found[1] in _OPERATIONS), None)
    kind = _first_type([one for one in arguments if "olicy" not in one and "onfig" not in one])
    if thrust := _THRUST_ALGORITHM.search(inside):
        functor = re.search(r"(?:unary|binary)_transform_f<", inside)
        if functor:
            function = _functor(inside[functor.start() : _closing(inside, functor.end() - 1)])
            return _templated(f"thrust::{thrust[1]}", function)
        return _templated(f"thrust::{thrust[1]}", applied or _first_type([*map(str.strip, _split(_inner(inside)))]))
    if last.name == "trampoline_kernel" and (found := re.search(r"\b(\w+)_impl<", inside)):
        return _templated(f"{root}::{found[1]}", applied, _type_in(inside))
    if root:
        return _templated(f"{root}::{last.name}", applied, kind)
    return None


def _inner(text: str) -> "str | None":
    """Arguments of the first argument's first argument: of Thrust's agents that is the functor."""
    for _ in range(2):
        arguments = [_last(one).arguments for one in _split(text)[:1]]
        text = next((inner for inner in arguments if inner), text)
    return text


def _type_in(text: str) -> "str | None":
    return next((word for found in re.finditer(r"<([\w: ]+)[,>]", text) if (word := _type(found[1]))), None)


def _scoped(parts: list[_Part]) -> str:
    """The last component, after another where it alone says nothing."""
    last = parts[-1].name
    if last.startswith("operator"):
        lambdas = [part for part in parts[:-1] if part.is_lambda]
        return _scoped(parts[:-1]) if lambdas else (f"{parts[-2].name}::{last}" if len(parts) > 1 else last)
    if last in _GENERIC or parts[-1].is_lambda:
        before = [part.name for part in parts[:-1] if part.name not in _NO_NAME and part.name != last]
        return f"{before[-1]}::{last}" if before else last
    return last


def _of_demangled(text: str) -> str:
    parts = [part for part in _path(text) if not part.name.startswith("_GLOBAL__N")]
    if not parts:
        return ""
    last = parts[-1]
    if parts[0].name == "cudapy":  # Numba: what is in the brackets are types of arguments
        return _scoped([part._replace(name=part.name.partition("$")[0]) for part in parts])
    arguments = [] if last.is_lambda else _split(last.arguments)
    if last.name in _FRAMED and ("cutlass" in text or "ck_tile::" in text) and (found := _framed(arguments)):
        return found
    if last.name in _MERGED or _ELEMENTWISE.fullmatch(last.name):
        return _elementwise(_MERGED.get(last.name, "elementwise"), arguments)
    if last.name == "multi_tensor_apply_kernel":
        return _multi_tensor(arguments)
    if _FLASH.fullmatch(last.name) and arguments:
        return _flash(last, arguments)
    if last.name == "EigenMetaKernel" and (operation := _EIGEN_OP.search(text)):
        return f"EigenMetaKernel<{_templated(operation[1], _type(operation[2]))}>"
    if last.arguments and (found := _algorithm(parts, text)):
        return found
    applied = next((_plain_function(_last(one[1:]).name) for one in arguments if one[:1] == "&"), "")
    kind = _first_type([one for one in arguments if one[:1] != "&"])
    name = _scoped([part for part in parts if part.name not in _NO_NAME] or parts)
    return _templated(name, applied if len(applied) <= SHORT // 4 else None, kind)


# ---- Mangled and plain names ---------------------------------------------------------------------------------------

#: Kernels of CUTLASS that are a frame for their template argument, which is what runs; cuBLAS names its kernels so too.
_MANGLED_FRAME = pattern(r"(?:cutlass\w*?|7ck_tile)(?:6Kernel|7Kernel2|13device_kernel|6kentry)I(?:Li\d+E)?")
_SKIPPED = pattern(r"St|L|S[0-9A-Z]*_")  # std, internal linkage, what stood before


def _of_mangled(name: str) -> str:
    found = _last_source_name(name)
    frame = _MANGLED_FRAME.search(name) if found in _FRAMED else None
    inside = _last_source_name("_Z" + name[frame.end() :]) if frame else ""
    return inside or found.partition("$")[0]


def _last_source_name(name: str) -> str:
    """The last source name before any template arguments: a kernel's own arguments come last in its encoding."""
    at, found = 2, ""
    if name.startswith("L", at):  # internal linkage
        at += 1
    nested = name.startswith("N", at)
    if nested:
        at += 1
        while at < len(name) and name[at] in "rVKRO":
            at += 1
    while at < len(name):
        if skipped := _SKIPPED.match(name, at):
            at = skipped.end()
        elif name[at] == "B" and found:  # an ABI tag, not a component
            at, _ = _source_name(name, at + 1)
        elif "0" <= name[at] <= "9" and (nested or not found):  # else the type of a parameter
            at, found = _source_name(name, at)
        else:
            break
    return found


def _source_name(name: str, at: int) -> tuple[int, str]:
    """(index after it, the identifier) of a length and as many characters."""
    digits = at
    while digits < len(name) and "0" <= name[digits] <= "9" and digits - at < 6:
        digits += 1
    end = digits + int(name[at:digits] or 0)
    return end, name[digits:end]


_LIBRARY = pattern(r"sm\d+_|nvjet_|cutlass|cudnn_|(?:Custom_)?Cijk_|igemm_|bmm_|fmha|(?:ampere|volta|turing|hopper)_")
#: Of what cuDNN, cuBLAS and Tensile write into names, what says how an algorithm is tuned and not what it computes.
_TUNING = pattern(
    r"_execute_.*|_(?:stage|warpsize|warpgroupsize|align[abc]?|split_k_|cga|kernel|g|tensor)\d[\dx_]*(?=_|\Z)"
    r"|_generated_fort_native|_implicit_gemm|_optimized|_t\dr\ds\d\Z|(?<=\d)_wt\d.*"
    r"|(?<=\d)_SN_.*|_Bias(?=_)|_UserArgs|_HAS?_S?(?:_?SAV)(?=_)"
)


def _shortened(name: str) -> str:
    """The name of a kernel of a library for matrices, which says everything, at a length people can read."""
    if len(name) <= SHORT or not _LIBRARY.match(name):
        return name
    return _cut(_TUNING.sub("", name), SHORT)


def _cut(text: str, most: int) -> str:
    """Without its middle where it is longer."""
    if len(text) <= most:
        return text
    tail = most * 2 // 5
    return text[: most - tail - 1] + _CUT + text[-tail:]


def label(full_name: "bytes | str") -> str:
    """What to call a kernel of this name, demangled or not: short, never empty and never longer than the name.

    ``void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, …`` →
    ``reduce<MeanOps<float>>``. The same name always gives the same label; two names may give one (:func:`distinct`).
    """
    name = decoded(full_name).strip()
    plain, told = _told(name)
    found = _shortened(told)
    found = _cut(found, LONG if plain else SHORT)
    return (found if len(found) <= len(name) else name) or UNNAMED


def said(full_name: "bytes | str") -> str:
    """All that a kernel's name says about what it does, for tables of such words: the label at full length, and the
    qualified name without arguments. What only says how it is called is left out."""
    name = decoded(full_name).strip()
    plain, told = _told(name)
    if plain or name.startswith("_Z"):
        return told
    return f"{told} {'::'.join(part.name for part in _path(name[:_READ]) if part.name not in _NO_NAME)}"


def _told(name: str) -> tuple[bool, str]:
    """Whether the name is one word without arguments, and the label at full length."""
    text = _LAUNCHER.sub("", name[:_READ])
    if text.startswith("_Z"):
        return False, _of_mangled(text).strip() or text
    if any(sign in text for sign in ("(", "<", "::", "{", "[")):
        return False, _of_demangled(text).strip() or text
    return True, text


# ---- Names of one session, apart -----------------------------------------------------------------------------------

_TOKEN = pattern(r"[A-Za-z0-9]+")
_TOKENS = 200


def distinct(full_names: Iterable[str]) -> dict[str, str]:
    """Labels of these names, no two alike: where two have the same, each says the least more that tells them apart.

    First the kernel's own name (for ``elementwise``, which stands for several), then template arguments that differ,
    then parts of the name that do, then the scope, then a number. The order of the names makes no difference.
    """
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    by_label: dict[str, list[str]] = {}
    for name in sorted(set(full_names)):
        by_label.setdefault(label(name), []).append(name)
    alone = {word for word, names in by_label.items() if len(names) == 1}
    for word, names in by_label.items():
        if len(names) == 1:
            chosen[names[0]] = word
    taken |= alone
    for word, names in by_label.items():
        if len(names) > 1:
            for name, told in _told_apart(word, names, _WAYS):
                chosen[name] = _numbered(told, taken)
                taken.add(chosen[name])
    return chosen


def _numbered(told: str, taken: set[str]) -> str:
    number, found = 1, told
    while found in taken:
        number += 1
        found = f"{told} #{number}"
    return found


def _told_apart(word: str, names: list[str], ways: "tuple[_Way, ...]") -> Iterator[tuple[str, str]]:
    """(name, what to call it), in order of the names within what still is alike."""
    if len(names) == 1 or not ways:
        yield from ((name, word) for name in names)
        return
    groups: dict[str, list[str]] = {}
    for name, told in zip(names, ways[0](word, names), strict=True):
        groups.setdefault(told, []).append(name)
    for told, alike in groups.items():
        yield from _told_apart(told, alike, ways[1:])


_Way = Callable[[str, list[str]], list[str]]


def _ends(name: str) -> _Part:
    return _Part("") if name.startswith("_Z") else _last(_LAUNCHER.sub("", name[:_READ]))


def _by_base(word: str, names: list[str]) -> list[str]:
    bases = [_ends(name).name for name in names]
    if len(set(bases)) == 1 or "<" not in word:
        return [word] * len(names)
    rest = word[word.index("<") :]
    return [(base.removesuffix("_kernel") or word[: word.index("<")]) + rest for base in bases]


def _by_argument(word: str, names: list[str]) -> list[str]:
    """With the template arguments that differ, as many as it takes."""
    rows = [_split(_ends(name).arguments) for name in names]
    told = [[_argument(one) for one in row] for row in rows]
    return _with_columns(word, told, ", ")


def _by_token(word: str, names: list[str]) -> list[str]:
    """With the words and numbers that differ, of the brackets or, where there are none, of the name."""
    texts = [_ends(name).arguments or (name if "(" not in name else "") for name in names]
    rows = [_TOKEN.findall(text)[:_TOKENS] for text in texts]
    return _with_columns(word, rows, " ")


def _by_scope(word: str, names: list[str]) -> list[str]:
    rows = []
    for name in names:
        parts = _path(_LAUNCHER.sub("", name[:_READ])) if not name.startswith("_Z") else []
        rows.append([part.name for part in parts[-2::-1]])
    told = _columns(rows)
    return [f"{'::'.join(reversed(one))}::{word}" if one else word for one in told]


_WAYS: "tuple[_Way, ...]" = (_by_base, _by_argument, _by_token, _by_scope)


def _argument(text: str) -> str:
    return _type(text) or _number(text) or _cut(_functor(text) or text, SHORT // 2)


def _columns(rows: list[list[str]]) -> list[list[str]]:
    """Of each row the fields that differ between rows, from the left, until all rows do or nothing more does."""
    width = max(map(len, rows), default=0)
    told: list[list[str]] = [[] for _ in rows]
    for at in range(width):
        column = [row[at] if at < len(row) else "" for row in rows]
        if len(set(column)) == 1:
            continue
        longer = [[*one, field] if field else one for one, field in zip(told, column, strict=True)]
        if len({tuple(one) for one in longer}) > len({tuple(one) for one in told}):
            told = longer
        if len({tuple(one) for one in told}) == len(rows):
            break
    return told


def _with_columns(word: str, rows: list[list[str]], between: str) -> list[str]:
    found = []
    for one in _columns(rows):
        more = _cut(between.join(one), SHORT)
        found.append((f"{word[:-1]}, {more}>" if word.endswith(">") else f"{word}<{more}>") if more else word)
    return found
