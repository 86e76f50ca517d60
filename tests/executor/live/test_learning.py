"""Beliefs that follow a repository, and fits that run in a process of their own."""

from __future__ import annotations

import itertools
import sys
from contextlib import ExitStack, closing

import numpy as np
import pytest

from dovetail.executor.jobs.journal import Journal
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.live import Live
from dovetail.executor.live.observation import fitting
from dovetail.executor.live.observation.learning import LEAST_PAIRS, Learner
from dovetail.instances.datasets import Measurement, Repository, SoloProfile
from dovetail.instances.instance import Cluster, Gpu, Node
from dovetail.instances.metrics import Metrics
from dovetail.predictors import save_model
from dovetail.predictors.fitted.training import fit
from tests.executor.live.offered import Offered
from tests.executor.waiting import LIMIT_S

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
def learner_of(tmp_path):
    """Return a maker of learners with what they share; their pending fits end with the test."""
    count = itertools.count()
    with ExitStack() as stack:

        def made(repository, sharing="mps", **options):
            journal = stack.enter_context(Journal(tmp_path / f"service-{next(count)}"))
            pool = Offered(cluster(sharing))
            live = Live.of(journal, pool, Devices(pool), lambda: 0.0)
            return live, stack.enter_context(closing(Learner(live, repository, **options)))

        yield made


def cluster(sharing):
    return Cluster(
        sharing=sharing, nodes=(Node(id="n", gpus=(Gpu(id="g", model=MODEL, memory_mib=1e5),)),)
    )


def take_fit(live, learner):
    """Wait until a fit that is under way wakes the service, and learn."""
    assert learner.fitting
    live.requests.wait(LIMIT_S)
    learner.learn()


def believed(live, own, other):
    table = live.beliefs.of_workloads.table((own, other), (MODEL,), (UNCAPPED,))
    return table.belief(MODEL, UNCAPPED, own, other)


@pytest.fixture
def usual_priority(monkeypatch):
    """Give fits their share of the machine; at low priority they would wait for other tests."""
    main = "import sys; from dovetail.executor.live.observation.fitting import main"
    program = f"{main}; sys.exit(main(sys.argv[1:]))"
    monkeypatch.setattr(fitting, "module_command", lambda _: (sys.executable, "-P", "-c", program))


def test_what_is_appended_becomes_news_once(tmp_path, learner_of):
    repository = Repository(tmp_path / "r.db")
    live, learner = learner_of(repository)
    assert live.beliefs.of_workloads.data.profiles == ()
    repository.append(profiles(2))
    learner.learn()
    assert len(live.beliefs.of_workloads.data.profiles) == 2
    repository.append(measurements=measurements(2))
    learner.learn()
    assert believed(live, "ann/w0", "ann/w1").source == "measured once"
    before = live.beliefs.of_workloads
    learner.learn()
    assert live.beliefs.of_workloads is before


def test_too_few_pairs_start_no_fit(tmp_path, learner_of):
    repository = Repository(tmp_path / "r.db")
    repository.append(profiles(9), itertools.islice(measurements(9), LEAST_PAIRS - 1))
    _, learner = learner_of(repository, into=tmp_path / "model")
    assert not learner.fitting


@pytest.mark.usefixtures("shadowed", "usual_priority")
def test_enough_pairs_are_fitted_meanwhile_and_the_model_outlives_the_service(tmp_path, learner_of):
    pytest.importorskip("sklearn")
    repository, into = Repository(tmp_path / "r.db"), tmp_path / "model"
    repository.append(profiles(10), itertools.islice(measurements(9), LEAST_PAIRS))
    live, learner = learner_of(repository, into=into, kind="constant")
    assert live.beliefs.of_workloads.model is None
    take_fit(live, learner)
    assert learner.trouble == ""
    found = believed(live, "ann/w0", "ann/w9")
    assert found.source == f"model fitted on {LEAST_PAIRS} measurements here"
    assert found.upper > found.slowdown
    live, learner = learner_of(repository, into=into)
    assert live.beliefs.of_workloads.model is not None
    assert not learner.fitting


@pytest.mark.usefixtures("shadowed", "usual_priority")
def test_a_model_is_fitted_on_the_mode_in_which_devices_are_shared(tmp_path, learner_of):
    pytest.importorskip("sklearn")
    repository, into = Repository(tmp_path / "r.db"), tmp_path / "model"
    repository.append(profiles(10), measurements(9))
    live, learner = learner_of(repository, "time_sliced", into=into, kind="constant")
    assert not learner.fitting
    turns = (m.replace(slowdown=(1.9, 1.9), mode="time_sliced") for m in measurements(9))
    repository.append(measurements=turns)
    learner.learn()
    take_fit(live, learner)
    model = live.beliefs.of_workloads.model
    assert model.mode == "time_sliced"
    assert model.fits[MODEL].limits == (1.9, 1.9)
    # The model says nothing once the devices are shared under MPS, and another one is fitted.
    assert not learner.fitting
    live.pool.offered = cluster("mps")
    live.devices.news(0.0)
    live.devices.take_up()
    learner.learn()
    assert "model fitted" not in believed(live, "ann/w0", "ann/w9").source
    assert learner.fitting


@pytest.mark.usefixtures("usual_priority")
def test_a_fit_that_fails_is_reported_and_does_not_begin_again_at_once(tmp_path, learner_of):
    repository = Repository(tmp_path / "r.db")
    # Speeds in place of slowdowns: no model can be fitted on these.
    wrong = [m.replace(slowdown=(0.5, 0.5)) for m in measurements(9)]
    repository.append(profiles(9), wrong)
    live, learner = learner_of(repository, into=tmp_path / "model", kind="constant")
    before = live.beliefs.of_workloads
    take_fit(live, learner)
    assert live.beliefs.of_workloads is before
    assert learner.trouble.startswith("no model was fitted: ")
    assert not learner.fitting


def test_a_fit_that_says_more_than_a_pipe_holds_ends(tmp_path, learner_of, monkeypatch):
    talks = "import sys; sys.stderr.write('too much\\n' * 50_000); sys.exit(1)"
    monkeypatch.setattr(fitting, "module_command", lambda _: (sys.executable, "-c", talks))
    repository = Repository(tmp_path / "r.db")
    repository.append(profiles(9), measurements(9))
    live, learner = learner_of(repository, into=tmp_path / "model")
    take_fit(live, learner)
    assert learner.trouble == "no model was fitted: too much"


def test_a_damaged_model_file_is_reported_and_beliefs_by_the_law_remain(tmp_path, learner_of):
    (tmp_path / "model").write_bytes(b"nonsense")
    repository = Repository(tmp_path / "r.db")
    repository.append(profiles(2))
    live, learner = learner_of(repository, into=tmp_path / "model")
    assert "model" in learner.trouble
    assert believed(live, "ann/w0", "ann/w1").source.startswith("law of MPS")


def test_a_repository_that_cannot_be_read_is_tried_again(tmp_path, learner_of):
    path = tmp_path / "r.db"
    path.write_bytes(b"nonsense" * 1000)
    live, learner = learner_of(Repository(path))
    assert "repository" in live.troubles
    path.unlink()
    Repository(path).append(profiles(2))
    learner.learn()
    assert "repository" not in live.troubles
    assert len(live.beliefs.of_workloads.data.profiles) == 2


def test_a_learner_that_is_closed_leaves_no_fit_behind(tmp_path, learner_of):
    repository = Repository(tmp_path / "r.db")
    repository.append(profiles(9), measurements(9))
    _, learner = learner_of(repository, into=tmp_path / "model")
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
    live, learner = learner_of(repository, into=tmp_path / "model")
    last = known[-1].workloads
    before = believed(live, *last)
    assert before.source == "model fitted on 34 measurements here"
    # The same workload with another co-runner is far slower than believed, again and again.
    for _ in range(3):
        slow = tuple(2 * value for value in known[-2].slowdown)
        repository.append(measurements=[known[-2].replace(slowdown=slow)])
        learner.learn()
    assert believed(live, *last).slowdown > before.slowdown
    assert believed(live, *last).source == "model fitted on 34 measurements here, 3 learnt since"
    assert "above what is believed" in learner.trouble
