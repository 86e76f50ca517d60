"""``dovetail advise`` against written-out calculations that share no code with it."""

from __future__ import annotations

import json
import math
import re
from itertools import combinations
from statistics import NormalDist

import networkx as nx
import pytest

from dovetail.advising.cards import card_of
from dovetail.advising.work import MOST_KINDS
from dovetail.cli.main import main
from tests.advising.made_up import month, month_csv, services, services_csv

RESERVE = 1_024
SPLITS = [(50, 50), (60, 40), (40, 60), (70, 30), (30, 70)]
CASES = ("low", "likely", "high")


@pytest.fixture
def advise(tmp_path, capsys):
    """Return the advice for a table as data."""

    def run(text, *options):
        path = tmp_path / "records.csv"
        path.write_text(text)
        assert main(["advise", str(path), "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def needs(service):
    """The memory and the busy time of a service in each case, from mean utilisation and p95."""
    mib, util = service["memory_mib"], service["util"]
    return {
        "low": (1.15 * mib, min(1, 2 * util)),
        "likely": (1.05 * mib, min(1, 1.5 * util)),
        "high": (mib, util),
    }


def at_caps(busy, shares, worst):
    """The law of MPS at caps for jobs of which only the busy time is known, written out.

    With the usual assumptions for what is not known, or the worst ones. Returns all slowdowns.
    """
    of_sms, of_memory = (1.0, 0.9) if worst else (0.7, 0.3)
    jobs = []
    for b, share in zip(busy, shares, strict=True):
        active = b * of_sms
        dram = active * of_memory
        saturated = dram**2 / active if active else 0.0
        lost = (active - saturated) * (100 / share - 1) + saturated * max(0, 50 / share - 1)
        jobs.append((b, active, dram, max(1.0, b + lost)))
    traffic = [sum(j[2] / j[3] for j in jobs[:k] + jobs[k + 1 :]) for k in range(len(jobs))]
    memory = [math.exp(0.88 * j[0] * min(1, t) ** 1.5) for j, t in zip(jobs, traffic, strict=True)]
    drawn = sum(active / (own * m) for (_, active, _, own), m in zip(jobs, memory, strict=True))
    return [
        own * m * max(1, drawn) ** (1 - dram)
        for (_, _, dram, own), m in zip(jobs, memory, strict=True)
    ]


def alone(case, busy, share=50):
    return at_caps([busy], [share], worst=case == "low")[0]


def slowdowns(case, busy, shares):
    likely = at_caps(busy, shares, worst=False)
    worst = at_caps(busy, shares, worst=True)
    error = math.exp(NormalDist().inv_cdf(0.9) * math.hypot(0.12, 0.18))
    upper = [max(a, b) * error for a, b in zip(likely, worst, strict=True)]
    high = [max(1.0, a**2 / b) for a, b in zip(likely, upper, strict=True)]
    return {"low": upper, "likely": likely, "high": high}[case]


def slowdown(case, own, other, share, its_share):
    return slowdowns(case, [own, other], [share, its_share])[0]


def levels(most):
    """How many jobs on a GPU the shares of kinds are tried for."""
    return [] if most == 2 else [n for n in (4, 8, 16, 32) if n < most] + [most]


def least_share(case, busy, rule, level):
    """The smallest share of at most ``level`` equal ones at which work alone keeps a rule."""
    shares = [100 // n for n in range(2, level + 1) if alone(case, busy, 100 // n) <= rule]
    return min(shares, default=0)


def fewest(found, case, limit=1.5, card=81_920):
    """The fewest GPUs for services: a largest matching of those that may share, by networkx."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(found)))
    for a, b in combinations(range(len(found)), 2):
        (m1, u1), (m2, u2) = needs(found[a])[case], needs(found[b])[case]
        if m1 + m2 > card - RESERVE:
            continue
        if any(
            slowdown(case, u1, u2, p, q) <= limit and slowdown(case, u2, u1, q, p) <= limit
            for p, q in SPLITS
        ):
            graph.add_edge(a, b)
    return len(found) - len(nx.max_weight_matching(graph, maxcardinality=True))


def fewest_in_sets(found, case, most, limit=1.5, card=81_920):
    """The fewest GPUs for services with up to ``most`` on each, by trying all sets."""
    number, cases = range(len(found)), CASES[: CASES.index(case) + 1]
    shares = [
        [least_share(one, needs(service)[one][1], rule, level) for service in found]
        for level in levels(most)
        for one in cases
        for rule in (1.0, 1.1, 1.25)
    ]

    def may(members):
        mib, busy = zip(*(needs(found[k])[case] for k in members), strict=True)
        if sum(mib) > card - RESERVE:
            return False
        ways = [[own[k] for k in members] for own in shares]
        ways += SPLITS if len(members) == 2 else [[100 // len(members)] * len(members)]
        return any(
            min(way) > 0 and sum(way) <= 100 and max(slowdowns(case, busy, way)) <= limit
            for way in ways
        )

    able = {
        k
        for pair in combinations(number, 2)
        if fewest([found[k] for k in pair], case) == 1
        for k in pair
    }
    sets = [
        sum(1 << k for k in members)
        for size in range(2, most + 1)
        for members in combinations(sorted(able), size)
        if may(members)
    ]
    needed = {0: 0}
    for jobs in range(1, 1 << len(found)):
        first = jobs & -jobs
        needed[jobs] = 1 + min(
            needed[jobs ^ one] for one in [first, *sets] if one & first and one & jobs == one
        )
    return needed[(1 << len(found)) - 1]


@pytest.mark.parametrize("most", [3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_sets_of_services_need_as_few_gpus_as_when_all_sets_are_tried(advise, seed, most):
    found = services(9, seed)
    for service in found:
        service["memory_mib"] //= 3
    data = advise(services_csv(found), "--max-jobs-per-gpu", str(most))
    for case in CASES:
        figures = data["sharing"][case]
        assert figures["gpus_needed"] == fewest_in_sets(found, case, most)
        assert figures["gpus_needed_bound"] == figures["gpus_needed"]


def test_a_hundred_idle_notebooks_are_as_few_gpus_as_their_number_allows(advise):
    rows = "".join(f"{k},a,n{k % 30},1,X,80000,0,99,{9_000 + k},0.01\n" for k in range(100))
    data = advise(RUNS + rows, "--max-jobs-per-gpu", "8")
    likely = data["sharing"]["likely"]
    assert likely["gpus_needed"] == likely["gpus_needed_bound"] == math.ceil(100 / 8)
    assert likely["most_gpus"] == math.ceil(100 / 8)
    assert max(sum(job["count"] for job in one["jobs"]) for one in data["partners"]) == 8
    for one in data["partners"]:
        assert sum(job["count"] * job["share"] for job in one["jobs"]) <= 100
        assert sum(job["count"] * job["memory_limit_mib"] for job in one["jobs"]) <= 80_000


def test_a_larger_set_never_needs_more(advise):
    text = month_csv(month(120, 4, days=3))
    found = [advise(text, "--max-jobs-per-gpu", str(most))["sharing"] for most in (2, 3, 4)]
    for case in CASES:
        needed = [each[case]["gpus_needed"] for each in found]
        assert needed == sorted(needed, reverse=True)
        assert found[0][case]["gpu_hours"] >= found[2][case]["gpu_hours"]


@pytest.mark.parametrize("most", ["2", "4"])
def test_the_busiest_moment_is_an_instance_that_plan_and_explain_take(tmp_path, capsys, most):
    records, moment = tmp_path / "records.csv", tmp_path / "moment.yaml"
    records.write_text(month_csv(month(150, 3, days=1)))
    options = ["--max-jobs-per-gpu", most, "--instance", str(moment), "--json"]
    assert main(["advise", str(records), *options]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert main(["plan", str(moment), "--objective", "fewest", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    used = {gpu for job in plan["assignments"] for gpu in job["gpus"]}
    assert len(used) == advice["sharing"]["likely"]["gpus_needed"]
    assert len(plan["assignments"]) == advice["now"]["jobs_at_the_peak"]
    written = tmp_path / "plan.json"
    written.write_text(json.dumps(plan))
    assert main(["check", str(moment), str(written)]) == 0
    assert main(["explain", str(moment), str(written)]) == 0
    assert "no job waits" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [9, 60])
def test_services_need_as_few_gpus_as_a_matching_by_another_library(advise, count, seed):
    found = services(count, seed)
    data = advise(services_csv(found))
    for case in CASES:
        figures = data["sharing"][case]
        assert figures["gpus_needed"] == figures["gpus_needed_bound"] == fewest(found, case)
    assert data["now"] == {"gpu_hours": None, "gpus": count, "jobs_at_the_peak": count}


@pytest.mark.parametrize("most", ["2", "3"])
def test_each_job_is_in_one_set_at_most_and_settings_fit_the_card(advise, most):
    data = advise(services_csv(services(61, 9)), "--max-jobs-per-gpu", most)
    names = [job["name"] for pair in data["partners"] for job in pair["jobs"]]
    assert len(names) == len(set(names))
    for pair in data["partners"]:
        shares, limits = zip(
            *((job["share"], job["memory_limit_mib"]) for job in pair["jobs"]), strict=True
        )
        assert sum(shares) <= 100
        assert sum(limits) <= 81_920 - RESERVE + 0.2
        for job in pair["jobs"]:
            assert job["memory_limit_mib"] >= job["memory_mib"] - 0.1
            assert job["slowdown"][0] <= job["slowdown"][1]


def by_hand(jobs, share_of, most=2):
    """GPU hours in the case likely, by small steps of time instead of events.

    Jobs start in order of time, where they add least to the sum of slowdowns, and of equally good
    places where they leave the least memory. Only for jobs that start at different moments.

    Parameters
    ----------
    jobs : list of dict
        The jobs.
    share_of : callable
        Returns the share of work from its busy time in each case; 0 for none.
    most : int
        The most jobs on a GPU.
    """
    kinds = {}
    for job in jobs:
        kinds.setdefault((job["user"], job["name"]), []).append(job)
    busy = {}
    for k, js in kinds.items():
        time = [j["end_s"] - j["start_s"] for j in js]
        mean = sum(j["gpu_util_mean"] * s for j, s in zip(js, time, strict=True)) / sum(time)
        busy[k] = {"low": max(j["gpu_util_p95"] for j in js), "likely": mean}
    mib = {k: max(j["memory_max_mib"] for j in js) for k, js in kinds.items()}

    def may(members, shares):
        same = len({kinds[k][0]["gpus"] for k in members}) == 1
        if not same or sum(mib[k] for k in members) > 81_920 - RESERVE or sum(shares) > 100:
            return False
        return max(slowdowns("likely", [busy[k]["likely"] for k in members], shares)) <= 1.5

    able = {
        a for a in kinds if any(may([a, b], [50, 50]) for b in kinds if b != a or len(kinds[a]) > 1)
    }
    share = {k: share_of(busy[k]) if k in able else 0 for k in kinds}
    places, hours, now = [], 0.0, 0.0

    def paces(members):
        of = [busy[k]["likely"] for k in members]
        if len(of) == 1:
            return [alone("likely", of[0], share[members[0]]) if share[members[0]] else 1.0]
        return slowdowns("likely", of, [share[k] for k in members])

    def advance(until):
        nonlocal hours, now
        while now < until:
            pace = [paces([run["kind"] for run in place]) for place in places]
            step = min(
                [until]
                + [
                    now + run["left"] * p
                    for place, of in zip(places, pace, strict=True)
                    for run, p in zip(place, of, strict=True)
                ]
            )
            if math.isinf(step):
                return
            hours += sum(place[0]["gpus"] for place in places) * (step - now) / 3600
            for place, of in zip(places, pace, strict=True):
                for run, p in zip(place, of, strict=True):
                    run["left"] -= (step - now) / p
            now = step
            for place in list(places):
                place[:] = [run for run in place if run["left"] > 1e-6]
                if not place:
                    places.remove(place)

    for job in sorted(jobs, key=lambda job: job["start_s"]):
        advance(job["start_s"])
        kind, left = (job["user"], job["name"]), job["end_s"] - job["start_s"]
        new = {"kind": kind, "left": left, "gpus": job["gpus"]}
        open_places = []
        for place in places:
            of = [run["kind"] for run in place]
            with_it = [*of, kind]
            if len(with_it) > most or 0 in [share[k] for k in with_it]:
                continue
            if may(with_it, [share[k] for k in with_it]):
                added = sum(paces(with_it)) - (sum(paces(of)) if most > 2 else 0)
                open_places.append((round(added, 9), -sum(mib[k] for k in with_it), place))
        if open_places:
            min(open_places, key=lambda one: one[:2] if most > 2 else one[0])[-1].append(new)
        else:
            places.append([new])
    advance(math.inf)
    return hours


def at_halves(rule):
    return lambda busy: 50 if alone("likely", busy["likely"]) <= rule else 0


def at_least(case, rule, level):
    return lambda busy: least_share(case, busy[case], rule, level)


@pytest.mark.parametrize("seed", range(3))
def test_gpu_hours_are_those_of_a_second_written_out_replay(advise, seed):
    jobs = month(120, seed, days=3)
    data = advise(month_csv(jobs))
    now = sum(job["gpus"] * (job["end_s"] - job["start_s"]) for job in jobs) / 3600
    assert data["now"]["gpu_hours"] == pytest.approx(now, rel=1e-6)
    expected = min(now, *(by_hand(jobs, at_halves(rule)) for rule in (1.0, 1.1, 1.25)))
    # Two runs of a kind are equally good co-runners: which one is joined may differ.
    assert data["sharing"]["likely"]["gpu_hours"] == pytest.approx(expected, rel=0.01)
    hours = [data["sharing"][case]["gpu_hours"] for case in CASES]
    # Greedy choices may be a little worse with more freedom.
    assert now + 1e-3 >= hours[0] >= 0.998 * hours[1] >= 0.996 * hours[2]


@pytest.mark.parametrize(("seed", "most"), [(0, 3), (1, 3), (2, 5)])
def test_gpu_hours_of_sets_are_those_of_a_second_written_out_replay(advise, seed, most):
    jobs = month(120, seed, days=1)
    for job in jobs:
        job["gpus"] = 1
        for name in ("memory_mean_mib", "memory_p95_mib", "memory_max_mib"):
            job[name] = round(job[name] / 3, 1)
    data = advise(month_csv(jobs), "--max-jobs-per-gpu", str(most))
    rules = (1.0, 1.1, 1.25)
    ways = [by_hand(jobs, at_halves(rule)) for rule in rules]
    ways += [
        by_hand(jobs, at_least(case, rule, level), most)
        for level in levels(most)
        for case in ("low", "likely")
        for rule in rules
    ]
    found = data["sharing"]["likely"]["gpu_hours"]
    assert found == pytest.approx(min(ways), rel=0.01)
    assert found < min(ways[:3])


def test_the_busiest_moment_is_found_by_counting_at_every_start(advise):
    jobs = month(200, 5, days=2)
    data = advise(month_csv(jobs))
    most = max(
        sum(j["gpus"] for j in jobs if j["start_s"] <= job["start_s"] < j["end_s"]) for job in jobs
    )
    assert data["now"]["gpus"] == most


ROW = "job,user,name,gpus,gpu_model,card_mib,service,memory_p95_mib,gpu_util_mean,gpu_util_p95\n"


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        ("1,a,x,1,X,,no,100,0.1,0.1\n2,b,y,1,X,,no,100,0.1,0.1\n", {"card": 2}),
        (
            "1,a,x,1,X,8000,no,,0.1,0.1\n2,b,y,1,X,8000,no,100,0.1,0.1\n",
            {"memory unknown": 1, "others": 1},
        ),
        (
            "1,a,x,1,X,8000,no,9,,\n2,b,y,1,X,8000,no,100,0.1,0.1\n",
            {"use unknown": 1, "others": 1},
        ),
        ("1,a,x,1,X,8000,no,4000,0.1,0.1\n2,b,y,1,X,8000,no,4000,0.1,0.1\n", {"memory": 2}),
        ("1,a,x,1,X,8000,no,400,1,1\n2,b,y,1,X,8000,no,400,1,1\n", {"slowdown": 2}),
        ("1,a,x,1,X,8000,no,400,0.1,0.1\n2,b,y,2,X,8000,no,400,0.1,0.1\n", {"alone": 2}),
        ("1,a,x,1,X,8000,no,400,0.1,0.1\n2,b,y,1,Y,8000,no,400,0.1,0.1\n", {"alone": 2}),
    ],
)
def test_what_may_not_share_says_why(advise, rows, reasons):
    data = advise(ROW + rows)
    found = {each["reason"]: len(each["kinds"]) for each in data["may_not_share"]}
    assert found == reasons
    assert data["partners"] == []


RUNS = "job,user,name,gpus,gpu_model,card_mib,start_s,end_s,memory_max_mib,gpu_util_mean\n"


def test_short_runs_that_crashed_do_not_make_work_look_idle(advise):
    long = "".join(f"{k},a,x,1,X,80000,0,360000,20000,0.98\n" for k in range(2))
    short = "".join(f"c{k},a,x,1,X,80000,{k},{k + 60},20000,0\n" for k in range(18))
    without, with_them = advise(RUNS + long), advise(RUNS + long + short)
    assert without["partners"] == []
    assert with_them["partners"] == []


def test_limits_of_memory_are_never_below_what_was_used(advise):
    rows = "1,a,x,1,X,80000,0,99,30000,0.1\n2,b,y,1,X,80000,0,99,40000,0.1\n"
    (pair,) = advise(RUNS + rows)["partners"]
    limits = {job["name"]: job["memory_limit_mib"] for job in pair["jobs"]}
    assert limits["x"] >= 30_000
    assert limits["y"] >= 40_000


def test_runs_that_nothing_ends_are_of_one_moment(advise):
    head = RUNS.replace(",end_s", ",state")
    rows = "".join(f"{k},a,x{k},1,X,80000,5,running,20000,0.1\n" for k in range(4))
    data = advise(head + rows)
    assert data["jobs"] == data["now"]["gpus"] == 4
    assert data["now"]["gpu_hours"] is None
    assert data["sharing"]["likely"]["gpus_needed"] == 2


def test_jobs_on_one_node_and_on_several_do_not_share(advise):
    head = RUNS.replace("card_mib", "card_mib,node")
    rows = '1,a,x,2,X,80000,n1,0,99,30000,0.1\n2,b,y,2,X,80000,"n2,n3",0,99,40000,0.1\n'
    assert advise(head + rows)["partners"] == []


def test_settings_are_for_all_gpus_of_a_job_or_left_out(advise):
    rows = "1,a,x,4,X,80000,0,99,30000,0.1\n2,b,y,4,X,80000,0,99,40000,0.1\n"
    (pair,) = advise(RUNS + rows)["partners"]
    found = pair["jobs"][0]["settings"]
    assert found["MPS"].endswith("0=33846M,1=33846M,2=33846M,3=33846M")
    assert "nvidia.com/gpu: 4" in found["HAMi"]
    assert 'gpu-fraction-num-devices: "4"' in found["KAI"]
    assert not {"Slurm", "Amazon ECS"} & set(found)


def test_no_pair_with_a_service_is_sure(advise):
    data = advise(services_csv(services(20, 4)))
    assert data["partners"]
    assert not any(pair["sure"] for pair in data["partners"])


def test_the_rarest_of_many_kinds_are_merged_and_said_to_be(advise):
    rows = "".join(f"{k},a,x{k},1,X,80000,0,{100 + k},20000,0.1\n" for k in range(MOST_KINDS + 100))
    data = advise(RUNS + rows)
    assert data["kinds"] == MOST_KINDS + 1
    assert {"number": 100, "what": "kinds of work"}.items() <= data["left_out"][0].items()
    assert data["sharing"]["likely"]["gpus_needed"] == (MOST_KINDS + 100) / 2


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path, capsys):
    path = tmp_path / "records.csv"
    rows = "1,a,\x1b[2Jx,1,X,80000,0,99,30000,0.1\n2,b,y\u202e,1,X,80000,0,99,40000,0.1\n"
    path.write_text(RUNS + rows)
    assert main(["advise", str(path)]) == 0
    out = capsys.readouterr().out
    assert "[2Jx" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


@pytest.mark.parametrize("time", ["1e12", "1e30"])
def test_times_that_are_no_dates_are_no_fault(advise, time):
    rows = f"1,a,x,1,X,80000,0,{time},30000,0.1\n2,b,y,1,X,80000,0,{time},40000,0.1\n"
    assert advise(RUNS + rows)["jobs"] == 2


@pytest.mark.parametrize(
    ("model", "mib"),
    [
        ("NVIDIA A100-SXM4-80GB", 81_920),
        ("a100-pcie-40gb", 40_960),
        ("NVIDIA H200", 143_771),
        ("NVIDIA A100-SXM4-80GB-MIG-1g.10gb", None),
        ("A40-12Q", None),
        ("NVIDIA A800 40GB Active", None),
        ("Tesla P100-PCIE-12GB", None),
        ("a100", None),
        ("Tesla V100-SXM2-32GB", 32_768),
    ],
)
def test_cards_of_another_size_and_parts_of_cards_are_unknown(model, mib):
    found = card_of(model, math.nan, {})
    assert math.isnan(found) if mib is None else found == mib


def test_since_leaves_out_what_ended_before(advise):
    jobs = month(50, 1, days=10)
    last = max(job["end_s"] for job in jobs)
    begin = last - 2 * 86_400
    data = advise(month_csv(jobs), "--since", "2d")
    kept = [job for job in jobs if job["end_s"] > begin]
    expected = sum(j["gpus"] * (j["end_s"] - max(j["start_s"], begin)) for j in kept) / 3600
    assert data["jobs"] == len(kept)
    assert data["now"]["gpu_hours"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--since", "yesterday"],
            "argument --since: must be a time like 2026-11-01, 30d or 12h, got 'yesterday'",
        ),
        (["--gsla", "0.5"], "argument --gsla: must be >= 1, got '0.5'"),
        (["--gpu-memory", "A100"], "argument --gpu-memory: must be MODEL=MIB, got 'A100'"),
        (["--form", "sacctt"], "--form: must be one of"),
        (["--cost-per-gpu-hour", "-1"], "argument --cost-per-gpu-hour: must be >= 0, got '-1'"),
        (
            ["--max-jobs-per-gpu", "49"],
            "argument --max-jobs-per-gpu: must be a whole number from 2 to 48, got '49'",
        ),
        (["--max-jobs-per-gpu", "1"], "must be a whole number from 2 to 48, got '1'"),
    ],
)
def test_bad_options_are_one_line(tmp_path, capsys, options, told):
    path = tmp_path / "records.csv"
    path.write_text(month_csv(month(5, 1)))
    try:
        status = main(["advise", str(path), *options])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_the_order_of_files_does_not_matter(tmp_path, capsys):
    jobs, series = tmp_path / "jobs.csv", tmp_path / "series.csv"
    jobs.write_text("job,user,gpus,card_mib,start_s,end_s\na,ann,8,80000,0,500000\n")
    series.write_text(
        "job,gpus,start_s,end_s,samples,memory_max_mib,gpu_util_mean\na,1,0,60,9,5000,0.2\n"
    )
    found = []
    for files in ([jobs, series], [series, jobs]):
        assert main(["advise", *map(str, files), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        found.append((data["now"], data["may_not_share"]))
    assert found[0] == found[1]
    assert found[0][0]["gpus"] == 8


def test_a_form_that_no_reader_knows_is_one_line(tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert main(["advise", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"dovetail: {path}: must be of a form that is read, named with --form: ")
    assert "sacct" in told
    assert len(told.splitlines()) == 1


def test_few_hours_are_shown_with_their_digits(tmp_path, capsys):
    path = tmp_path / "records.csv"
    path.write_text(RUNS + "1,a,x,1,X,80000,0,900,3,0.1\n2,b,y,1,X,80000,0,900,4,0.1\n")
    assert main(["advise", str(path)]) == 0
    out = capsys.readouterr().out
    assert "15 min" in out
    assert re.search(r"GPU hours +0\.5 ", out)


@pytest.mark.parametrize("most", ["2", "4"])
def test_the_terminal_is_80_columns_and_says_what_is_proven_and_what_is_not(tmp_path, capsys, most):
    path = tmp_path / "records.csv"
    path.write_text(month_csv(month(300, 2, days=5)))
    options = ["--cost-per-gpu-hour", "2.5", "--max-jobs-per-gpu", most]
    assert main(["advise", str(path), *options]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "proven" in out
    assert "The numbers themselves are estimates." in " ".join(out.split())
    assert "cost" in out
    assert ("No such set has been measured" in " ".join(out.split())) == (most == "4")
