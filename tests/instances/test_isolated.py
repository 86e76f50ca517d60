"""Pairs of which one job runs in the idle time of the other: format, estimate, plan, check."""

import numpy as np
import pytest

from dovetail import solve
from dovetail.instances._record import IDLE
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan
from dovetail.instances.slowdowns.isolated import isolated_entries, isolated_entry
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.predictors import predict
from dovetail.solver.explaining.explanations import explain


def serving(metrics=None, entries=(), shares=("idle",), isolation="blocks", **cluster):
    gpu = {"model": "A100", "memory_mib": 40960}
    training = {"memory_mib": 20000} | ({"isolation": isolation} if isolation else {})
    unpartitioned = {"pair": ["chat", "training"], "slowdown": [1.9, 1.3], "p99": [4.5, 1.3]}
    return Instance.from_data(
        {
            "name": "serving",
            "cluster": {
                "shares": list(shares),
                "nodes": [{"id": "n0", "gpu_count": 1, "gpu": gpu}],
                **cluster,
            },
            "workloads": {
                "chat": {"memory_mib": 12000, "metrics": metrics or {"gpu_util": 0.5}},
                "training": training,
            },
            "jobs": [
                {"id": "c", "workload": "chat", "priority": "latency", "gsla": 1.1},
                {"id": "t", "workload": "training"},
            ],
            "slowdowns": [unpartitioned, *entries],
        }
    )


MEASURED = {
    "pair": ["training", "chat"],
    "share": ["idle", None],
    "slowdown": [2.0, 1.01],
    "p99": [2.0, 1.05],
}


class TestFormat:
    def test_survives_a_file(self):
        instance = serving(entries=[MEASURED])
        data = instance.to_data()
        assert data["cluster"]["shares"] == ["idle"]
        assert data["slowdowns"][1]["share"] == ["idle", None]
        assert Instance.from_data(data) == instance

    @pytest.mark.parametrize(
        ("changed", "path", "rule"),
        [
            (
                {"isolation": None},
                "slowdowns[1].share[0]",
                "idle needs isolation: blocks of workload 'training'",
            ),
            (
                {"entries": [{**MEASURED, "share": ["idle", "idle"]}]},
                "slowdowns[1].share",
                "at least one must not be idle",
            ),
            ({"shares": (101,)}, "cluster.shares[0]", "must be <= 100, got 101"),
            (
                {"shares": ("busy",)},
                "cluster.shares[0]",
                "must be a whole number or idle, got 'busy'",
            ),
        ],
    )
    def test_refusals(self, changed, path, rule):
        with pytest.raises(InputError) as caught:
            serving(**{"entries": [MEASURED], **changed})
        assert (caught.value.path, caught.value.rule) == (path, rule)


class TestPlan:
    @pytest.mark.parametrize("solver", ["matching", "milp", "cpsat", "greedy"])
    def test_every_solver_isolates(self, solver):
        instance = serving(entries=[MEASURED])
        result = solve(instance, solver=solver)
        assert {row.job: row.shares for row in result.plan.assignments} == {
            "c": (None,),
            "t": (IDLE,),
        }
        assert result.objective == pytest.approx(1 / 1.01 + 1 / 2)
        assert check(instance, result.plan).valid

    def test_the_p99_is_kept(self):
        tail = {**MEASURED, "p99": [2.0, 1.2]}
        plan = solve(serving(entries=[tail])).plan
        assert len(plan.waiting) == 1

    def test_nothing_starts_alone_at_idle(self):
        instance = serving(entries=[MEASURED])
        plan = solve(instance).plan
        alone = [row for row in plan.assignments if row.job == "t"]
        found = check(instance, plan.replace(assignments=alone, objective=None))
        assert "starts alone on n0-0 at share idle, not null" in str(found.violations[0])

    def test_idle_is_for_isolated_workloads_only(self):
        """A plan of another's says so of a job that was not made ready for it."""
        instance = serving(isolation=None, start_capped=True)
        seat = {"job": "t", "gpus": ["n0-0"], "share": ["idle"]}
        found = check(
            instance, Plan.from_data({"format": "dovetail-plan/1", "assignments": [seat]})
        )
        assert "share idle on n0-0 needs isolation: blocks of workload training" in str(
            found.violations[0]
        )
        assert solve(instance).plan.assignments[0].shares == (None,)

    def test_it_does_not_count_as_a_cap(self):
        capped = {**MEASURED, "share": ["idle", 100]}
        instance = serving(entries=[capped], shares=("idle", 100), start_capped=True)
        plan = solve(instance).plan
        assert {row.shares for row in plan.assignments} == {(IDLE,), (100,)}
        assert check(instance, plan).valid


class TestEstimate:
    def test_of_published_means(self):
        entry = isolated_entry(serving(), "chat", "training")
        assert entry.slowdown == entry.p99 == (1.072, 2.5)
        assert entry.shares == (None, IDLE)

    def test_a_measured_one_stays(self):
        assert list(isolated_entries(serving(entries=[MEASURED]))) == []

    @pytest.mark.parametrize("metrics", [{"sm_active": 0.3}, {"gpu_util": 1.0}])
    def test_none_without_idle_time(self, metrics):
        assert isolated_entry(serving(metrics=metrics), "chat", "training") is None

    def test_predict_adds_it(self):
        profile = {"sm_active": 0.3, "dram_active": 0.2, "pcie_rx_bytes_s": 0.0}
        filled = predict(serving(metrics={"graphics_active": 0.2, **profile}))
        assert filled.slowdowns[-1].shares == (None, IDLE)
        assert filled.slowdowns[-1].slowdown == (1.072, 1.5625)


def test_explain_names_it_as_a_remedy():
    instance = serving(shares=(), isolation=None)
    chat = instance.jobs[0].replace(weight=2.0)
    instance = instance.with_jobs([chat, instance.jobs[1]])
    remedies = explain(instance, solve(instance).plan, "t").remedies
    (remedy,) = (remedy for remedy in remedies if remedy.change.isolated is not None)
    assert remedy.assignments[0].shares == (IDLE,)
    assert "if training were isolated" in remedy.text
    assert len(solve(remedy.change.applied(instance, "t")).plan.assignments) == 2


class TestInterceptedFromTheStart:
    ENTRIES = (
        MEASURED,
        {"pair": ["chat", "training"], "share": [50, None], "slowdown": [1.2, 1.8]},
        {"pair": ["chat", "training"], "share": [50, 50], "slowdown": [1.5, 1.5]},
    )

    def table(self, *entries):
        table = SlowdownTable.of(serving(entries=entries))
        pairs = np.zeros((2, 2), dtype=bool)
        pairs[table.place["chat"], table.place["training"]] = True
        return table, table.isolated(pairs)

    def cell(self, table, caps, names):
        k, (a, b) = table.caps_place[caps], (table.place[name] for name in names)
        return table.slowdown[0, k, a, b].item(), table.p99[0, k, a, b].item()

    def test_a_pair_without_caps_is_isolated(self):
        _, found = self.table(*self.ENTRIES)
        assert self.cell(found, (None, None), ("chat", "training")) == (1.01, 1.05)
        assert self.cell(found, (None, None), ("training", "chat")) == (2.0, 2.0)

    def test_only_the_best_effort_job_may_not_be_without_a_cap(self):
        before, found = self.table(*self.ENTRIES)
        assert np.isnan(self.cell(found, (50, None), ("chat", "training"))).all()
        assert np.isnan(self.cell(found, (None, 50), ("training", "chat"))).all()
        for caps, names in (((50, 50), ("chat", "training")), ((None, IDLE), ("chat", "training"))):
            assert self.cell(found, caps, names)[0] == self.cell(before, caps, names)[0]

    def test_where_the_isolated_pair_is_unknown_nothing_changes(self):
        before, found = self.table()
        np.testing.assert_array_equal(before.slowdown, found.slowdown)
