"""Shares of a made-up GPU measured as ``dovetail doctor --splits`` and ``--sms`` do it."""

import sys
from argparse import Namespace

import pytest

pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.gpus.splits import SplitKey, read_splits
from dovetail.executor.mps.manager import MpsManager
from dovetail.measuring.gate import measure
from tests.executor.gpus.gpu_machine import HASTY, gpu_machine
from tests.executor.gpus.injected_nvml import injected
from tests.executor.gpus.libcuda import standin_libcuda

ANSWER = '{"cublas": "130100", "sms": 66, "mps": true, "products": [["nn", "float16", 1, 2, 3, 0]]}'


def test_what_is_measured_is_kept_and_not_measured_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(standin_libcuda(tmp_path)))
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport sys\nif sys.argv[-1] == \"wait\": print('{ANSWER}')\n"
        'else: print(\'{"python": "3", "torch": "2", "cuda": "13", "cublas": "130100", \'\n'
        '\'"package": "13"}\')\n'
    )
    python.chmod(0o755)
    with injected() as library, gpu_machine(library) as machine:
        mps = MpsManager(machine.place / "m", program=machine.program, patience=HASTY)
        asked = {"splits": True, "sms": True, "shares": [50, 10], "again": False}
        measure(machine.state, mps, str(python), Namespace(**asked))
        output = capsys.readouterr().err
        assert "the SMs of 2 shares counted" in output
        assert "50 % is 66 SMs and computes right in all of 1 products (1 of 2, about" in output
        splits = read_splits(machine.state)
        assert splits.allowed(SplitKey("Injected H200", "580.0 (injected)", "130100")) == (10, 50)
        assert {one.share: one.sms for one in splits.sms} == {50: 66, 10: 12}
        measure(machine.state, mps, str(python), Namespace(**asked))
        assert "2 of 2 shares were measured before" in capsys.readouterr().err
        assert machine.daemons() == []
