"""What the split gate runs: its arithmetic on the CPU, and how its answers are read."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dovetail.executor.live import products, split_measuring
from dovetail.executor.live.split_measuring import GateError, Measuring, measure_shares

HALF_UNIT = np.finfo(np.float16).eps / 2


def test_rounding_alone_is_no_fault():
    reference = np.linspace(500.0, 2000.0, 999, dtype=np.float32)
    assert products.worst(reference.astype(np.float16), reference, HALF_UNIT) <= 0.25


@pytest.mark.parametrize("wrong", [0.0, 0.97])
def test_an_element_that_was_not_summed_to_the_end_is_a_fault(wrong):
    reference = np.full(1000, 2048.0)
    result = reference.copy()
    result[17] *= wrong
    # 3 % off is 0.03 / (4 * 2**-11) = 15 times what rounding may do
    assert products.worst(result, reference, HALF_UNIT) > 15


def test_an_element_that_was_not_written_is_a_fault():
    result = np.full(10, 2048.0)
    result[3] = np.nan
    assert products.worst(result, np.full(10, 2048.0), HALF_UNIT) is None


def test_the_program_on_the_cpu():
    python = os.environ.get("DOVETAIL_TORCH_PYTHON")
    if python is None:
        pytest.importorskip("torch", reason="needs PyTorch (a CPU build is enough)")
        python = sys.executable
    command = [python, "-I", str(split_measuring.PROGRAM), "cpu", "small", "wait"]
    done = subprocess.run(command, input=b"go\n", capture_output=True, check=True)
    told = json.loads(done.stdout)
    assert len(told["products"]) == 2 * len(products.SMALL) * len(products.KINDS)
    assert all(error <= 1 for *_, error in told["products"])
    given_up = subprocess.run(command, input=b"", capture_output=True, check=False)
    assert given_up.returncode == 1
    assert given_up.stderr.strip() == b"nobody waits for this"


def answering(tmp_path, text, status=0):
    """A program in place of Python that prints a given answer."""
    path = tmp_path / "python"
    lines = [
        f"#!{sys.executable}",
        "import os, sys",
        f"print({text!r}.replace('SHARE', os.environ.get('SHARE', '')))",
        "print('first', 'last line', sep='\\n', file=sys.stderr)",
        f"sys.exit({status})",
    ]
    path.write_text("\n".join(lines))
    path.chmod(0o755)
    return Measuring("Made-up GPU", "580.1", 132, str(path), lambda share: {"SHARE": str(share)})


def test_evidence_is_read_share_by_share(tmp_path):
    product = ["nn", "float16", 1, 2, 3, 0.25]
    answer = {"cublas": "130100", "sms": 66, "mps": True, "products": [product]}
    measuring = answering(tmp_path, json.dumps(answer).replace("66", "SHARE"))
    first, second = measure_shares(measuring, [50, 10])
    assert (first.share, first.sms, second.sms) == (50, 50, 10)
    assert first.key == ("Made-up GPU", "580.1", "130100")
    assert first.passed
    assert first.products[0].error == 0.25


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("", 1, "could not compute: last line"),
        ("hello", 0, "printed what is no JSON: 'hello"),
        ("[]", 0, "printed no mapping"),
        ('{"cublas": null, "sms": 3}', 0, "saw no GPU"),
        ('{"cublas": "1", "sms": 66, "mps": false}', 0, "did not reach MPS"),
        ('{"cublas": "1", "sms": 132, "mps": true}', 0, "saw all 132 SMs"),
    ],
)
def test_what_cannot_be_measured_is_told(tmp_path, text, status, told):
    with pytest.raises(GateError, match=told):
        list(measure_shares(answering(tmp_path, text, status), [50]))


def test_no_such_python():
    measuring = Measuring("g", "d", None, "/no/such/python", lambda share: {})
    with pytest.raises(GateError, match="cannot be run: No such file"):
        list(measure_shares(measuring, [50]))


def test_the_next_share_gets_ready_while_one_is_computed(tmp_path):
    product = ["nn", "float16", 1, 2, 3, 0.2]
    answer = json.dumps({"cublas": "1", "sms": 9, "mps": True, "products": [product]})
    path = tmp_path / "python"
    path.write_text(
        "#!/bin/sh\n"
        f"cd {tmp_path}; touch ready-$SHARE; read line; echo $SHARE >> order\n"
        "while [ $SHARE = 50 ] && [ ! -e ready-10 ]; do sleep 0.01; done\n"
        f"echo '{answer}'\n"
    )
    path.chmod(0o755)
    measuring = Measuring("g", "d", 132, str(path), lambda share: {"SHARE": str(share)})
    # the first answers only when the second is ready
    assert [one.share for one in measure_shares(measuring, [50, 10, 90])] == [50, 10, 90]
    assert (tmp_path / "order").read_text().split() == ["50", "10", "90"]
    assert list(measure_shares(measuring, [])) == []


def test_nobody_is_left_when_it_is_given_up(tmp_path):
    product = ["nn", "float16", 1, 2, 3, 0.2]
    answer = json.dumps({"cublas": "1", "sms": 9, "mps": True, "products": [product]})
    path, ended = tmp_path / "python", []
    path.write_text(f"#!/bin/sh\nread line\necho '{answer}'\n")
    path.chmod(0o755)
    measuring = Measuring("g", "d", 132, str(path), lambda share: {}, ended.append)
    found = measure_shares(measuring, [50, 10])
    next(found)
    found.close()
    (pid,) = ended
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_every_fifth_share_is_tried_once_and_the_likely_ones_first():
    assert split_measuring.CANDIDATES[:3] == (50, 10, 90)
    assert sorted(split_measuring.CANDIDATES) == list(range(5, 101, 5))
