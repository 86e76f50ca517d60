"""Files of the serving planner and results of benchmarks: read, or refused in one line."""

from __future__ import annotations

import copy
import json

import pytest

from dovetail.cli.main import main

GOOD = {
    "format": "dovetail-serving/1",
    "name": "two models",
    "gpus": [{"model": "A100-80GB"}],
    "models": {
        "chat": {
            "requests_per_s": 4,
            "p99_ms": {"ttft": 600, "tpot": 60},
            "gpu_memory_utilization": 0.5,
            "serve": "meta/chat",
            "runs": [
                {"requests_per_s": 2, "p99_ms": {"ttft": 80, "tpot": 14}, "sm_active": 0.2},
                {"requests_per_s": 9, "p99_ms": {"ttft": 300, "tpot": 30}, "sm_active": 0.5},
            ],
        },
        "code": {
            "concurrency": 8,
            "p99_ms": {"e2el": 900},
            "memory_mib": 20000,
            "runs": [{"concurrency": 8, "p99_ms": {"e2el": 500}, "sm_active": 0.3}],
        },
    },
    "together": [
        {
            "models": ["chat", "code"],
            "share": [60, 40],
            "loads": [4, 8],
            "p99_ms": [{"ttft": 500, "tpot": 40}, {"e2el": 800}],
        }
    ],
}


@pytest.fixture
def advise(tmp_path, capsys, monkeypatch):
    """Return a function that writes a file as changed, and returns status, output and error."""
    monkeypatch.chdir(tmp_path)

    def run(change=lambda _data: None, *options, result=None):
        data = copy.deepcopy(GOOD)
        change(data)
        (tmp_path / "s.json").write_text(json.dumps(data))
        if result is not None:
            (tmp_path / "r.json").write_text(
                result if isinstance(result, str) else json.dumps(result)
            )
        status = main(["advise", "s.json", *options])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def changing(path, value):
    """Return a change of the value at a path, which is deleted if the new one is ``...``."""

    def change(data):
        *above, last = path
        for key in above:
            data = data[key]
        if value is ...:
            del data[last]
        else:
            data[last] = value

    return change


CHAT, RUN = ("models", "chat"), ("models", "chat", "runs", 0)
TOGETHER = ("together", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "dovetail-serving/2", "format: must be 'dovetail-serving/1'"),
        (("gpus",), [], "gpus: must have 1 or more items, got 0"),
        (("gpus", 0, "model"), "MyGPU",
         "gpus[0].memory_mib: this field is required: the memory of 'MyGPU' is unknown"),
        (("gpus",), [{"model": "H200"}] * 2,
         "gpus[1].model: must be listed once, got 'H200' again"),
        (("models",), {}, "models: must have 1 or more items, got 0"),
        (("models", "a#1"), {"like": "chat"},
         "models: a name must not contain #, got 'a#1'"),
        (("max_servers_per_gpu",), 5, "max_servers_per_gpu: must be <= 4, got 5"),
        ((*CHAT, "concurrency"), 3,
         "models.chat: must have either requests_per_s or concurrency, got both"),
        ((*CHAT, "requests_per_s"), ...,
         "models.chat: must have either requests_per_s or concurrency, got neither"),
        ((*CHAT, "qps"), 3, "models.chat.qps: unknown field: give requests_per_s"),
        ((*CHAT, "slo"), 3, "models.chat.slo: unknown field: give p99_ms: {ttft: ..., tpot: ...}"),
        ((*CHAT, "memory_mib"), 3000,
         "models.chat: must have either memory_mib or gpu_memory_utilization, got both"),
        ((*CHAT, "gpu_memory_utilization"), 1.5,
         "models.chat.gpu_memory_utilization: must be <= 1, got 1.5"),
        ((*CHAT, "gpu_memory_utilization"), 0.99,
         "models.chat.gpu_memory_utilization: does not fit on A100-80GB: 80.2 GiB with the "
         "reserve, of 80.0 GiB"),
        ((*CHAT, "p99_ms"), {"latency": 3},
         "models.chat.p99_ms.latency: must be one of ttft, tpot, itl, e2el, got 'latency'"),
        ((*CHAT, "p99_ms", "ttft"), 79,
         "models.chat.p99_ms.ttft: cannot be kept on A100-80GB: at the least measured load, the "
         "p99 is 80 ms, got 79"),
        ((*RUN, "p99_ms", "tpot"), ...,
         "models.chat.runs[0].p99_ms.tpot: this field is required: the model promises it"),
        ((*RUN, "gpu"), "H200",
         "models.chat.runs[0].gpu: must be one of gpus (A100-80GB), got 'H200'"),
        ((*RUN, "requests_per_s"), 0, "models.chat.runs[0].requests_per_s: must be > 0, got 0"),
        (RUN, {"concurrency": 2, "p99_ms": {"ttft": 80, "tpot": 14}},
         "models.chat.runs[0]: must be requests_per_s, as the load of the model, got concurrency"),
        ((*RUN, "sm_active"), 50, "models.chat.runs[0].sm_active: must be <= 1, got 50"),
        (("models", "code", "runs"), [],
         "models.code.runs: must have a run on A100-80GB"),
        (("models", "code", "like"), "code",
         "models.code.like: must be a model that is like no other one, got 'code'"),
        ((*TOGETHER, "models"), ["chat", "cod"],
         "together[0].models[1]: must be one of models (chat, code), got 'cod'"),
        ((*TOGETHER, "share"), [60, 50], "together[0].share: must sum to at most 100, got 110"),
        ((*TOGETHER, "share"), [60], "together[0].share: must have 2 items, got 1"),
        ((*TOGETHER, "p99_ms", 1), {"ttft": 3},
         "together[0].p99_ms[1].e2el: this field is required: code promises it"),
        (("models", "chat-2"), {"like": "chat", "p99_ms": {"itl": 9},
                                "runs": [{"requests_per_s": 4, "p99_ms": {"itl": 3}}]},
         "together[0].p99_ms[0].itl: this field is required: chat-2 promises it"),
        ((*TOGETHER, "loads"), [4, 0.5],
         "together[0].loads[1]: must be >= 1, a number of clients, got 0.5"),
        (("gpus",), [{"model": "A100-80GB", "cost_per_hour": 2}, {"model": "H200"}],
         "gpus[1].cost_per_hour: this field is required if another GPU model has it"),
        ((*RUN, "file"), "no.json", "dovetail: no.json: cannot be read: no such file or directory"),
        ((*RUN, "file"), 3, "models.chat.runs[0].file: must be the name of a file, got 3"),
        (("models", "chat", "requests_per_s"), 1e12,
         "at most 2,000 servers are planned, got"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_one_line(advise, path, value, message):
    def change(data):
        if path == ("models", "code", "runs"):
            data["together"] = []
        changing(path, value)(data)

    status, out, err = advise(change)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("dovetail: ")
    assert len(err.splitlines()) == 1


def test_it_is_read_alone_and_with_its_own_options(advise, tmp_path):
    (tmp_path / "records.csv").write_text("job,gpus\n1,1\n")
    status, out, err = advise(lambda _data: None, "records.csv")
    assert (status, out) == (2, "")
    assert "a file of the format dovetail-serving/1 is read alone, got 2 files" in err
    for option in (["--since", "3d"], ["--gsla", "2"], ["--gpu-model", "X"], ["--form", "table"]):
        status, out, err = advise(lambda _data: None, *option)
        assert (status, out) == (2, "")
        assert err.startswith(f"dovetail: {option[0]}: cannot be used with a file of the format")


RESULT = {
    "request_rate": 4.0,
    "max_concurrency": None,
    "completed": 400,
    "failed": 0,
    "p99_ttft_ms": 90.5,
    "p99_tpot_ms": 17,
    "mean_ttft_ms": 40.0,
}


def with_file(data):
    data["models"]["chat"]["runs"] = [{"file": "r.json", "sm_active": 0.2}]
    data["together"] = []


def test_results_of_vllm_are_read(advise):
    status, out, _ = advise(with_file, "--json", result=RESULT)
    assert status == 0
    seats = [
        seat for gpu in json.loads(out)["plans"][0]["sharing"]["low"]["layout"] for seat in gpu
    ]
    (chat,) = (seat for seat in seats if seat["model"] == "chat" and seat["share"] == 100)
    assert chat["p99_ms"] == {"ttft": 90.5, "tpot": 17.0}


def test_a_result_of_sglang_tells_the_latency_of_whole_requests(advise):
    def change(data):
        with_file(data)
        data["models"]["chat"]["p99_ms"] = {"e2el": 900}

    status, out, _ = advise(change, "--json", result={**RESULT, "p99_e2e_latency_ms": 812.5})
    assert status == 0
    assert "812.5" in out


def test_a_model_that_is_like_another_one_is_not_served_as_it(advise):
    def change(data):
        data["models"]["chat-2"] = {"like": "chat"}

    status, out, _ = advise(change, "--json")
    assert status == 0
    seats = [
        seat for gpu in json.loads(out)["plans"][0]["sharing"]["low"]["layout"] for seat in gpu
    ]
    command = {seat["model"]: seat["command"] for seat in seats}
    assert "vllm serve meta/chat " in command["chat"]
    assert "vllm serve MODEL " in command["chat-2"]


def test_a_result_without_a_rate_is_a_closed_loop(advise):
    def change(data):
        with_file(data)
        data["models"]["chat"]["concurrency"] = 12
        del data["models"]["chat"]["requests_per_s"]

    endless = {**RESULT, "request_rate": "inf", "max_concurrency": 8}
    status, out, _ = advise(change, "--json", result=endless)
    assert status == 0
    layout = json.loads(out)["plans"][0]["sharing"]["low"]["layout"]
    loads = [s["concurrency"] for gpu in layout for s in gpu if s["model"] == "chat"]
    assert loads == [6.0, 6.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p99_ttft_ms": None}, "r.json: p99_ttft_ms: must be > 0, got null"),
        ({"p99_ttft_ms": -1}, "r.json: p99_ttft_ms: must be > 0, got -1"),
        ({"failed": 3}, "r.json: failed: must be a run in which no request failed, got 3"),
        ({"max_concurrency": 8},
         "r.json: max_concurrency: must not be given with a finite request_rate: requests that "
         "wait to be sent are not timed, got 8"),
        ({"request_rate": "inf"},
         "r.json: request_rate: must be a finite rate, or max_concurrency must be given, got inf"),
        ({"request_throughput": 3.1},
         "r.json: request_throughput: must be near request_rate (4), or latencies grow with the "
         "run, got 3.1"),
        ({"request_rate": True},
         "r.json: request_rate: must be a finite rate, or max_concurrency must be given, got true"),
    ],
)  # fmt: skip
def test_bad_results_are_refused_in_one_line(advise, changes, message):
    status, out, err = advise(with_file, result={**RESULT, **changes})
    assert (status, out) == (2, "")
    assert err.endswith(f"{message}\n")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be a result of vllm bench serve --save-result"),
        ("{}", "must have p99_ttft_ms or another 99th percentile (--metric-percentiles 99)"),
        ("", "is empty"),
    ],
)
def test_other_files_are_no_results(advise, text, message):
    status, _, err = advise(with_file, result=text)
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_the_screen_is_80_columns_wide(advise):
    def change(data):
        for k in range(22):
            data["models"][f"a model with a rather long name {k}"] = {"like": "chat"}

    status, out, _ = advise(change)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "servers" in out


def test_what_to_type_in_fits_the_card(advise):
    status, out, _ = advise(lambda _data: None, "--json")
    assert status == 0
    (seats,) = json.loads(out)["plans"][0]["sharing"]["low"]["layout"]
    assert [seat["command"] for seat in seats] == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60 vllm serve meta/chat --gpu-memory-utilization 0.5",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40 ... (its command; it needs 19.5 GiB)",
    ]
    assert [seat["basis"] for seat in seats] == ["measured", "measured"]
    limits = [seat["settings"]["HAMi"].split("gpumem: ")[1].split(",")[0] for seat in seats]
    assert sum(map(int, limits)) <= 81_920 - 1_024
