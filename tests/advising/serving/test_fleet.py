"""The fewest GPUs for servers, against enumerations that share no code with the planner."""

from __future__ import annotations

import copy
import json
import math
import random
from functools import cache
from itertools import combinations, pairwise, product
from statistics import NormalDist

import networkx as nx
import pytest

from dovetail.advising.serving.fleet import plans_for
from dovetail.advising.serving.scenario import Serving
from dovetail.cli.main import main
from dovetail.formulations.budget import Budget
from dovetail.instances.checking.checker import check
from dovetail.instances.plan import Assignment, Plan

CARD, RESERVE = 81_920, 1_024
SPLITS = [(50, 50), (60, 40), (40, 60), (70, 30), (30, 70)]


@pytest.fixture
def plan(tmp_path, capsys):
    """Return the plan for a file as data."""

    def run(data, *options):
        path = tmp_path / "serving.json"
        path.write_text(json.dumps({"format": "dovetail-serving/1", "name": "made up", **data}))
        assert main(["advise", str(path), "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def made_up(seed):
    """Models with tight promises, and measurements of some pairs at some loads.

    No estimate can keep such a promise: only measured pairs share.
    """
    draw = random.Random(seed)
    models, runs_of = {}, {}
    for m in range(draw.randint(2, 3)):
        top = draw.uniform(2, 10)
        points = sorted(draw.uniform(0.2, top) for _ in range(3))
        latency = sorted(draw.uniform(10, 60) for _ in points)
        runs_of[f"m{m}"] = list(zip(points, latency, strict=True))
        models[f"m{m}"] = {
            "requests_per_s": draw.uniform(0.3, 1.6) * top,
            "p99_ms": {"e2el": latency[-1] * draw.uniform(1.0, 1.2)},
            "memory_mib": draw.choice([20_000.0, 30_000.0, 45_000.0]),
            "runs": [{"requests_per_s": p, "p99_ms": {"e2el": x}} for p, x in runs_of[f"m{m}"]],
        }
    together = []
    for a, b in product(models, repeat=2):
        for _ in range(draw.randint(0, 2)):
            loads = [draw.uniform(0.2, 1.2) * models[x]["requests_per_s"] for x in (a, b)]
            tails = [draw.uniform(0.6, 1.3) * models[x]["p99_ms"]["e2el"] for x in (a, b)]
            together.append(
                {
                    "models": [a, b],
                    "share": [50, 50],
                    "loads": loads,
                    "p99_ms": [{"e2el": x} for x in tails],
                }
            )
    return {
        "gpus": [{"model": "A100-80GB"}],
        "models": models,
        "together": together,
    }


def highest_load(model):
    """The highest load alone at which the promise is kept, by scanning the segments."""
    most, best = model["p99_ms"]["e2el"], 0.0
    points = [(run["requests_per_s"], run["p99_ms"]["e2el"]) for run in model["runs"]]
    for (a, low), (b, high) in pairwise(points):
        if low <= most:
            reach = b if high <= most else a + (b - a) * (most - low) / (high - low)
            best = max(best, reach)
    return best


def fewest(data, most_extra):
    """The fewest GPUs in pairs: all numbers of servers, and a largest matching of each."""
    models = data["models"]
    least = {
        name: max(1, math.ceil(m["requests_per_s"] / highest_load(m) - 1e-9))
        for name, m in models.items()
    }

    def may(a, x, b, y):
        if models[a]["memory_mib"] + models[b]["memory_mib"] > CARD - RESERVE:
            return False
        seen = False
        for run in data["together"]:
            for i, j in ((0, 1), (1, 0)):
                if [run["models"][i], run["models"][j]] != [a, b]:
                    continue
                kept = all(
                    run["p99_ms"][k]["e2el"] <= models[name]["p99_ms"]["e2el"]
                    for k, name in ((i, a), (j, b))
                )
                if not kept and run["loads"][i] <= x and run["loads"][j] <= y:
                    return False
                seen |= kept and run["loads"][i] >= x and run["loads"][j] >= y
        return seen

    best = math.inf
    for more in product(range(most_extra + 1), repeat=len(models)):
        count = {name: least[name] + extra for name, extra in zip(models, more, strict=True)}
        servers = [
            (name, models[name]["requests_per_s"] / k)
            for name, k in count.items()
            for _ in range(k)
        ]
        graph = nx.Graph()
        graph.add_nodes_from(range(len(servers)))
        for p, q in combinations(range(len(servers)), 2):
            if may(*servers[p], *servers[q]):
                graph.add_edge(p, q)
        best = min(best, len(servers) - len(nx.max_weight_matching(graph, maxcardinality=True)))
    return best, sum(least.values())


@cache
def planned(seed):
    """Return the GPUs that are needed alone, and the plan in the case low."""
    serving = Serving.from_data({"name": "made up", **made_up(seed)})
    (found,), _ = plans_for(serving, Budget.of(None))
    return found.alone, found.fleets["low"]


@pytest.mark.parametrize("seed", range(60))
def test_no_fewer_gpus_would_do_with_any_numbers_of_servers(seed):
    alone, low = planned(seed)
    assert (len(low.gpus), alone) == fewest(made_up(seed), 4)
    assert low.complete


def test_some_of_them_share_and_some_need_more_servers_for_it():
    """The test above says something only if both happen."""
    found = [planned(seed) for seed in range(60)]
    assert sum(len(low.gpus) < alone for alone, low in found) > 10
    assert sum(low.servers > alone for alone, low in found) > 2


def busy_models(draw, count):
    """Models of which the busy time of the GPU is known at one load."""
    models = {}
    for m in range(count):
        busy = round(draw.betavariate(1.5, 5), 3)
        models[f"m{m}"] = {
            "concurrency": 4.0,
            "p99_ms": {"tpot": round(draw.uniform(20, 120), 1)},
            "memory_mib": float(draw.choice([15_000, 30_000, 45_000])),
            "runs": [{"concurrency": 4.0, "p99_ms": {"tpot": 20.0}, "gpu_util": busy}],
        }
    return models


def law(own, other):
    """The law of MPS at caps for the first of two servers, written out.

    Each is a tuple of its busy time, SM and DRAM activity, and slowdown alone at its share.
    """
    (busy, active, dram, alone), (_, its_active, its_dram, its_alone) = own, other
    memory = math.exp(0.88 * busy * min(1, its_dram / its_alone) ** 1.5)
    its_memory = math.exp(0.88 * other[0] * min(1, dram / alone) ** 1.5)
    drawn = active / (alone * memory) + its_active / (its_alone * its_memory)
    return alone * memory * max(1, drawn) ** (1 - dram)


def server(busy, of_sms, of_memory, share):
    """A server by its busy time and usual parts of it, with the roofline at its share."""
    active = busy * of_sms
    dram = active * of_memory
    saturated = dram**2 / active
    lost = (active - saturated) * (100 / share - 1) + saturated * max(0, 50 / share - 1)
    return busy, active, dram, max(1.0, busy + lost)


def of_server(case, its_busy, share, its_share):
    """The slowdown of a server while it works, beside another of which gpu_util is known.

    In the case likely the other works in part of the time, in the case low all the time.
    """
    if case == "likely":
        return law(server(1.0, 0.7, 0.3, share), server(its_busy, 0.7, 0.3, its_share))
    own = (1.0, 1.0, 0.0, 100 / share)
    usual, worst = (law(own, server(1.0, *of, its_share)) for of in ((0.7, 0.3), (1.0, 0.9)))
    return max(usual, worst) * math.exp(NormalDist().inv_cdf(0.9) * 0.12)


@pytest.mark.parametrize("seed", range(12))
def test_estimates_are_those_of_the_law_written_out(plan, seed):
    models = busy_models(random.Random(seed), 9)
    found = plan({"gpus": [{"model": "A100-80GB"}], "models": models})["plans"][0]
    for case in ("low", "likely"):
        graph = nx.Graph()
        graph.add_nodes_from(models)
        for a, b in combinations(models, 2):
            if models[a]["memory_mib"] + models[b]["memory_mib"] > CARD - RESERVE:
                continue
            busy = [models[name]["runs"][0]["gpu_util"] for name in (a, b)]
            limit = [models[name]["p99_ms"]["tpot"] / 20 for name in (a, b)]
            if any(
                of_server(case, busy[1], p, q) <= limit[0]
                and of_server(case, busy[0], q, p) <= limit[1]
                for p, q in SPLITS
            ):
                graph.add_edge(a, b)
        pairs = len(nx.max_weight_matching(graph, maxcardinality=True))
        assert found["sharing"][case]["gpus"] == len(models) - pairs


@pytest.mark.parametrize("case", ["low", "likely"])
def test_latencies_on_shared_gpus_are_the_slowdown_times_those_alone(plan, case):
    models = busy_models(random.Random(3), 9)
    found = plan({"gpus": [{"model": "A100-80GB"}], "models": models})["plans"][0]
    pairs = [seats for seats in found["sharing"][case]["layout"] if len(seats) == 2]
    assert pairs
    for one, other in pairs:
        for seat, beside in ((one, other), (other, one)):
            its = models[beside["model"]]["runs"][0]["gpu_util"]
            expected = 20 * of_server(case, its, seat["share"], beside["share"])
            assert seat["p99_ms"]["tpot"] == pytest.approx(expected, abs=0.002)
            assert seat["basis"] == ("bound" if case == "low" else "estimate")


def test_idle_time_does_not_help_a_request(plan):
    """A server that is idle in 95 % of the time takes as long for a token as one that never is."""
    models = busy_models(random.Random(1), 2)
    shares = []
    for busy in (0.05, 0.95):
        for model in models.values():
            model.update(p99_ms={"tpot": 38.0}, memory_mib=9_000.0)
            model["runs"][0].update(gpu_util=busy, sm_active=busy, dram_active=0.0)
        found = plan({"gpus": [{"model": "A100-80GB"}], "models": models})["plans"][0]
        shares.append(found["sharing"]["likely"]["gpus"])
    # Alone at half of the SMs a token takes 40 ms, over the promise of 38.
    assert shares == [2, 2]


def tiny(**changes):
    """Two models that were measured together at halves, under a load of 4 each."""
    model = {
        "requests_per_s": 4.0,
        "p99_ms": {"ttft": 500.0, "tpot": 50.0},
        "memory_mib": 30_000.0,
        "runs": [{"requests_per_s": 4.0, "p99_ms": {"ttft": 100.0, "tpot": 40.0}}],
    }
    run = {
        "models": ["a", "b"],
        "share": [60, 40],
        "loads": [4.0, 5.0],
        "p99_ms": [{"ttft": 400.0, "tpot": 49.0}, {"ttft": 300.0, "tpot": 50.0}],
    }
    data = {
        "gpus": [{"model": "A100-80GB"}],
        "models": {"a": dict(model), "b": dict(model)},
        "together": [run],
    }
    return {**data, **changes}


def idle_runs():
    """Runs of a server that is mostly idle and far from its promises."""
    used = {"gpu_util": 0.02, "sm_active": 0.01, "dram_active": 0.002}
    tails = {"ttft": 9.0, "tpot": 9.0}
    return [{"requests_per_s": rate, "p99_ms": tails, **used} for rate in (4.0, 40.0)]


def test_both_tails_are_kept_or_the_servers_run_apart(plan):
    assert plan(tiny())["plans"][0]["sharing"]["low"]["gpus"] == 1
    for server, tail in product((0, 1), ("ttft", "tpot")):
        data = tiny()
        data["together"][0]["p99_ms"][server][tail] = 501.0
        found = plan(data)
        assert found["plans"][0]["sharing"]["low"]["gpus"] == 2
        assert found["may_not_share"]


def test_a_measurement_at_a_lower_load_proves_nothing_and_a_broken_one_forbids(plan):
    lower = tiny()
    lower["together"][0]["loads"] = [3.9, 4.0]
    assert plan(lower)["plans"][0]["sharing"]["low"]["gpus"] == 2
    # An estimate would allow it, if no promise had been broken at this split.
    idle = tiny(together=[])
    for model in idle["models"].values():
        model["runs"] = idle_runs()
    (seats,) = plan(idle)["plans"][0]["sharing"]["low"]["layout"]
    split = [seat["share"] for seat in seats]
    assert split == [50, 50]
    broken = {
        "models": ["a", "b"],
        "share": split,
        "loads": [1.0, 1.0],
        "p99_ms": [{"ttft": 501.0, "tpot": 9.0}, {"ttft": 9.0, "tpot": 9.0}],
    }
    (seats,) = plan({**idle, "together": [broken]})["plans"][0]["sharing"]["low"]["layout"]
    assert [seat["share"] for seat in seats] != split


def test_a_split_that_was_once_broken_is_not_taken_as_measured(plan):
    data = tiny()
    again = copy.deepcopy(data["together"][0])
    again["loads"] = [4.0, 4.0]
    again["p99_ms"][0]["ttft"] = 501.0
    data["together"].append(again)
    assert plan(data)["plans"][0]["sharing"]["low"]["gpus"] == 2


@pytest.mark.parametrize(("share", "least"), [([40, 60], 50), ([60, 40], 70), ([70, 30], 101)])
def test_a_server_that_broke_its_promise_gets_more_sms(plan, share, least):
    data = tiny(together=[])
    for model in data["models"].values():
        model["runs"] = idle_runs()
    tails = [{"ttft": 501.0, "tpot": 9.0}, {"ttft": 9.0, "tpot": 9.0}]
    data["together"] = [{"models": ["a", "b"], "share": share, "loads": [4, 4], "p99_ms": tails}]
    layout = plan(data)["plans"][0]["sharing"]["low"]["layout"]
    if least > 100:
        assert len(layout) == 2
    else:
        (seats,) = layout
        assert next(seat["share"] for seat in seats if seat["model"] == "a") >= least


def test_loads_that_differ_by_a_rounding_error_are_those_measured(plan):
    data = tiny()
    del data["models"]["b"]
    model = data["models"]["a"]
    model["requests_per_s"] = 2.1  # of which a third is 0.7000000000000001
    model["runs"][0]["requests_per_s"] = 0.7
    run = {**data["together"][0], "models": ["a", "a"], "share": [50, 50], "loads": [0.7, 0.7]}
    data["together"] = [run]
    found = plan(data)["plans"][0]["sharing"]["low"]
    assert (found["gpus"], found["servers"]) == (2, 3)


def test_measurements_of_another_kind_of_load_do_not_count(plan):
    data = tiny()
    run = {**data["together"][0], "models": ["a", "a"], "share": [50, 50], "loads": [4.0, 4.0]}
    alone = {"concurrency": 3.0, "p99_ms": {"ttft": 400.0, "tpot": 49.0}}
    data["models"]["b"] = {"like": "a", "concurrency": 3.0, "runs": [alone]}
    data["together"] = [run]
    assert plan(data)["plans"][0]["sharing"]["low"]["gpus"] == 2


@pytest.mark.parametrize("clients", [1.0, 2.0])
def test_models_that_cannot_be_divided_end_the_search(plan, clients):
    run = {"concurrency": clients, "p99_ms": {"e2el": 40.0}}
    model = {"concurrency": clients, "p99_ms": {"e2el": 41.0}, "memory_mib": 9e3, "runs": [run]}
    models = {f"m{k}": model for k in range(24)}
    found = plan({"gpus": [{"model": "A100-80GB"}], "models": models})["plans"][0]
    assert found["sharing"]["low"]["gpus"] == 24
    assert found["sharing"]["low"]["proven"] == (clients == 1.0)


def test_too_many_sets_of_servers_are_refused(tmp_path, capsys):
    data = tiny(max_servers_per_gpu=4, together=[])
    data["models"] = {f"m{k}": {**data["models"]["a"], "memory_mib": 100.0} for k in range(60)}
    path = tmp_path / "serving.json"
    path.write_text(json.dumps({"format": "dovetail-serving/1", "name": "made up", **data}))
    assert main(["advise", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "at most 200,000 sets of servers are compared, got more: lower max_servers" in line


def test_a_server_may_use_what_it_needs_while_it_starts(plan):
    data = tiny()
    data["models"]["a"]["startup_mib"] = 20_000.0
    (seats,) = plan(data)["plans"][0]["sharing"]["low"]["layout"]
    first, second = (
        int(seat["settings"]["HAMi"].split("gpumem: ")[1].split(",")[0]) for seat in seats
    )
    assert first >= 50_000
    assert second >= 30_000
    assert first + second <= CARD - RESERVE


def test_the_flag_of_vllm_is_not_rounded_away(plan):
    data = tiny()
    data["models"]["a"].update(memory_mib=400.0, serve="meta/a")
    (seats,) = plan(data)["plans"][0]["sharing"]["low"]["layout"]
    command = next(seat["command"] for seat in seats if seat["model"] == "a")
    assert command.endswith("vllm serve meta/a --gpu-memory-utilization 0.0048")


def test_a_gpu_model_of_which_there_are_enough_comes_before_a_cheaper_one(plan):
    data = tiny(together=[])
    data["gpus"] = [
        {"model": "A100-80GB", "cost_per_hour": 1.0, "count": 1},
        {"model": "H200", "cost_per_hour": 3.0, "count": 2},
    ]
    for model in data["models"].values():
        model["runs"] = [{**model["runs"][0], "gpu": gpu} for gpu in ("A100-80GB", "H200")]
    found = plan(data)
    assert found["gpu_model"] == "H200"
    assert found["proof"].endswith("proven.")


def test_servers_start_when_their_peaks_fit(plan):
    data = tiny()
    data["models"]["a"]["startup_mib"] = 20_000.0
    (seats,) = plan(data)["plans"][0]["sharing"]["low"]["layout"]
    assert [seat["model"] for seat in seats] == ["a", "b"]
    # 30,000 + 30,000 + 1,024 leave 20,896 MiB for the peak of the second.
    data["models"]["b"]["startup_mib"] = 20_896.0
    (seats,) = plan(data)["plans"][0]["sharing"]["low"]["layout"]
    assert [seat["model"] for seat in seats] == ["b", "a"]
    data["models"]["a"]["startup_mib"] = data["models"]["b"]["startup_mib"] = 20_897.0
    assert plan(data)["plans"][0]["sharing"]["low"]["gpus"] == 2


def test_three_on_a_gpu(plan):
    data = tiny(max_servers_per_gpu=3)
    data["models"] = {name: {**data["models"]["a"], "memory_mib": 20_000.0} for name in "abc"}
    tails = {"ttft": 400.0, "tpot": 45.0}
    data["together"] = [
        {"models": list("cab"), "share": [40, 30, 30], "loads": [4.0] * 3, "p99_ms": [tails] * 3}
    ]
    found = plan(data)["plans"][0]["sharing"]["low"]
    (seats,) = found["layout"]
    assert {seat["model"]: seat["share"] for seat in seats} == {"a": 30, "b": 30, "c": 40}
    data["max_servers_per_gpu"] = 2
    assert plan(data)["plans"][0]["sharing"]["low"]["gpus"] == 3


def test_the_cheapest_gpu_model_is_chosen_and_one_that_cannot_serve_is_named(plan):
    data = tiny()
    data["gpus"] = [
        {"model": "A100-80GB", "cost_per_hour": 2.0},
        {"model": "H200", "cost_per_hour": 3.0},
        {"model": "T4", "cost_per_hour": 0.1},
    ]
    for model in data["models"].values():
        model["runs"] = [
            {**run, "gpu": gpu} for gpu in ("A100-80GB", "H200", "T4") for run in model["runs"]
        ]
    data["together"] = [{**data["together"][0], "gpu": "H200"}]
    found = plan(data)
    assert found["gpu_model"] == "H200"
    costs = {
        p["gpu_model"]: p["cost_per_hour"] * p["sharing"]["low"]["gpus"] for p in found["plans"]
    }
    assert costs == {"A100-80GB": 4.0, "H200": 3.0}
    assert any(note.startswith("T4: models.a.memory_mib: does not fit") for note in found["notes"])


def test_models_that_are_like_another_one_share_its_measurements(plan):
    data = tiny()
    run = data["together"][0]
    data["together"] = [{**run, "models": ["a", "a"], "share": [50, 50], "loads": [4.0, 4.0]}]
    data["models"] = {"a": data["models"]["a"], **{f"a{k}": {"like": "a"} for k in range(5)}}
    found = plan(data)["plans"][0]
    assert (found["gpus_alone"], found["sharing"]["low"]["gpus"]) == (6, 3)
    data["models"]["a0"]["concurrency"] = 3.0
    data["models"]["a0"]["runs"] = [{"concurrency": 4.0, "p99_ms": {"ttft": 9.0, "tpot": 9.0}}]
    assert plan(data)["plans"][0]["gpus_alone"] == 6


def test_the_round_is_an_instance_that_the_checker_passes():
    for seed in range(10):
        _, fleet = planned(seed)
        rows = [
            Assignment(
                job=seat.name,
                gpus=(f"gpu-{g}",),
                share=(seat.share,) if len(seats) > 1 else None,
                co_runners=(tuple(o.name for o in seats if o is not seat),),
            )
            for g, seats in enumerate(fleet.gpus)
            for seat in seats
        ]
        report = check(fleet.instance, Plan(assignments=tuple(rows)))
        assert report.violations == ()


def test_a_fleet_that_is_not_there_is_said(plan):
    data = tiny(together=[])
    data["gpus"][0]["count"] = 1
    assert plan(data)["proof"].endswith("But there is 1: 1 more GPU is needed.")
