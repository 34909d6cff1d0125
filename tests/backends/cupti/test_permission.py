"""Who may read hardware counters: told from files, with the words of where the process runs."""

import pytest

from gpusense.backends.cupti.counters import permission

ROOT, USER = "Name:\tpython\nCapEff:\t000001ffffffffff\n", "Name:\tpython\nCapEff:\t00000000a80425fb\n"
ADMIN_ONLY = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n"
EVERYONE = ADMIN_ONLY.replace("Only: 1", "Only: 0")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A root folder with the files given, and a process that is in no container by its variables."""
    for name in ("KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "CUDA_MPS_PIPE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)

    def made(**files):
        paths = {"parameters": "proc/driver/nvidia/params", "status": "proc/self/status", "docker": ".dockerenv"}
        for name, text in files.items():
            path = tmp_path / paths[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path)

    return made


def test_an_administrator_may_and_so_may_everyone_where_the_driver_was_told(machine):
    assert permission.refusal(machine(parameters=ADMIN_ONLY, status=ROOT)) is None
    assert permission.refusal(machine(parameters=EVERYONE, status=USER)) is None


def test_a_user_is_refused_and_told_what_to_do(machine):
    refused = permission.refusal(machine(parameters=ADMIN_ONLY, status=USER))
    assert refused.reason == "the driver keeps hardware counters for administrators"
    assert refused.hint.startswith("run as root (`sudo -E`); or on the host: put `options nvidia NVreg_Restrict")


def test_a_container_has_words_of_its_own(machine, monkeypatch):
    root = machine(parameters=ADMIN_ONLY, status=USER, docker="")
    assert permission.refusal(root).hint.startswith("start the container with `--cap-add=SYS_ADMIN`; or on the host")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert permission.refusal(root).hint.startswith("add SYS_ADMIN to securityContext.capabilities")


@pytest.mark.parametrize(
    ("pid", "alive", "inside", "runs"),
    [("77", True, False, True), ("77", False, False, False), ("77", False, True, True), ("", False, False, True)],
    ids=["a server", "one that was killed", "one of the host", "one whose number is not told"],
)
def test_under_a_server_of_mps_counters_are_refused(machine, monkeypatch, tmp_path, pid, alive, inside, runs):
    root = machine(parameters=EVERYONE, status=ROOT, **({"docker": ""} if inside else {}))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    assert permission.refusal(root) is None
    folder = tmp_path / "run" / "mps"
    folder.mkdir(parents=True)
    assert permission.refusal(root) is None, "the folder alone is no server"
    (folder / "control").touch()
    (folder / "nvidia-cuda-mps-control.pid").write_text(f"{pid}\n")
    if alive:
        (tmp_path / "proc" / pid).mkdir()
    refused = permission.refusal(root)
    assert (refused is not None) == runs
    if runs:
        assert refused.reason.startswith("this program runs under CUDA MPS (/run/mps)")
        assert "CUDA_MPS_PIPE_DIRECTORY" in refused.hint
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/another")
        assert permission.refusal(root) is None


def test_where_the_files_say_nothing_nothing_is_refused_beforehand(machine):
    assert permission.refusal(machine()) is None
