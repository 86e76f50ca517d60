"""Beliefs that follow a repository, and fits that run in a process of their own."""

from __future__ import annotations

import itertools
import sys
import threading
from contextlib import ExitStack, closing

import numpy as np
import pytest

from dovetail.executor.live.observation import fitting, learning
from dovetail.executor.live.observation.learning import LEAST_PAIRS, Learner
from dovetail.instances.datasets import Measurement, Repository, SoloProfile
from dovetail.instances.instance import Metrics
from dovetail.predictors import save_model
from dovetail.predictors.fitted.training import fit
from tests.executor.waiting import wait_until

MODEL = "A100"
UNCAPPED = (None, None)


def profiles(count):
    draw = np.random.default_rng(0)
    for k in range(count):
        sm, dram = draw.uniform(0.2, 0.9), draw.uniform(0.1, 0.5)
        metrics = Metrics(
            sm_active=sm, sm_occupancy=sm / 2, dram_active=dram, pcie_rx_bytes_s=1e8 * (1 + k)
        )
        yield SoloProfile(
            workload=f"ann/w{k}", gpu_model=MODEL, metrics=metrics, throughput=1.0, memory_mib=1e3
        )


def measurements(count):
    """Yield pairs that slow each other by the product of their SM activities."""
    known = list(profiles(count))
    for first, second in itertools.combinations(known, 2):
        busy = first.metrics.sm_active * second.metrics.sm_active
        yield Measurement(
            workloads=(first.workload, second.workload),
            gpu_model=MODEL,
            slowdown=(1 + 0.8 * busy, 1 + 1.1 * busy),
        )


@pytest.fixture
def learner_of():
    """Return a maker of learners; their pending fits end with the test."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(closing(Learner(*args, **options)))


@pytest.fixture
def usual_priority(monkeypatch):
    """Give fits their share of the machine; at low priority they would wait for other tests."""
    main = "import sys; from dovetail.executor.live.observation.fitting import main"
    program = f"{main}; sys.exit(main(sys.argv[1:]))"
    monkeypatch.setattr(learning, "module_command", lambda _: (sys.executable, "-P", "-c", program))


def test_what_is_appended_becomes_news_once(tmp_path, learner_of):
    repository = Repository(tmp_path / "r.db")
    learner = learner_of(repository, (MODEL,))
    assert learner.beliefs.data.profiles == ()
    assert learner.news() is None
    repository.append(profiles(2))
    assert len(learner.news().data.profiles) == 2
    repository.append(measurements=measurements(2))
    beliefs = learner.news()
    table = beliefs.table(("ann/w0", "ann/w1"), (MODEL,), (UNCAPPED,))
    assert table.belief(MODEL, UNCAPPED, "ann/w0", "ann/w1").source == "measured once"
    assert learner.news() is None


def test_too_few_pairs_start_no_fit(tmp_path, learner_of):
    repository = Repository(tmp_path / "r.db")
    repository.append(profiles(9), itertools.islice(measurements(9), LEAST_PAIRS - 1))
    learner = learner_of(repository, (MODEL,), into=tmp_path / "model")
    learner.news()
    assert not learner.fitting


@pytest.mark.usefixtures("shadowed", "usual_priority")
def test_enough_pairs_are_fitted_meanwhile_and_the_model_outlives_the_service(tmp_path, learner_of):
    pytest.importorskip("sklearn")
    repository, into, ended = Repository(tmp_path / "r.db"), tmp_path / "model", threading.Event()
    repository.append(profiles(10), itertools.islice(measurements(9), LEAST_PAIRS))
    learner = learner_of(repository, (MODEL,), into=into, wake=ended.set, kind="constant")
    assert learner.news().model is None
    assert learner.fitting
    wait_until(ended.is_set)
    beliefs = learner.news()
    assert learner.trouble == ""
    table = beliefs.table(("ann/w0", "ann/w9"), (MODEL,), (UNCAPPED,))
    found = table.belief(MODEL, UNCAPPED, "ann/w0", "ann/w9")
    assert found.source == f"model fitted on {LEAST_PAIRS} measurements here"
    assert found.upper > found.slowdown
    again = learner_of(repository, (MODEL,), into=into)
    assert again.beliefs.model is not None
    again.news()
    assert not again.fitting


@pytest.mark.usefixtures("shadowed", "usual_priority")
def test_a_model_is_fitted_on_the_mode_in_which_devices_are_shared(tmp_path, learner_of):
    pytest.importorskip("sklearn")
    repository, into = Repository(tmp_path / "r.db"), tmp_path / "model"
    repository.append(profiles(10), measurements(9))
    ended, now = threading.Event(), ["time_sliced"]
    options = {"into": into, "wake": ended.set, "kind": "constant", "sharing": lambda: now[0]}
    learner = learner_of(repository, (MODEL,), **options)
    learner.news()
    assert not learner.fitting
    turns = (m.replace(slowdown=(1.9, 1.9), mode="time_sliced") for m in measurements(9))
    repository.append(measurements=turns)
    learner.news()
    assert learner.fitting
    wait_until(ended.is_set)
    model = learner.news().model
    assert model.mode == "time_sliced"
    assert model.fits[MODEL].limits == (1.9, 1.9)
    # The model says nothing once the devices are shared under MPS, and another one is fitted.
    now[0] = "mps"
    assert not learner.fitting
    learner.news()
    table = learner.beliefs.table(("ann/w0", "ann/w9"), (MODEL,), (UNCAPPED,))
    found = table.belief(MODEL, UNCAPPED, "ann/w0", "ann/w9")
    assert "model fitted" not in found.source
    assert learner.fitting


@pytest.mark.usefixtures("usual_priority")
def test_a_fit_that_fails_is_reported_and_does_not_begin_again_at_once(tmp_path, learner_of):
    repository, ended = Repository(tmp_path / "r.db"), threading.Event()
    # Speeds in place of slowdowns: no model can be fitted on these.
    wrong = [m.replace(slowdown=(0.5, 0.5)) for m in measurements(9)]
    repository.append(profiles(9), wrong)
    learner = learner_of(
        repository, (MODEL,), into=tmp_path / "model", wake=ended.set, kind="constant"
    )
    learner.news()
    wait_until(ended.is_set)
    assert learner.news() is None
    assert learner.trouble.startswith("no model was fitted: ")
    assert not learner.fitting


def test_a_fit_that_says_more_than_a_pipe_holds_ends(tmp_path, learner_of, monkeypatch):
    talks = "import sys; sys.stderr.write('too much\\n' * 50_000); sys.exit(1)"
    monkeypatch.setattr(learning, "module_command", lambda _: (sys.executable, "-c", talks))
    repository, ended = Repository(tmp_path / "r.db"), threading.Event()
    repository.append(profiles(9), measurements(9))
    learner = learner_of(repository, (MODEL,), into=tmp_path / "model", wake=ended.set)
    learner.news()
    wait_until(ended.is_set)
    learner.news()
    assert learner.trouble == "no model was fitted: too much"


def test_a_damaged_model_file_is_reported_and_beliefs_by_the_law_remain(tmp_path, learner_of):
    (tmp_path / "model").write_bytes(b"nonsense")
    repository = Repository(tmp_path / "r.db")
    repository.append(profiles(2))
    learner = learner_of(repository, (MODEL,), into=tmp_path / "model")
    assert "model" in learner.trouble
    table = learner.news().table(("ann/w0", "ann/w1"), (MODEL,), (UNCAPPED,))
    assert table.belief(MODEL, UNCAPPED, "ann/w0", "ann/w1").source.startswith("law of MPS")


def test_a_learner_that_is_closed_leaves_no_fit_behind(tmp_path, learner_of):
    repository = Repository(tmp_path / "r.db")
    repository.append(profiles(9), measurements(9))
    learner = learner_of(repository, (MODEL,), into=tmp_path / "model")
    learner.news()
    assert learner.fitting
    learner.close()
    assert not learner.fitting


def test_the_program_that_fits_reports_faults_in_one_line(tmp_path, capsys):
    assert (
        fitting.main(["constant", str(tmp_path / "none.db"), str(tmp_path / "model"), MODEL]) == 2
    )
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "no such file" in output


def test_between_fits_each_measurement_teaches_of_other_pairs_and_drifts_are_reported(
    tmp_path, learner_of
):
    repository, known = Repository(tmp_path / "r.db"), list(measurements(9))
    repository.append(profiles(9), known[:-2])
    save_model(fit(repository.data_set(), confidence=0.5), tmp_path / "model")
    learner = learner_of(repository, (MODEL,), into=tmp_path / "model")
    last = known[-1].workloads

    def belief():
        table = learner.beliefs.table(last, (MODEL,), (UNCAPPED,))
        return table.belief(MODEL, UNCAPPED, *last)

    learner.news()
    before = belief()
    assert before.source == "model fitted on 34 measurements here"
    # The same workload with another co-runner is far slower than believed, again and again.
    for _ in range(3):
        slow = tuple(2 * value for value in known[-2].slowdown)
        repository.append(measurements=[known[-2].replace(slowdown=slow)])
        assert learner.news() is not None
    assert belief().slowdown > before.slowdown
    assert belief().source == "model fitted on 34 measurements here, 3 learnt since"
    assert any("above what is believed" in text for text in learner.drifts)
