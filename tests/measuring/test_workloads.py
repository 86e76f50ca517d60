"""The built-in workloads compute on a CPU core and match their descriptions."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.measuring.workloads import BUILT_IN, LAUNCHES, MODULES, WORKER
from dovetail.measuring.workloads.loading import WorkloadError, load
from tests.executor.waiting import LIMIT_S
from tests.pytorch import TORCH_PYTHON, needs_torch

PROGRAM = Path(__file__).with_name("built_in.py")
COUNT = Path(__file__).parents[2] / "benchmarks" / "measuring" / "count_launches.py"
FILES = sorted(WORKER.parent.glob("*.py"))

TRAINED = ("convnet", "transformer", "gpt", "lstm", "recommender", "graph")


@pytest.fixture(scope="module")
def computed():
    """Results of all workloads, computed by one process."""
    command = [TORCH_PYTHON, "-W", "error", PROGRAM, WORKER.parent, *TRAINED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_torch
@pytest.mark.parametrize("name", BUILT_IN)
def test_it_computes_the_same_from_the_same_seed_and_finite_numbers(computed, name):
    found = computed["facts"][name]
    assert found["finite"]
    assert found["first"] == found["again"]
    assert found["first"] != found["other"]


@needs_torch
@pytest.mark.parametrize("name", BUILT_IN)
def test_its_tiny_form_takes_milliseconds(computed, name):
    # 3 to 20 ms of the processor's time
    assert 0.0005 < computed["facts"][name]["seconds"] < 0.5


@needs_torch
@pytest.mark.parametrize("name", TRAINED)
def test_its_loss_falls_when_it_learns(computed, name):
    before, after = computed["learnt"][name]
    assert after < before


@needs_torch
def test_its_launches_are_those_that_are_counted():
    done = subprocess.run(
        [TORCH_PYTHON, COUNT], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    assert set(counted) == set(LAUNCHES) == set(BUILT_IN) - {"lstm"}
    # versions of PyTorch differ in a few operators
    assert counted == pytest.approx(dict(LAUNCHES), rel=0.05)


@needs_torch
def test_one_answers_requests_of_its_own_and_two_infer(computed):
    assert [name for name in BUILT_IN if computed["facts"][name]["open_loop"]] == ["burst"]
    kinds = {name: found["kind"] for name, found in computed["facts"].items()}
    assert [name for name in BUILT_IN if kinds[name] == "inference"] == ["burst", "encoder"]


@needs_torch
def test_what_live_mode_asks_of_cuda_is_found(computed):
    assert computed["cublas"] is None  # the module is there; a build for the CPU has no cuBLAS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_runs_with_python_310_and_needs_pytorch_alone(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and node.level == 0
            else []
        )
    }
    ours = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert ours <= {"torch"}


def test_every_function_that_is_marked_has_a_name_and_a_module():
    marked = {
        node.name: path.stem
        for path in FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and any(getattr(getattr(m, "func", m), "id", "") == "built_in" for m in node.decorator_list)
    }
    assert marked == MODULES
    assert list(BUILT_IN) == sorted(BUILT_IN)


OWN = """
KIND = "training"
FAMILY = "own"
BATCH = {"full": 8, "tiny": 2}
def prepare(device, size, seed):
    return lambda: None
"""


@pytest.fixture(autouse=True)
def paths_are_kept(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])


def own(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return str(path)


def test_an_own_workload_is_loaded(tmp_path):
    found = load(own(tmp_path, OWN), "tiny")
    assert (found.kind, found.family, found.gaps) == ("training", "own", None)
    assert found.batch["tiny"] == 2


def test_it_may_import_modules_of_its_folder(tmp_path):
    (tmp_path / "neighbour.py").write_text("NAME = 'from neighbour'")
    text = OWN.replace('"own"', "NAME")
    assert load(own(tmp_path, f"from neighbour import NAME\n{text}"), "full").family == (
        "from neighbour"
    )


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('KIND = "training"', "", "must have KIND, got None"),
        ('"training"', '"both"', "KIND must be one of training, inference, got 'both'"),
        ('FAMILY = "own"', "FAMILY = 3", "must have FAMILY, got 3"),
        ('"tiny": 2', '"tiny": 0', "BATCH['tiny'] must be an integer >= 1, got 0"),
        (', "tiny": 2', "", "BATCH['tiny'] must be an integer >= 1, got None"),
        ("def prepare", "def prepared", "must have prepare, got None"),
        ("def prepare", "gaps = print\ndef prepare", "gaps is for inference only"),
    ],
)
def test_missing_parts_of_an_own_workload_are_reported(tmp_path, before, after, message):
    path = own(tmp_path, OWN.replace(before, after))
    with pytest.raises(WorkloadError) as raised:
        load(path, "tiny")
    assert str(raised.value) == f"{path}: {message}"


@pytest.mark.parametrize("name", ["nothing", "mine.txt", "worker", ""])
def test_a_name_that_is_neither_built_in_nor_a_file_is_reported(name):
    with pytest.raises(WorkloadError, match=r"no built-in workload \(bulk, .*\), nor a file"):
        load(name, "tiny")
