"""Answers of Prometheus: by hand, broken ones, and those of a real server."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from dovetail.advising.reader import read_usage
from dovetail.instances.errors import InputError
from tests.advising.readers.figures import figures_of
from tests.advising.readers.fuzz import read_damaged

START = 1795946400


def series(name, values, first=START, step=30, **labels):
    points = [[first + step * at, str(value)] for at, value in enumerate(values)]
    metric = {"__name__": name, **labels} if name else labels
    return {"metric": metric, "values": points}


def answer(*result, kind="matrix"):
    return {"status": "success", "data": {"resultType": kind, "result": list(result)}}


def gpu(number, **labels):
    return {
        "gpu": str(number),
        "UUID": f"GPU-{number}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "node1",
        "instance": "10.0.0.1:9400",
        "job": "gpu-metrics",
        **labels,
    }


def pod(name, namespace="ml"):
    return {"pod": name, "namespace": namespace, "container": "main"}


def usage_of(tmp_path, *answers, name="answer.json"):
    path = tmp_path / name
    path.write_text("\n".join(map(json.dumps, answers)), encoding="utf-8")
    return read_usage(str(path))


def jobs_of(*arguments, **named):
    return usage_of(*arguments, **named).jobs.set_index("job")


def test_figures_of_a_pod(tmp_path):
    util, used = [10, 20, 30, 90], [1000, 4000, 3000, 3000]
    of = gpu(3, **pod("train-0"))
    jobs = jobs_of(
        tmp_path,
        answer(
            series("DCGM_FI_DEV_GPU_UTIL", util, **of),
            series("DCGM_FI_DEV_MEM_COPY_UTIL", [1, 2, 3, 4], **of),
            series("DCGM_FI_DEV_FB_USED", used, **of),
            series("DCGM_FI_DEV_FB_FREE", [80000 - each for each in used], **of),
            series("DCGM_FI_PROF_SM_ACTIVE", [0.1, 0.2, 0.3, "NaN"], **of),
            series("DCGM_FI_PROF_SM_OCCUPANCY", [0.1, 0.2, 0.3, "+Inf"], **of),
            series("DCGM_FI_PROF_DRAM_ACTIVE", [0.1, 0.1, 0.1, 0.5], **of),
            series("DCGM_FI_PROF_PCIE_RX_BYTES", [1e6, 1e6, 1e6, 1e6], **of),
            series("DCGM_FI_DEV_POWER_USAGE", [100, 200, 300, 200], **of),
            series("DCGM_FI_DEV_SM_CLOCK", [1980] * 4, **of),
        ),
    )
    job = jobs.loc["ml/train-0"]
    mean, p95, most = figures_of([0, 30, 60, 90], util)
    assert job.gpu_util_mean == pytest.approx(mean / 100)
    assert (job.gpu_util_p95, job.gpu_util_max) == (p95 / 100, most / 100)
    assert (job.start_s, job.end_s, job.samples) == (START, START + 90, 4)
    assert (job.gpus, job.card_mib, job.node) == (1, 80000, "node1")
    assert job.gpu_model == "NVIDIA H100 80GB HBM3"
    assert (job.memory_mean_mib, job.memory_max_mib) == (2750, 4000)
    assert job.mem_util_mean == pytest.approx(0.025)
    assert job.sm_active_mean == pytest.approx(0.2)
    assert job.sm_occupancy_mean == pytest.approx(0.2)
    assert (job.dram_active_p95, job.pcie_rx_bytes_s_mean, job.power_w_mean) == (0.5, 1e6, 200)


def test_a_job_on_several_gpus_and_nodes(tmp_path):
    jobs = jobs_of(
        tmp_path,
        answer(
            series("DCGM_FI_DEV_GPU_UTIL", [10, 20], **gpu(0, hpc_job="77")),
            series("DCGM_FI_DEV_GPU_UTIL", [30, 60], **gpu(1, hpc_job="77", Hostname="node2")),
            series("DCGM_FI_DEV_FB_USED", [10, 2000], **gpu(0, hpc_job="77")),
            series("DCGM_FI_DEV_FB_USED", [900, 30], **gpu(1, hpc_job="77", Hostname="node2")),
        ),
    )
    job = jobs.loc["77"]
    assert (job.gpus, job.node) == (2, "node1,node2")
    assert job.gpu_util_mean == pytest.approx(0.3)
    assert job.memory_mean_mib == (900 + 2000) / 2


def test_the_pod_of_the_exporter_is_no_job(tmp_path):
    exporter = {"pod": "nvidia-dcgm-exporter-x", "namespace": "gpu-operator"}
    inside = {"exported_pod": "infer-1", "exported_namespace": "web"}
    usage = usage_of(
        tmp_path,
        answer(
            series("DCGM_FI_DEV_GPU_UTIL", [10, 20], **gpu(0, **exporter, **inside)),
            series("DCGM_FI_DEV_GPU_UTIL", [50, 60], **gpu(1, **exporter)),
            series("DCGM_FI_DEV_GPU_UTIL", [0, 0], START + 60, **gpu(0, **exporter)),
        ),
    )
    assert sorted(usage.jobs.job) == ["node1/gpu 1", "web/infer-1"]
    assert [str(out) for out in usage.left_out] == [
        "series of GPUs (1): no job had them, while other series of the same GPUs name one"
    ]


def test_idle_gpus_and_parts_of_gpus_are_left_out(tmp_path):
    part = {"GPU_I_ID": "1", "GPU_I_PROFILE": "1g.10gb"}
    usage = usage_of(
        tmp_path,
        answer(
            series("DCGM_FI_DEV_GPU_UTIL", [0, 0], **gpu(0)),
            series("DCGM_FI_DEV_FB_USED", [2, 2], **gpu(0)),
            series("DCGM_FI_DEV_FB_USED", [9000, 9000], **gpu(1, **part, **pod("a"))),
            series("DCGM_FI_DEV_GPU_UTIL", [5, 5], **gpu(2)),
            series("DCGM_FI_DEV_FB_USED", [2, 2], **gpu(2)),
        ),
    )
    assert list(usage.jobs.job) == ["node1/gpu 2"]
    assert [str(out) for out in usage.left_out] == [
        "GPUs in MIG mode (1): they are parts of GPUs with memory of their own, which Dovetail does"
        " not place",
        "GPUs (1): were idle and empty while they were recorded",
    ]


def test_nvidia_gpu_exporter(tmp_path):
    of = {"uuid": "0a1b", "instance": "host7:9835", "job": "gpu"}
    jobs = jobs_of(
        tmp_path,
        answer(
            series("nvidia_smi_utilization_gpu_ratio", [0.5, 1], **of),
            series("nvidia_smi_memory_used_bytes", [2**30, 2**31], **of),
            series("nvidia_smi_memory_total_bytes", [2**34, 2**34], **of),
            series("nvidia_smi_power_draw_watts", [70, 90], **of),
        ),
    )
    row = jobs.loc["host7/0a1b"]
    assert (row.gpu_util_mean, row.memory_mean_mib, row.card_mib) == (0.75, 1536, 16384)
    assert row.power_w_mean == 80


def test_windows_of_one_series_and_two_scrapes_of_one_gpu(tmp_path):
    of = gpu(0, **pod("a"))
    usage = usage_of(
        tmp_path,
        answer(series("DCGM_FI_DEV_GPU_UTIL", [10, 20], **of)),
        answer(
            series("DCGM_FI_DEV_GPU_UTIL", [20, 60], START + 30, **of),
            series("DCGM_FI_DEV_GPU_UTIL", [99], START + 30, **{**of, "job": "again"}),
        ),
    )
    row = usage.jobs.iloc[0]
    assert (row.samples, row.gpu_util_mean) == (3, pytest.approx(0.3))
    assert str(usage.left_out[0]) == ("samples (2): another series tells of the same GPU and time")


def test_an_instant_query_a_list_of_answers_and_a_metric_in_the_name_of_the_file(tmp_path):
    def one(metric, value):
        return answer({"metric": metric, "value": [START, value]}, kind="vector")

    jobs = jobs_of(tmp_path, [one({"pod": "a"}, "0.4")], name="gpu_util_fraction.json")
    assert (jobs.gpu_util_mean["a"], jobs.samples["a"]) == (0.4, 1)
    named = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "pod": "a"}
    assert jobs_of(tmp_path, one(named, "40")).gpu_util_mean["a"] == 0.4


def test_blanks_of_dcgm_are_missing(tmp_path):
    row = jobs_of(
        tmp_path, answer(series("DCGM_FI_DEV_FB_USED", [500, 9223372036854775794], **gpu(0)))
    ).loc["node1/gpu 0"]
    assert (row.memory_max_mib, row.samples) == (500, 1)


UTIL = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "pod": "a"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"status":"error","errorType":"bad_data","error":"parse error: unexpected end"}',
         "is an answer with an error: bad_data: parse error: unexpected end"),
        ('{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}',
         "data.resultType: must be matrix or vector, got 'scalar'"),
        ('{"status":"success","data":{"resultType":"matrix","result":{}}}',
         "data.result: must be a list, got a mapping"),
        (json.dumps(answer({"metric": UTIL, "values": [[1, "2"], [2, "many"]]})),
         "data.result[0].values[1]: must be a time and a number in quotes, got [2, \"many\"]"),
        (json.dumps(answer({"metric": UTIL, "values": 5})),
         "data.result[0].values: must be a list, got 5"),
        (json.dumps(answer({"metric": {"pod": 5}, "values": []})),
         "data.result[0].metric: must be labels with texts, got a mapping"),
        (json.dumps(answer(series("DCGM_FI_DEV_GPU_UTIL", [50, 400], pod="a"))),
         'DCGM_FI_DEV_GPU_UTIL{pod="a"}: must be from 0 to 101, got 400'),
        (json.dumps(answer(series("up", [1], pod="a"))),
         "__name__: must have a metric such as DCGM_FI_DEV_GPU_UTIL or DCGM_FI_DEV_FB_USED, or be"
         " named after it (gpu_util_percent.json), got up"),
        (json.dumps(answer(series("", [1], pod="a"))),
         "__name__: must have a metric such as DCGM_FI_DEV_GPU_UTIL or DCGM_FI_DEV_FB_USED, or be"
         " named after it (gpu_util_percent.json), got (without a name)"),
        ('{"data":{"resultType":"matrix","result":[',
         "is not valid JSON at line 1, column 42: expecting value"),
        ('[5, {"resultType": 1}]', "[0]: must be an answer of Prometheus, got 5"),
    ],
)  # fmt: skip
def test_broken_answers(tmp_path, text, message):
    path = tmp_path / "answer.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_usage(str(path), "prometheus")
    assert str(caught.value).replace(f"{tmp_path}/", "") == f"answer.json: {message}"


def test_an_answer_without_series_says_so(tmp_path):
    assert usage_of(tmp_path, answer()).jobs.empty


# --- a real server


LOADS = {"train-0": (0, 40, 30000), "infer-1": (1, 7, 9000)}


class _Exporter(BaseHTTPRequestHandler):
    """Serves what dcgm-exporter serves."""

    def do_GET(self):
        lines = []
        for name, (number, util, used) in LOADS.items():
            labels = (
                f'gpu="{number}",UUID="GPU-{number}",modelName="NVIDIA H200",Hostname="node1",'
                f'container="main",namespace="ml",pod="{name}"'
            )
            lines += [
                f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {util}",
                f"DCGM_FI_DEV_FB_USED{{{labels}}} {used}",
                f"DCGM_FI_DEV_FB_FREE{{{labels}}} {143000 - used}",
                f"DCGM_FI_PROF_SM_ACTIVE{{{labels}}} {util / 200:.6f}",
                f"DCGM_FI_PROF_DRAM_ACTIVE{{{labels}}} NaN",
            ]
        body = ("\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        """Keep quiet."""


@contextmanager
def exporter():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Exporter)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def prometheus(folder, target):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        "scrape_configs: [{job_name: gpus, static_configs: "
        f"[{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    command = [
        shutil.which("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            server.terminate()


def asked(url, **parameters):
    query = urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(f"{url}?{query}", timeout=10) as reply:
            return json.load(reply)
    except OSError:  # not up yet
        return None


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")
def test_a_real_server(tmp_path):
    query = '{__name__=~"DCGM_FI_.*"}'
    with exporter() as target, prometheus(tmp_path, target) as url:
        counted, until = 'count_over_time(DCGM_FI_DEV_GPU_UTIL{pod="train-0"}[1m])', 0
        for _ in range(600):
            found = asked(f"{url}/query", query=counted)
            if found and found["data"]["result"]:
                until, number = found["data"]["result"][0]["value"]
                if int(number) >= 15:
                    break
            time.sleep(0.1)
        got = asked(f"{url}/query_range", query=query, start=until - 2, end=until, step=0.25)
        now = asked(f"{url}/query", query=query)
        refused = asked(f"{url}/query_range", query=query, start=until, end=until - 2, step=1)
    assert refused is None
    for document, least in ((got, 8), (now, 1)):
        usage = usage_of(tmp_path, document, name="answer.json")
        jobs = usage.jobs.set_index("job")
        assert sorted(jobs.index) == ["ml/infer-1", "ml/train-0"]
        for name, (_, util, used) in LOADS.items():
            job = jobs.loc[f"ml/{name}"]
            assert (job.gpu_util_mean, job.gpu_util_p95) == (util / 100, util / 100)
            assert (job.memory_mean_mib, job.card_mib, job.gpus) == (used, 143000, 1)
            assert job.sm_active_mean == pytest.approx(util / 200)
            assert np.isnan(job.dram_active_mean)
            assert job.samples >= least
            assert job.gpu_model == "NVIDIA H200"


def files():
    """Return sample files by name."""
    matrix = answer(
        series("DCGM_FI_DEV_GPU_UTIL", [5, 6], **gpu(0, **pod("a"))),
        series("DCGM_FI_DEV_FB_USED", [500, 600], **gpu(0, **pod("a"))),
    )
    vector = answer({"metric": UTIL, "value": [START, "40"]}, kind="vector")
    return {
        "gpus.json": json.dumps(matrix, indent=1).encode(),
        "now.json": json.dumps(vector).encode(),
        "windows.json": json.dumps([matrix, matrix]).encode(),
        "error.json": b'{"status":"error","errorType":"bad_data","error":"parse error"}',
    }


def test_damaged_files(tmp_path):
    read_damaged(tmp_path, "prometheus", files())
