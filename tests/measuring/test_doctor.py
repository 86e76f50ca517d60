"""``dovetail doctor --splits`` and ``--sms``: what is measured before the machine is checked."""

import json
import os
import shutil
from pathlib import Path

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.cli.main import main  # noqa: E402
from dovetail.executor.gpus.splits import read_splits  # noqa: E402
from tests.api.doctor.test_doctor import has_gpu  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.gpus.libcuda import standin_libcuda  # noqa: E402
from tests.executor.mps import standin  # noqa: E402

NEEDS_MPS = pytest.mark.skipif(
    shutil.which("nvidia-cuda-mps-control") is None, reason="needs nvidia-cuda-mps-control"
)


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_splits_cannot_be_measured_without_a_gpu(tmp_path, capsys):
    assert main(["doctor", "--splits", "--directory", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert read_splits(tmp_path).evidence == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shares", "50"], "--shares: needs --splits or --sms"),
        (["--sms", "--again"], "--again: needs --splits"),
    ],
)
def test_options_without_effect_are_refused(tmp_path, capsys, options, message):
    assert main(["doctor", "--directory", str(tmp_path), *options]) == 2
    assert capsys.readouterr().err == f"dovetail: {message}\n"


@NEEDS_MPS
def test_a_gpu_in_use_is_not_measured(tmp_path, capsys):
    with injected():
        assert main(["doctor", "--splits", "--directory", str(tmp_path)]) == 2
    assert "is in use (pid 100, 101, 102): drain it" in capsys.readouterr().err


@NEEDS_MPS
def test_what_was_measured_before_something_failed_is_kept(tmp_path, capsys, monkeypatch):
    answer = {
        "cublas": "130100",
        "sms": 66,
        "mps": True,
        "products": [["nn", "float16", 1, 2, 3, 0.25]],
    }
    python = tmp_path / "python"
    cap = "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE%%.*}"
    python.write_text(f"#!/bin/sh\n[ {cap} = 50 ] && echo '{json.dumps(answer)}'\n")
    python.chmod(0o755)
    with injected() as library:
        library.processes = {"compute": [], "mps": []}
        library.uuids = {k: f"GPU-0000000{k}-0000-4000-8000-00000000000{k}" for k in range(2)}
        arguments = ["--python", str(python), "--shares", "50,40", "--directory", str(tmp_path)]
        assert main(["doctor", "--splits", *arguments]) == 2
    assert "50 % is 66 SMs and computes right in all of 1 products" in capsys.readouterr().err
    (kept,) = read_splits(tmp_path).evidence
    assert (kept.gpu_model, kept.share) == ("Injected H200", 50)


def measured_shares(tmp_path, *options):
    """Measure 50 and 10 % with a program in place of the jobs' Python; return the kept shares."""
    product = ["nn", "float16", 1, 2, 3, 0.25]
    answer = {"cublas": "130100", "sms": 66, "mps": True, "products": [product]}
    libraries = {"python": "3", "torch": "2", "cuda": "13.0", "package": "13.1.0.3"}
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f"case $2 in *libraries.py) echo '{json.dumps({**libraries, 'cublas': '130100'})}';;\n"
        f"*) read line; echo '{json.dumps(answer)}';; esac\n"
    )
    python.chmod(0o755)
    with injected() as library:
        library.processes = {"compute": [], "mps": []}
        library.uuids = {k: f"GPU-0000000{k}-0000-4000-8000-00000000000{k}" for k in range(2)}
        asked = ["--shares", "50,10", "--python", str(python), "--directory", str(tmp_path)]
        assert main(["doctor", "--splits", *asked, *options]) == 0
    return [one.share for one in read_splits(tmp_path).evidence]


@NEEDS_MPS
def test_shares_that_were_measured_are_not_measured_again(tmp_path, capsys):
    assert measured_shares(tmp_path) == [50, 10]
    assert "(1 of 2, about" in capsys.readouterr().err
    assert measured_shares(tmp_path) == [50, 10]
    output = capsys.readouterr()
    assert "2 of 2 shares were measured before" in output.err
    assert measured_shares(tmp_path, "--again") == [50, 10, 50, 10]


@NEEDS_MPS
def test_the_table_of_shares_says_what_is_known(tmp_path, capsys):
    measured_shares(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("Shares of Injected H200"))
    rows = [line.split() for line in lines[at:] if "%" in line]
    # others' formula: max(8, 2 * (132 * 10 // 200)) = 12, and 66 for the half
    assert rows[0][:7] == ["10", "%", "66", "12", "1", "0", "0.25"]
    assert rows[1][:4] == ["50", "%", "66", "66"]
    assert rows[1][-1] == "allowed"
    assert max(map(len, lines)) <= 100


def test_counted_sms_are_shown_and_allow_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(standin_libcuda(tmp_path)))
    program = Path(standin.install(tmp_path, "580"))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with injected() as library:
        library.processes = {"compute": [], "mps": []}
        library.uuids = {k: f"GPU-0000000{k}-0000-4000-8000-00000000000{k}" for k in range(2)}
        asked = ["--sms", "--shares", "25,50", "--json", "--directory", str(tmp_path)]
        assert main(["doctor", *asked]) == 3
    (table,) = json.loads(capsys.readouterr().out)["shares"]
    assert table["gpu_model"] == "Injected H200"
    # made up as others have seen it: 2 * (132 * 25 // 200) = 32
    seen = [
        (row["share"], row["sms"], row["reported_sms"], row["allowed"]) for row in table["rows"]
    ]
    assert seen == [(25, 32, 32, False), (50, 66, 66, False)]


@pytest.mark.parametrize("shares", ["0", "101", "50,", "half"])
def test_shares_that_cannot_be(tmp_path, capsys, shares):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--splits", "--shares", shares])
    assert ended.value.code == 2
    assert "must be whole numbers from 1 to 100" in capsys.readouterr().err
