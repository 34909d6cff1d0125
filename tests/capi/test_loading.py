"""Finding a vendor library: which copy wins, and a sentence for every step that fails."""

import ctypes
import os
import pathlib
import shutil
import sys

import pytest

from gpusense._capi import handles, libraries, loading
from gpusense._capi.libraries import CUDA, CUPTI, NVML, WGPU, Library
from gpusense._capi.loading import Loaded, Search, find, load, locate, locate_in
from gpusense._records.records import Unavailable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fakes are ELF or Mach-O files")
elf_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into ELF headers and /proc")


@pytest.fixture(scope="module")
def fake(build_library) -> pathlib.Path:
    return build_library("loadable.c", "libloadable.so")


@pytest.fixture
def place(fake, tmp_path):
    """Puts a loadable library at a path below the test's folder."""

    def put(relative: str) -> str:
        target = tmp_path / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fake, target)
        return str(target)

    return put


def search(row: Library, platform: str = "linux", sys_path=(), maps=(), environ=None, max_major=None) -> Search:
    row = row._replace(folder_globs=tuple(glob for glob in row.folder_globs if glob.startswith("{")))
    return Search(row, environ or {}, platform, [str(path) for path in sys_path], lambda: list(maps), [], max_major)


def without_loader(row: Library) -> Library:
    """Its bare names out of the machine's reach."""
    return row._replace(linux=("libgpusense-nowhere.so.1",))


# --- the environment variable -------------------------------------------------------------------------------------


def test_override_is_taken(place):
    path = place("anywhere/lib.so")
    found = find(search(CUDA, environ={"GPUSENSE_LIBCUDA": path}))
    assert found is not None
    assert (found.path, found.how) == (path, "env")
    assert found.library["fake_add"](2, 3) == 5


def test_bad_override_is_the_only_candidate(place, tmp_path):
    place("nvidia/cuda_cupti/lib/libcupti.so.12")
    look = search(CUPTI, sys_path=[tmp_path], environ={"GPUSENSE_LIBCUPTI": str(tmp_path / "gone.so")})
    assert find(look) is None
    assert look.notes == [f"GPUSENSE_LIBCUPTI={tmp_path}/gone.so: no such file"]


def test_bad_override_makes_the_reason_and_the_hint(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSENSE_LIBNVIDIA_ML", str(tmp_path))
    answer = load(NVML)
    assert isinstance(answer, Unavailable)
    assert not answer
    assert answer.reason == f"GPUSENSE_LIBNVIDIA_ML={tmp_path}: is a folder, not a library"
    assert answer.hint == "correct or unset GPUSENSE_LIBNVIDIA_ML"


def test_override_is_not_loaded_where_only_mapped_copies_count(run_python, place):
    path = place("lib.so")
    code = """if True:
        import ctypes
        from gpusense._capi import libraries, loading
        first = loading.load(libraries.CUDA, only_mapped=True)
        assert not first and "is not loaded in this process" in first.reason, first
        assert not any("lib.so" in path.split("/")[-1] and "tmp" in path for path in loading.handles.mapped_files())
        theirs = ctypes.CDLL(PATH)
        second = loading.load(libraries.CUDA, only_mapped=True)
        assert second.library._handle == theirs._handle, second
    """.replace("PATH", repr(path))
    done = run_python(code, GPUSENSE_LIBCUDA=path)
    assert done.returncode == 0, done.stderr


def test_a_second_variable_is_only_one_candidate(place, tmp_path):
    path = place("other/libwgpu_native.so")
    look = search(without_loader(WGPU), environ={"WGPU_LIB_PATH": path})
    assert find(look).path == path
    wheel = place("site/wgpu/resources/libwgpu_native-release.so")
    look = search(without_loader(WGPU), sys_path=[tmp_path / "site"], environ={"WGPU_LIB_PATH": "/gone.so"})
    assert find(look).path == wheel
    assert look.notes == ["/gone.so: no such file"]


# --- a copy already in the process --------------------------------------------------------------------------------


@elf_only
def test_mapped_copy_wins_over_wheel_and_version_limit(place, tmp_path):
    # A name of its own, because what is loaded here stays in the process of the other tests.
    row = without_loader(CUPTI)._replace(mapped="libtheirs.so")
    theirs = place("their/libtheirs.so.13")
    place("site/nvidia/cuda_cupti/lib/libcupti.so.12")
    held = ctypes.CDLL(theirs)
    found = find(search(row, sys_path=[tmp_path / "site"], maps=[theirs], max_major=12))
    assert (found.path, found.how) == (theirs, "mapped")
    assert found.library._handle == held._handle


@elf_only
def test_file_mapped_but_not_loaded_is_passed_over(place):
    data = place("libcuda.so.1")  # somebody mmapped it as data
    look = search(without_loader(CUDA), maps=[data])
    assert find(look, only_mapped=True) is None
    assert look.notes == ["libcuda is not loaded in this process"]


@elf_only
def test_only_mapped_never_takes_a_wheel(place, tmp_path):
    place("nvidia/cuda_cupti/lib/libcupti.so.12")
    assert find(search(without_loader(CUPTI), sys_path=[tmp_path]), only_mapped=True) is None


def test_libcudart_is_not_libcuda():
    names = ["/usr/lib/libcudart.so.12", "/usr/lib/libcuda.so.580.1", "/usr/lib/libcudadebugger.so.1"]
    assert list(loading._mapped_paths(search(CUDA, maps=names))) == ["/usr/lib/libcuda.so.580.1"]


@elf_only
def test_deleted_file_is_still_found(run_python, place):
    path = place("libcuda.so.1")
    code = """if True:
        import ctypes, os
        from gpusense._capi import libraries, loading
        theirs = ctypes.CDLL(PATH)
        os.remove(PATH)
        found = loading.load(libraries.CUDA, only_mapped=True)
        assert found.library._handle == theirs._handle, found
    """.replace("PATH", repr(path))
    done = run_python(code)
    assert done.returncode == 0, done.stderr


# --- wheels and toolkits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "relative"),
    [
        ("linux", "nvidia/cuda_cupti/lib/libcupti.so.11.7"),
        ("linux", "nvidia/cuda_cupti/lib/libcupti.so.11.8"),
        ("linux", "nvidia/cuda_cupti/lib/libcupti.so.12"),
        ("linux", "nvidia/cu13/lib/libcupti.so.13"),
        ("win32", "nvidia/cuda_cupti/bin/cupti64_2022.3.0.dll"),
        ("win32", "nvidia/cuda_cupti/bin/cupti64_2025.2.1.dll"),
        ("win32", "nvidia/cu13/bin/x86_64/cupti64_2025.3.1.dll"),
        ("win32", "nvidia/cu13/bin/x86_64/cupti64_13.dll"),
        ("win32", "torch/lib/cupti64_2025.1.1.dll"),
    ],
)
def test_cupti_in_a_wheel(place, tmp_path, platform, relative):
    path = place(relative)
    row = without_loader(CUPTI)
    found = find(search(row, platform, sys_path=["", "relative", "/not/there", tmp_path]))
    assert (found.path, found.how) == (path, "wheel")


@pytest.mark.parametrize(
    ("platform", "relative"),
    [
        ("linux", "wgpu/resources/libwgpu_native-release.so"),
        ("darwin", "wgpu/resources/libwgpu_native-release.dylib"),
        ("win32", "wgpu/resources/wgpu_native-release.dll"),
    ],
)
def test_wgpu_in_a_wheel(place, tmp_path, platform, relative):
    path = place(relative)
    assert find(search(without_loader(WGPU), platform, sys_path=[tmp_path])).path == path


def test_another_systems_file_is_left_alone(place, tmp_path):
    place("nvidia/cuda_cupti/bin/cupti64_2025.2.1.dll")
    place("wgpu/resources/libwgpu_native-release.dylib")
    assert find(search(without_loader(CUPTI), "linux", sys_path=[tmp_path])) is None
    assert find(search(without_loader(WGPU), "linux", sys_path=[tmp_path])) is None


def test_working_directory_is_no_place(place, tmp_path, monkeypatch):
    place("nvidia/cuda_cupti/lib/libcupti.so.12")
    monkeypatch.chdir(tmp_path)
    assert find(search(without_loader(CUPTI), sys_path=["", "."])) is None


def test_damaged_wheel_is_named_and_the_next_is_taken(place, tmp_path):
    good = place("b/nvidia/cuda_cupti/lib/libcupti.so.12")
    bad = pathlib.Path(place("a/nvidia/cuda_cupti/lib/libcupti.so.12"))
    bad.write_bytes(b"")
    look = search(without_loader(CUPTI), sys_path=[tmp_path / "a", tmp_path / "b"])
    assert find(look).path == good
    assert len(look.notes) == 1
    assert look.notes[0].startswith(f"{bad}: ")


CUPTI_EVERYWHERE = (
    "nvidia/cu13/lib/libcupti.so.13",
    "nvidia/cuda_cupti/lib/libcupti.so.12",
    "nvidia/cuda_cupti/lib/libcupti.so.11.8",
)


@pytest.mark.parametrize(
    ("maps", "max_major", "expected"),
    [
        ([], None, 13),  # nothing known: newest
        ([], 12, 12),  # never above the driver
        (["/x/libcudart.so.12"], None, 12),  # what the process uses
        (["/x/libcudart.so.11.0"], 12, 11),
        (["/x/libcudart-d0da41ae.so.11.0"], None, 11),  # as old torch wheels renamed it
        (["/x/libcudart.so.13"], 12, 12),  # forward-compatible runtime, old driver: the driver decides
    ],
)
def test_cupti_of_the_toolkit_in_use_and_never_above_the_driver(place, tmp_path, maps, max_major, expected):
    for relative in CUPTI_EVERYWHERE:
        place(relative)
    look = search(without_loader(CUPTI), sys_path=[tmp_path], maps=maps, max_major=max_major)
    found = find(look)
    assert found.how == "wheel"
    assert f"libcupti.so.{expected}" in found.path


def test_cupti_above_the_driver_is_refused_with_a_sentence(place, tmp_path):
    path = place("nvidia/cu13/lib/libcupti.so.13")
    look = search(without_loader(CUPTI), sys_path=[tmp_path], max_major=12)
    assert find(look) is None
    assert f"{path}: belongs to CUDA 13, the driver supports 12" in look.notes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n", 13),
        ("cuda = '11.8'\n", 11),
        ("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.2'\n", None),
    ],
)
def test_toolkit_in_use_from_an_installed_torch(tmp_path, text, expected):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(text)
    assert loading.toolkit_in_use(search(CUPTI, sys_path=["/not/there", tmp_path])) == expected


def test_toolkit_folder_comes_after_a_wheel_but_before_a_wheel_of_another_toolkit(place, tmp_path):
    wheel = place("site/nvidia/cu13/lib/libcupti.so.13")
    toolkit = place("toolkit/lib/libcupti.so.12")
    row = without_loader(CUPTI)
    environ = {"CONDA_PREFIX": str(tmp_path / "toolkit")}
    look = search(row, sys_path=[tmp_path / "site"], environ=environ)
    assert find(look).path == wheel
    look = search(row, sys_path=[tmp_path / "site"], environ=environ, maps=["/x/libcudart.so.12"])
    assert (found := find(look)).path == toolkit
    assert found.how == "folder"


# --- what must not be loaded --------------------------------------------------------------------------------------


def test_stub_is_rejected(place):
    path = place("cuda/lib64/stubs/libcuda.so.1")
    look = search(CUDA, environ={"GPUSENSE_LIBCUDA": path})
    assert find(look) is None
    assert look.notes == [f"GPUSENSE_LIBCUDA={path}: is a stub for linking, not a driver"]


@elf_only
def test_stub_found_by_the_loader_is_rejected(run_python, place):
    path = place("cuda/lib64/stubs/libgpusense-stub.so.1")
    code = """if True:
        from gpusense._capi import libraries, loading
        row = libraries.CUDA._replace(linux=("libgpusense-stub.so.1",), folder_globs=())
        found = loading.load(row)
        assert not found and "is a stub for linking" in found.reason, found
    """
    done = run_python(code, LD_LIBRARY_PATH=os.path.dirname(path))
    assert done.returncode == 0, done.stderr


def refusal(path: object) -> str:
    look = search(CUDA, environ={"GPUSENSE_LIBCUDA": str(path)})
    assert find(look) is None
    (note,) = look.notes
    return note.removeprefix(f"GPUSENSE_LIBCUDA={path}: ")


def test_folder(tmp_path):
    assert refusal(tmp_path) == "is a folder, not a library"


def test_nothing_there(tmp_path):
    assert refusal(tmp_path / "libcuda.so.1") == "no such file"


@elf_only
@pytest.mark.parametrize("content", [b"", b"/* GNU ld script */ INPUT(libcuda.so.1)", b"MZ\x90" + bytes(100)])
def test_not_a_library(tmp_path, content):
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(content)
    assert refusal(path) == "is not a shared library"


@elf_only
def test_header_without_a_body(tmp_path, fake):
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(fake.read_bytes()[:64])
    assert refusal(path)  # the loader's own words


@elf_only
@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (18, b"\x28\x00", "is built for arm (64 bit), this process is "),
        (18, b"\xb7\x00", "is built for aarch64 (64 bit), this process is "),
        (18, b"\xff\x7f", "is built for machine 32767 (64 bit), this process is "),
        (4, b"\x01", " (32 bit), this process is "),
    ],
)
def test_wrong_architecture(tmp_path, fake, offset, value, words):
    data = bytearray(fake.read_bytes())
    if bytes(data[offset : offset + len(value)]) == value:
        pytest.skip("this machine's own architecture")
    data[offset : offset + len(value)] = value
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(data)
    assert words in refusal(path)


def test_unreadable(run_python, place):
    path = place("libcuda.so.1")
    os.chmod(path, 0)
    code = """if True:
        import os
        from gpusense._capi import libraries, loading
        if os.geteuid() == 0:  # root reads everything
            os.seteuid(65534)
        answer = loading.load(libraries.CUDA)
        assert not answer and answer.reason.endswith(": Permission denied"), answer
    """
    done = run_python(code, GPUSENSE_LIBCUDA=path)
    assert done.returncode == 0, done.stderr


def test_nul_in_a_path():
    look = search(CUDA, environ={"GPUSENSE_LIBCUDA": "/tmp/lib\0cuda.so"})
    assert find(look) is None
    assert look.notes == ["GPUSENSE_LIBCUDA=/tmp/lib\\0cuda.so: has a NUL character in its path"]


def test_nul_in_sys_path_does_not_raise():
    assert find(search(without_loader(CUPTI), sys_path=["/tmp/a\0b"])) is None


# --- rows and systems ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", libraries.LIBRARIES, ids=lambda row: row.name)
@pytest.mark.parametrize("platform", ["linux", "win32", "darwin", "freebsd14"])
def test_every_row_on_every_system_answers_or_gives_a_reason(row, platform):
    dead = row._replace(
        linux=tuple(f"x-{name}" for name in row.linux),
        win32=tuple(name if name.startswith("{") else f"x-{name}" for name in row.win32),
        darwin=tuple(f"x-{os.path.basename(name)}" for name in row.darwin),
        mapped="",
    )
    look = search(dead, platform)
    assert find(look) is None
    assert look.notes
    assert all(": " in note or "does not exist on" in note for note in look.notes)


def test_absent_system_is_named():
    look = search(CUDA, "darwin")
    assert find(look) is None
    assert look.notes == ["libcuda does not exist on macOS"]


def test_environment_parts_of_a_row_are_filled_or_dropped():
    row = NVML._replace(win32=("{SystemRoot}/System32/nvml.dll", "{ProgramW6432}/NVSMI/nvml.dll"))
    look = search(row, "win32", environ={"SystemRoot": "/windows"})
    assert list(loading._sonames(look)) == ["/windows/System32/nvml.dll"]


def test_windows_system_folder(place, tmp_path):
    path = place("windows/System32/nvml.dll")
    row = NVML._replace(win32=("{SystemRoot}/System32/nvml.dll",))
    assert find(search(row, "win32", environ={"SystemRoot": str(tmp_path / "windows")})).path == path


@elf_only
def test_path_behind_a_bare_name_is_told():
    found = find(search(libraries.CPP_RUNTIME._replace(linux=("libc.so.6",), mapped="")))
    assert os.path.isabs(found.path)
    assert os.path.basename(found.path) == "libc.so.6"


# --- without loading ----------------------------------------------------------------------------------------------


def test_locate_says_what_load_would_take(place, tmp_path):
    path = place("nvidia/cuda_cupti/lib/libcupti.so.12")
    assert locate_in(search(without_loader(CUPTI), sys_path=[tmp_path])) == path
    assert path not in handles.mapped_files()


def test_locate_names_what_it_did_not_find(tmp_path):
    answer = locate_in(search(without_loader(CUDA)))
    assert isinstance(answer, Unavailable)
    assert answer.reason == "libgpusense-nowhere.so.1: not found in any folder that the system's loader searches"


def test_locate_follows_the_loaders_folders(place):
    path = place("lib/libgpusense-somewhere.so.1")
    row = CUDA._replace(linux=("libgpusense-somewhere.so.1",), mapped="")
    assert locate_in(search(row, environ={"LD_LIBRARY_PATH": f":{os.path.dirname(path)}:relative"})) == path


def test_locate_respects_the_override(monkeypatch, place):
    path = place("lib.so")
    monkeypatch.setenv("GPUSENSE_LIBCUDA", path)
    assert locate(CUDA) == path
    monkeypatch.setenv("GPUSENSE_LIBCUDA", path + ".gone")
    assert locate(CUDA).reason == f"GPUSENSE_LIBCUDA={path}.gone: no such file"


def test_paths_in_the_loaders_cache(tmp_path):
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(
        b"glibc-ld.so.cache1.1\0\1libx.so.1\0/a/libx.so.1\0/b/liblibx.so.1\0/c/libx.so.1\0/c/libx.so.12\0"
    )
    assert handles.cached_path("libx.so.1", str(cache)) == ["/a/libx.so.1", "/c/libx.so.1"]
    assert handles.cached_path("libx.so.1", str(tmp_path / "none")) == []


# --- the process --------------------------------------------------------------------------------------------------


def test_answer_is_kept_and_failure_is_not(monkeypatch, place, tmp_path):
    monkeypatch.setattr(loading, "_handles", {})
    target = tmp_path / "late.so"
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(target))
    assert not load(CUDA)
    place("late.so")
    first = load(CUDA)
    assert isinstance(first, Loaded)
    assert load(CUDA) is first


def test_importing_loads_nothing(run_python):
    code = """if True:
        import ctypes  # what it loads itself is its own affair
        from gpusense._capi import handles
        before = set(handles.mapped_files())
        from gpusense._capi import libraries, loading, binding
        after = {path for path in handles.mapped_files() if not path.endswith(".pyc")}
        assert not [path for path in after - before if ".so" in path and "python" not in path], after - before
        assert "ctypes.util" not in __import__("sys").modules
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_search_starts_no_process(run_python):
    code = """if True:
        import sys
        banned = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn")
        def hook(event, arguments):
            assert event not in banned, event
        sys.addaudithook(hook)
        from gpusense._capi import libraries, loading
        for row in libraries.LIBRARIES:
            for platform in ("linux", "win32", "darwin"):
                look = loading.Search(row, {}, platform, sys.path, loading.handles.mapped_files, [], 1)
                loading.locate_in(look)
            loading.load(row._replace(linux=("libnone.so.1",), folder_globs=(), wheel_globs=()))
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr
