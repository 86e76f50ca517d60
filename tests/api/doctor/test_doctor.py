"""``dovetail doctor`` on this machine, and with made-up GPUs through the real ``pynvml``."""

import json
import subprocess

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.cli.main import main  # noqa: E402
from dovetail.executor.gpus.nvml import Nvml, NvmlError  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402


def has_gpu():
    try:
        with Nvml() as session:
            return bool(session.gpus())
    except NvmlError:
        return False


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_every_line_fits_and_the_status_says_so(tmp_path, capsys):
    assert main(["doctor", "--directory", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[-1].startswith("not usable")
    assert any("dovetail serve --pool cpu" in line for line in lines)


def test_the_machines_form(tmp_path, capsys):
    with injected():
        assert main(["doctor", "--json", "--directory", str(tmp_path)]) == 3
    output = json.loads(capsys.readouterr().out)
    assert output["usable"] == "unpartitioned"
    assert {"id", "text", "level", "remedy", "gpu", "fix"} == set(output["findings"][0])


def test_the_commands_that_fix_a_gpu_are_printed_and_bash_reads_them(tmp_path, capsys):
    with injected() as library:
        library.compute_modes[1] = pynvml.NVML_COMPUTEMODE_PROHIBITED
        state = tmp_path / "it's\nhere"
        (state / "api.sock").mkdir(parents=True)
        main(["doctor", "--fix", "--directory", str(state)])
        printed = capsys.readouterr().out
        main(["doctor", "--fix", "--json", "--directory", str(state)])
    found = json.loads(capsys.readouterr().out)["findings"]
    lines = printed.splitlines()
    mode = next(one for one in found if one["id"] == "gpu.compute-mode" and one["fix"])
    assert mode["fix"][0].endswith("-c DEFAULT")
    # Other tests start and end daemons of MPS meanwhile.
    steady = [one for one in found if not one["id"].startswith("mps.")]
    assert all(command in lines for one in steady for command in one["fix"])
    assert any(line.startswith("mv -n -- $'") for line in lines)
    subprocess.run(["bash", "-n"], input=printed, text=True, check=True)
