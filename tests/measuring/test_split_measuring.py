"""The program of the split gate: its arithmetic on the CPU, and the parsing of its answers."""

import json
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from dovetail.executor.gpus.splits import Product
from dovetail.executor.pools.runs.processes import tokens
from dovetail.measuring import split_measuring
from dovetail.measuring.split_measuring import GateError, measure_shares
from dovetail.measuring.workloads import products
from tests.executor.waiting import LIMIT_S
from tests.pytorch import TORCH_PYTHON, needs_torch

from .probes import probed

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


@pytest.mark.parametrize("garbage", [3e38, np.inf, -np.inf])
def test_garbage_is_a_fault_that_a_record_can_hold(garbage):
    result = np.full(10, 2048.0, dtype=np.float32)
    result[3] = garbage
    error = products.worst(result, np.full(10, 2048.0, dtype=np.float32), HALF_UNIT)
    product = Product(dtype="float32", m=1, n=1, k=1, error=json.loads(json.dumps(error)))
    assert not product.right


def test_an_element_that_was_not_written_is_a_fault():
    result = np.full(10, 2048.0)
    result[3] = np.nan
    assert products.worst(result, np.full(10, 2048.0), HALF_UNIT) is None


@needs_torch
def test_the_program_on_the_cpu():
    command = [TORCH_PYTHON, "-I", str(split_measuring.PROGRAM), "cpu", "small", "wait"]
    done = subprocess.run(command, capture_output=True, check=True)
    report = json.loads(done.stdout)
    assert len(report["products"]) == 2 * len(products.SMALL) * len(products.KINDS)
    assert all(error <= 1 for *_, error in report["products"])


@pytest.fixture
def answering(tmp_path):
    """Probe with a program in place of Python; ``$SHARE`` is its cap."""
    with ExitStack() as leaving:

        def written(*lines):
            path = tmp_path / "python"
            path.write_text("\n".join(["#!/bin/sh", "SHARE=${DOVETAIL_SHARE:-100}", *lines]))
            path.chmod(0o755)
            return leaving.enter_context(probed(str(path)))

        yield written


def answer(**more):
    product = ["nn", "float16", 1, 2, 3, 0.25]
    report = {"cublas": "130100", "sms": "SHARE", "mps": True, "products": [product], **more}
    return "echo '" + json.dumps(report).replace('"SHARE"', "'$SHARE'") + "'"


def test_evidence_is_read_share_by_share(answering):
    first, second = measure_shares(answering("echo a warning >&2", answer()), [50, 10])
    assert (first.share, first.sms, second.sms) == (50, 50, 10)
    assert first.key == ("Made-up GPU", "580.1", "130100")
    assert first.passed
    assert first.products[0].error == 0.25


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["echo first >&2; echo last line >&2; exit 1"], "could not compute: last line"),
        (["kill -9 $$"], "could not compute: ended by SIGKILL"),
        (["echo hello"], r"printed something other than JSON: \['hello"),
        (["echo '[]'"], "printed no mapping"),
        ([answer(cublas=None)], "saw no GPU"),
        ([answer(mps=False)], "did not reach MPS"),
        ([answer(sms=132)], "saw all 132 SMs"),
    ],
)
def test_a_failed_measurement_is_reported(answering, lines, message):
    with pytest.raises(GateError, match=message):
        list(measure_shares(answering(*lines), [50]))


def test_no_such_python():
    with (
        probed("/no/such/python") as probe,
        pytest.raises(GateError, match="the program is not found: /no/such/python"),
    ):
        list(measure_shares(probe, [50]))


def test_the_next_share_gets_ready_while_one_is_computed(answering, tmp_path):
    probe = answering(
        f"cd {tmp_path}; touch ready-$SHARE",
        "while [ $SHARE = 50 ] && [ ! -e ready-10 ]; do sleep 0.01; done",
        answer(),
    )
    # The first answers only when the second is ready.
    assert [one.share for one in measure_shares(probe, [50, 10, 90])] == [50, 10, 90]
    assert list(measure_shares(probe, [])) == []


def test_one_at_a_time_goes_on(tmp_path):
    order = tmp_path / "order"
    program = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(split_measuring.PROGRAM.parent)!r})\n"
        "import products\n"
        "products.alone()\n"
        f"with open({str(order)!r}, 'a', 1) as log:\n"
        "    log.write('begin\\n'); time.sleep(0.2); log.write('end\\n')\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [one.wait(LIMIT_S) for one in running] == [0] * 3
    assert order.read_text().split() == ["begin", "end"] * 3


def test_no_process_is_left_when_it_is_given_up(answering, tmp_path):
    probe = answering("[ $SHARE = 50 ] || exec sleep 600", answer())
    found = measure_shares(probe, [50, 10])
    next(found)
    found.close()
    assert not any(token for _, token in tokens() if "probe-" in token)


def test_every_fifth_share_is_tried_once_and_the_likely_ones_first():
    assert split_measuring.CANDIDATES[:3] == (50, 10, 90)
    assert sorted(split_measuring.CANDIDATES) == list(range(5, 101, 5))
