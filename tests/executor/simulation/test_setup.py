import pickle

import numpy as np
import pytest

from benchmarks.conservation import violations
from dovetail.executor.simulation.beliefs import (
    Exact,
    HeldOutBeliefs,
    LogNormalNoise,
    Model,
    beliefs_named,
)
from dovetail.executor.simulation.options import Options
from dovetail.executor.simulation.setup import Setup
from dovetail.executor.simulation.worlds import read_source, synthetic_world, world_of
from dovetail.formulations.rules import largest_gang, modes
from dovetail.instances.datasets import DataSet, Measurement, SoloProfile, write_dataset
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.files import write_instance
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.predictors import save_model
from dovetail.predictors.fitted.training import fit
from dovetail.solver.policies.exclusive import Fifo
from tests.executor.simulation.worlds import trace, world


def data(*models):
    """Return a and b, measured together and with themselves; b with b failed."""
    rates = {"v100": (10.0, 4.0), "p100": (5.0, 3.0), "k80": (1.0, None)}
    profiles = [
        SoloProfile(workload=name, gpu_model=model, throughput=rate)
        for model in models
        for name, rate in zip("ab", rates[model], strict=True)
    ]
    measured = [
        Measurement(workloads=pair, gpu_model=model, slowdown=slowdown)
        for model in models
        for pair, slowdown in (
            (("a", "b"), (1.25, 1.5)),
            (("a", "a"), (2.0, 2.0)),
            (("b", "b"), None),
        )
    ]
    return DataSet(name="tiny", profiles=tuple(profiles), measurements=tuple(measured))


def test_a_world_of_a_data_set_takes_speeds_from_throughputs_and_models_in_turn():
    made = world_of(data("v100", "p100"), 3, 2, ["v100", "p100"])
    assert [node.gpu.model for node in made.cluster.nodes] == ["v100", "p100", "v100"]
    assert len(made.places) == 6
    # Solo 10 and 5 iterations/s of a, 4 and 3 of b.
    assert made.workloads["a"].speed == {"v100": 1.0, "p100": 0.5}
    assert made.workloads["b"].speed == {"v100": 1.0, "p100": 0.75}
    table = SlowdownTable.of(made)
    assert table.slowdown[1, 0].tolist()[0] == [2.0, 1.25]
    assert np.isnan(table.slowdown[:, 0, 1, 1]).all()
    assert made.jobs == ()


def test_a_workload_that_did_not_run_on_every_model_is_left_out():
    made = world_of(data("v100", "k80"), gpu_models=["v100", "k80"])
    assert list(made.workloads) == ["a"]
    assert {entry.pair for entry in made.slowdowns} == {("a", "a")}
    assert [len(node.devices) for node in made.cluster.nodes] == [8, 8]


def test_a_world_of_an_instance_keeps_its_rules_and_its_cluster_by_default():
    given = world(nodes=2, gpus=3, slowdowns=[("a", "b", 1.5, 1.2)], shares=[40, 60])
    assert world_of(given) == given
    larger = world_of(given, 4, 5, workloads=["b"])
    assert len(larger.places) == 20
    assert larger.cluster.shares == (40, 60)
    assert list(larger.workloads) == ["b"]
    assert larger.slowdowns == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu_models": ["H100"]}, "gpu_models: must be one of V100, got 'H100'"),
        ({"nodes": 0}, "nodes: must be >= 1, got 0"),
        ({"nodes": 1, "gpus_per_node": 0}, "gpus_per_node: must be >= 1, got 0"),
        ({"workloads": ["z"]}, "workloads[0]: must be one of a, b, got 'z'"),
    ],
)
def test_an_impossible_world_is_reported_in_one_line(arguments, message):
    with pytest.raises(InputError) as caught:
        world_of(world(), **arguments)
    assert str(caught.value) == message


def test_a_synthetic_world_has_every_pair_with_and_without_splits():
    made = synthetic_world(5, 3, 4, ["V100", "K80"], splits=True, seed=2)
    assert [node.gpu.model for node in made.cluster.nodes] == ["V100", "K80", "V100"]
    assert len(made.places) == 12
    table = SlowdownTable.of(made)
    assert table.caps[0] == (None, None)
    assert len(table.caps) == 10
    assert not np.isnan(table.slowdown).any()
    assert synthetic_world(5, 3, 4, ["V100", "K80"], splits=True, seed=2) == made
    assert SlowdownTable.of(synthetic_world(5, 1)).caps == ((None, None),)


def test_a_source_is_a_folder_of_tables_or_an_instance(tmp_path):
    write_dataset(data("v100"), tmp_path / "tiny")
    write_instance(world(), tmp_path / "world.json")
    assert read_source(tmp_path / "tiny") == data("v100")
    assert read_source(tmp_path / "world.json") == world()


def test_beliefs_by_name():
    assert beliefs_named("exact") == Exact()
    assert beliefs_named("noise:0.1") == LogNormalNoise(0.1)
    assert beliefs_named("held-out:analytic:0.5") == HeldOutBeliefs("analytic", 0.5)
    assert beliefs_named("held-out:auto:0.5:families") == HeldOutBeliefs("auto", 0.5, True)
    assert beliefs_named("model:a:b.model") == Model("a:b.model")


@pytest.mark.parametrize(
    "text", ["", "exact:1", "noise", "noise:x", "held-out:auto", "held-out:auto:0.5:all", "model:"]
)
def test_beliefs_without_a_meaning_are_refused(text):
    with pytest.raises(UnsupportedError, match="beliefs must be one of exact, noise:SIGMA"):
        beliefs_named(text)


@pytest.mark.parametrize(
    ("text", "path"), [("noise:-1", "sigma"), ("noise:nan", "sigma"), ("held-out:auto:1", "part")]
)
def test_numbers_of_beliefs_must_be_in_range(text, path):
    with pytest.raises(InputError, match=f"^{path}: must be"):
        beliefs_named(text)


def test_beliefs_of_an_unknown_model_are_refused_before_anything_runs():
    with pytest.raises(UnsupportedError, match="one of constant"):
        beliefs_named("held-out:magic:0.5")


def test_exact_beliefs_are_the_truth():
    made = synthetic_world(4, 1, splits=True)
    truth = SlowdownTable.of(made)
    believed = Exact().of(made, 1)
    assert np.array_equal(believed.slowdown, truth.slowdown)
    assert np.array_equal(believed.upper, truth.upper)


def test_noise_is_log_normal_the_same_at_all_caps_and_bounded_at_nine_in_ten():
    few = synthetic_world(6, 1, gpu_models=["V100", "K80"], splits=True)
    error = np.log(LogNormalNoise(0.2).of(few, 5).slowdown / SlowdownTable.of(few).slowdown)
    assert np.allclose(error, error[0, 0])
    made = synthetic_world(60, 1)
    truth = SlowdownTable.of(made)
    believed = LogNormalNoise(0.2).of(made, 5)
    error = np.log(believed.slowdown / truth.slowdown)
    # 3,600 draws: the standard error of the deviation is 0.2 / sqrt(7200) = 0.0024.
    assert error[0, 0].std() == pytest.approx(0.2, abs=0.01)
    assert error[0, 0].mean() == pytest.approx(0.0, abs=0.014)
    assert (truth.slowdown <= believed.upper)[0, 0].mean() == pytest.approx(0.9, abs=0.02)
    assert np.array_equal(LogNormalNoise(0.2).of(made, 5).slowdown, believed.slowdown)
    assert not np.array_equal(LogNormalNoise(0.2).of(made, 6).slowdown, believed.slowdown)


def test_held_out_knows_the_measured_part_and_predicts_the_rest():
    pytest.importorskip("sklearn", reason="the extra train is not installed")
    made = synthetic_world(5, 1, splits=True)
    truth = SlowdownTable.of(made)
    believed = HeldOutBeliefs("constant", 0.6).of(made, 3)
    known = (believed.slowdown == truth.slowdown)[0].all(axis=0)
    # 15 unordered pairs, self-pairs among them: 9 are measured, at every caps.
    assert np.triu(known).sum() == 9
    assert np.array_equal(known, known.T)
    assert not np.isnan(believed.slowdown[:, 1:]).any()
    rest = believed.slowdown[0][:, ~known]
    # A constant for each cap of the job's own.
    assert len(np.unique(rest)) < 60


def test_pairs_that_were_not_measured_share_without_caps_only_if_their_bounds_say_so():
    pytest.importorskip("sklearn", reason="the extra train is not installed")
    made = synthetic_world(5, 1, splits=True)
    truth = SlowdownTable.of(made)
    freely = made.replace(cluster=made.cluster.replace(uncapped=True))
    beliefs = HeldOutBeliefs("constant", 0.6)
    believed, all_of_them = beliefs.of(made, 3), beliefs.of(freely, 3)
    assert not np.isnan(all_of_them.slowdown).any()
    upper = all_of_them.upper[0, 0]
    known = (all_of_them.slowdown == truth.slowdown)[0].all(axis=0)
    worth = np.maximum(upper, upper.T) <= 2.0
    assert (~known & ~worth).any()
    assert np.array_equal(~np.isnan(believed.slowdown[0, 0]), known | worth)
    # Where no cap is known, nothing is held back.
    bare = synthetic_world(5, 1)
    assert not np.isnan(beliefs.of(bare, 3).slowdown).any()


def test_held_out_families_are_never_seen():
    pytest.importorskip("sklearn", reason="the extra train is not installed")
    made = synthetic_world(8, 1)
    believed = HeldOutBeliefs("analytic", 0.5, families=True).of(made, 3)
    truth = SlowdownTable.of(made)
    known = (believed.slowdown == truth.slowdown)[0, 0]
    seen = known.any(axis=1)
    # Each workload is a family of its own here: 4 of 8, measured among themselves only.
    assert seen.sum() == 4
    assert np.array_equal(known, seen & seen[:, np.newaxis])


def test_held_out_does_not_know_which_pairs_fail_and_never_predicts_unmeasured_ones():
    pytest.importorskip("sklearn", reason="the extra train is not installed")
    given = synthetic_world(6, 1)
    failed, absent = given.slowdowns[1], given.slowdowns[2]
    entries = tuple(
        entry.replace(slowdown=None, power_w=None) if k == 1 else entry
        for k, entry in enumerate(given.slowdowns)
        if k != 2
    )
    made = given.replace(slowdowns=entries)
    truth = SlowdownTable.of(made)
    a, b = (truth.place[name] for name in failed.pair)
    c, d = (truth.place[name] for name in absent.pair)
    believed = [HeldOutBeliefs("constant", 0.5).of(made, seed).slowdown[0, 0] for seed in range(2)]
    assert {bool(np.isnan(table[a, b])) for table in believed} == {True, False}
    assert all(np.isnan(table[c, d]) and np.isnan(table[d, c]) for table in believed)


def test_beliefs_of_a_saved_model(tmp_path):
    pytest.importorskip("sklearn", reason="the extra train is not installed")
    made = world_of(data("v100"), 1)
    predictor = fit(data("v100"), "constant", confidence=0.8)
    save_model(predictor, tmp_path / "tiny.model")
    believed = Model(str(tmp_path / "tiny.model")).of(made, 0)
    expected = predictor.predict_table(made.workloads, [(0, 0)]).slowdown[:, :, 0]
    # A pair that failed is unknown in both.
    assert np.array_equal(believed.slowdown[0, 0], expected.astype(float), equal_nan=True)


def test_a_scenario_follows_from_its_seed_alone():
    jobs = trace(*((k, 1, 100, None) for k in range(40)))
    made = synthetic_world(6, 1, 2)
    setup = Setup(jobs, made, "uniform:1:2", (), 30, LogNormalNoise(0.1), Options(restart_s=5.0))
    one, again, other = setup.scenario(1), setup.scenario(1), setup.scenario(2)
    assert one.trace == again.trace != other.trace
    assert one.options == again.options != other.options
    assert one.options.restart_s == 5.0
    assert np.array_equal(one.predicted.slowdown, again.predicted.slowdown)
    assert not np.array_equal(one.predicted.slowdown, other.predicted.slowdown)
    assert len(one.trace.jobs) == 30
    assert all(1 <= job.gsla <= 2 for job in one.trace.jobs)
    assert {job.workload for job in one.trace.jobs} <= set(made.workloads)


def test_workloads_are_drawn_that_the_cluster_can_hold():
    # One V100 of 16,000 MiB and two of 4,000 MiB: b, of 8,000, fits with one worker only, c never.
    gpus = [
        {"id": f"g{k}", "model": "V100", "memory_mib": m} for k, m in enumerate((16e3, 4e3, 4e3))
    ]
    made = world(workloads=("a", "b", "c"))
    sizes = {"a": 1e3, "b": 8e3, "c": 17e3}
    data = made.to_data()
    data["workloads"] = {name: {"memory_mib": size} for name, size in sizes.items()}
    data["cluster"]["nodes"] = [{"id": "n0", "gpus": gpus}]
    made = Instance.from_data(data)
    ways = [modes(workload, 0.0)[0] for workload in made.workloads.values()]
    assert [largest_gang(made.cluster, way) for way in ways] == [3, 1, 0]
    jobs = trace(*((k, 1 + k % 2, 100, None) for k in range(200)))
    drawn = Setup(jobs, made).scenario(0)
    drawn.require_possible()
    workloads = [{job.workload for job in drawn.trace.jobs[k::2]} for k in (0, 1)]
    assert workloads == [{"a", "b"}, {"a"}]


def test_reserves_count_for_what_a_cluster_can_hold():
    made = world(memory_mib=1500.0, reserve_mib=300.0, per_process_mib=200.0)
    way = modes(made.workloads["a"], made.cluster.per_process_mib)[0]
    assert largest_gang(made.cluster, way) == 2
    made = world(memory_mib=1499.0, reserve_mib=300.0, per_process_mib=200.0)
    assert largest_gang(made.cluster, way) == 0


def test_a_job_that_fits_with_no_workload_is_refused_by_its_name():
    with pytest.raises(InputError, match=r"jobs\[0\].workers: must be <= 2"):
        Setup(trace((0, 3, 100, None)), world()).scenario(0).require_possible()


def test_streams_do_not_touch_each_other():
    jobs = trace(*((k, 1, 100, None) for k in range(40)))
    made = synthetic_world(6, 1, 2)
    plain = Setup(jobs, made).scenario(4)
    with_gslas = Setup(jobs, made, "uniform:1:2", beliefs=LogNormalNoise(0.3)).scenario(4)
    workloads = [job.workload for job in plain.trace.jobs]
    assert [job.workload for job in with_gslas.trace.jobs] == workloads
    assert with_gslas.options == plain.options
    assert len(set(workloads)) == 6


def test_workloads_are_drawn_from_those_given_and_known_ones_are_kept():
    jobs = trace((0, 1, 10, "b"), (1, 1, 10, "unheard-of"), (2, 1, 10, None))
    made = world(slowdowns=[])
    drawn = Setup(jobs, made, workloads=("a",)).scenario(0).trace
    assert [job.workload for job in drawn.jobs] == ["b", "a", "a"]


def test_a_scenario_travels_between_processes_and_runs():
    jobs = trace(*((k, 1, 100, None) for k in range(20)))
    scenario = Setup(
        jobs, synthetic_world(6, 1, 2), "uniform:1:2", beliefs=LogNormalNoise(0.1)
    ).scenario(1)
    moved = pickle.loads(pickle.dumps(scenario))
    history = moved.simulate(Fifo())
    assert violations(history, moved.trace, moved.world, moved.options) == []
    assert [o.finish_s for o in history.outcomes] == [
        o.finish_s for o in scenario.simulate(Fifo()).outcomes
    ]
