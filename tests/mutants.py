"""Random changes of valid files of every kind that Dovetail reads, and their readers.

As a program it goes through many of one kind and prints what it found as JSON::

    python -m tests.mutants KIND COUNT SEED
"""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.advising.serving.fleet import plans_for
from dovetail.advising.serving.scenario import read_serving
from dovetail.advising.serving.server_results import result_data
from dovetail.advising.serving.words import ServingWords
from dovetail.formulations.budget import Budget
from dovetail.instances.checking.checker import check
from dovetail.instances.datasets import (
    DataSet,
    Measurement,
    Repository,
    SoloProfile,
    read_dataset,
    write_dataset,
)
from dovetail.instances.errors import DovetailError
from dovetail.instances.files import read_instance, read_plan, write_data
from dovetail.instances.importers.kernels import read_kernels, with_kernels
from dovetail.instances.importers.pairs import import_pairs
from dovetail.instances.importers.slurm import import_slurm
from dovetail.instances.instance import Instance
from dovetail.instances.traces import TraceJob, read_trace, write_trace
from dovetail.instances.traces.trace import Trace
from dovetail.measuring.campaign import read_campaign
from dovetail.papers.importers.gavel import gavel_data, import_gavel
from dovetail.papers.importers.lucid import import_lucid, lucid_data
from dovetail.papers.importers.miso import miso_data
from dovetail.papers.importers.parvagpu import parvagpu_data
from dovetail.papers.traces.muri import muri_stages
from dovetail.predictors.fitted.model_file import load_model, save_model
from dovetail.solver.policies import policy_named
from tests.data import example_data, plan_data
from tests.instances.profiler_files import export, table, trace
from tests.predictors.test_saved_models import GPU, answers, data_set, made

CPU_S = 20
"""Processor seconds that a reader may take of one file of a few kilobytes."""

MOST_MESSAGE = 2_000
MOST_MEMORY_MIB = 1024

JOBS = (
    TraceJob("a", 0.0, 1, 60.0),
    TraceJob("b", 30.5, 2, 100.5, "bert", 1.5, 2.0, "latency", "ann"),
)
DATA = DataSet(
    name="mine",
    profiles=(
        SoloProfile(
            workload="bert",
            gpu_model="V100",
            share=50,
            metrics={"sm_active": 0.5},
            metrics_variance={"sm_active": 0.01},
            throughput=10.0,
            memory_mib=3000.0,
            date="2026-11-21",
        ),
        SoloProfile(workload="dlrm", gpu_model="V100", family="d", batch_size=8, power_w=200.0),
    ),
    measurements=(
        Measurement(workloads=("bert", "dlrm"), gpu_model="V100", slowdown=(1.5, 1.25)),
        Measurement(
            workloads=("bert", "bert"), gpu_model="V100", share=(40, 60), slowdown=(2.0, 1.7)
        ),
        Measurement(workloads=("dlrm", "dlrm"), gpu_model="V100", slowdown=None),
    ),
)
PAIRS = """device,mode,gpus,job_a,job_b,slowdown_a,slowdown_b,status,note
A,shared,1,x,y,1.5,2.0,ok,
A,shared,1,y,y,,,oom,
B,,,x,z,1.1,1.2,,
"""
PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,600,2,1200,6c71a0
2017-10-09 07:02:55,1000,8,8000,ee9e8c
"""
PHILLY_LOG = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "ee9e8c",
            "jobid": job,
            "submitted_time": "2017-10-07 01:11:39",
            "user": "ce2f4c",
            "attempts": [
                {
                    "start_time": "2017-10-07 01:12:09",
                    "end_time": "2017-10-07 01:13:23",
                    "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
                }
            ],
        }
        for job in ("application_1", "application_2")
    ]
)
NAMED = {"arrival_s": "submit", "workers": "gpus", "duration_s": "seconds", "tenant": "user"}
OTHERS = """job,submit,gpus,seconds,user,state
7,2020-04-01 00:00:10,2,60.5,ann,done
8,2020-04-01 00:00:20,0,60,bob,done
"""
MURI = """job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,\
iteration_time,resource_time_0,resource_time_1,resource_time_2,priority
1,1,0,10,resnet,16,5000,1,500,100,300,0,1
2,4,1000,10,gpt,16,5000,1,500,100,300,90,1
"""
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,\
queue
11,uA,vcY,1,4,1,COMPLETED,2020-06-09 18:41:00,2020-06-09 18:41:00,2020-06-09 19:41:00,3600,0
12,uB,vcX,8,4,1,FAILED,2020-06-09 18:42:00,2020-06-09 18:43:00,2020-06-09 18:45:00,120,60
"""
OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,\
deletion_time,scheduled_time
a,4000,15258,1,220,V100M16|V100M32,BE,Running,110,310,110
b,4000,15258,1,1000,,LS,Pending,140,240,
"""
SPOT = """job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,\
job_type
7,13,A10,20,1,1,0,2764799,HP
8,57,A100-SXM4-80GB,15,0.5,16,9589663,41060,Spot
"""
TASKS = """j1,ps,2,Terminated,1000.0,5000.0,600.0,29.3,,
j1,worker,3,Terminated,1010.0,4010.0,600.0,29.3,50.0,T4
j2,tensorflow,1.0,Failed,900.0,960.0,600.0,29.3,100.0,MISC
"""
SWF = """; Version: 2.2
1    0  5  600  16 -1 -1 16 -1 -1 1 7 1 1 1 1 -1 -1
2   60 -1   -1  -1 -1 -1  4 -1 -1 5 7 1 1 1 1 -1 -1
"""
GAVEL = {
    "v100": {
        "('ResNet-18 (batch size 16)', 1)": {
            "null": 10.0,
            "('ResNet-18 (batch size 16)', 1)": [5.0, 5.0],
            "('LM', 1)": [8.0, 15.0],
        },
        "('LM', 1)": {"null": 20.0, "('LM', 1)": [0.0, 0.0]},
        "('LM', 2)": {"null": 36.0},
    }
}
GAVEL_TRACE = """LM\tpython lm.py\t--steps\t1\t1000\t0\t1
LM\tpython lm.py\t--steps\t1\t100000\t60\t2
"""
LUCID = {
    "single_data.csv": """model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem
R,C,64,0,5000,80,40,3000
P,L,64,1,900,20,5,1500
""",
    "colocate_info.csv": """model1,dataset1,gpu_num1,batchsize1,amp1,speed1,\
model2,dataset2,gpu_num2,batchsize2,amp2,speed2
R,C,1,64,0,0.95,P,L,1,64,1,0.9
R,C,1,64,0,0.55,R,C,1,64,0,0.55
""",
}
MISO = {
    "solo_features.csv": """model,batch,sm_util_pct,mem_util_pct,power_w,memory_mb
bert,8,90,40,250,9000
""",
    "mig_iter_time.csv": """model,batch,mig_g,mig_mem_gb,iter_s_median
bert,8,7,40,0.1
bert,8,2,10,0.3
""",
}
PARVAGPU = {
    "bert.csv": """Mig instance,Batch size,Workload Number,Throughput
7,8,1,100
7,8,2,60
7,8,3,0
"""
}
SLURM_JOBS: dict[str, Any] = {
    "jobs": [
        {
            "job_id": 7,
            "job_state": "RUNNING",
            "name": "train",
            "user_name": "ann",
            "cluster": "c",
            "partition": "p",
            "nodes": "n[1-2]",
            "gres_detail": ["gpu:a100:1(IDX:1)", "gpu:a100:2(IDX:0-1)"],
            "submit_time": {"set": True, "infinite": False, "number": 1000},
            "last_sched_evaluation": 2000,
            "start_time": 1500,
            "end_time": 5100,
            "time_limit": 60,
        },
        {
            "job_id": 8,
            "job_state": ["PENDING"],
            "state_reason": "Resources",
            "user_name": "bob",
            "tres_per_node": "gres:gpu:a100:1",
            "node_count": 2,
        },
    ]
}
SLURM_NODES = """NodeName=n1 Arch=x86_64 CoresPerSocket=1
   ActiveFeatures=ib
   Gres=gpu:a100:2(S:0-1),nvme:1
   State=MIXED ThreadsPerCore=1
   Partitions=p,q

NodeName=n2
   ActiveFeatures=ib
   Gres=gpu:a100:2
   State=IDLE
   Partitions=p
"""
TOPOLOGY = "SwitchName=s1 Nodes=n[1,3]\nSwitchName=top Switches=s[1-2]\n"
CAMPAIGN = {
    "format": "dovetail-campaign/1",
    "name": "first",
    "workloads": ["convnet", {"name": "own", "program": "own.py"}],
    "stages": [{"measure": "solos", "shares": [50]}, {"measure": "pairs", "repeats": 2}],
    "windows": {"settle_s": 1.0},
}
POLICIES = (
    *("dovetail:patience_s=60", "fifo", "tiresias", "gavel:objective=makespan", "lucid"),
    *("castor", "tensorshare:selection=s2", "muri:priority=shortest", "random", "horus"),
)


class Kind(NamedTuple):
    """A kind of file.

    Attributes
    ----------
    file : str
        The file that is changed.
    make : callable
        Writes valid files into a folder.
    read : callable
        Reads them.
    """

    file: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]


def _texts(**files: str) -> Callable[[Path], object]:
    named = {name.replace("__", "."): text for name, text in files.items()}
    return _written(named)


def _written(files: Mapping[str, str]) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        for name, text in files.items():
            (folder / name).write_text(text)

    return make


def _read_instance(path: Path) -> object:
    return read_instance(path).to_data()


def _read_plan(folder: Path) -> object:
    return check(Instance.from_data(example_data()), read_plan(folder / "a.json"))


def _read_data(folder: Path) -> object:
    data = read_dataset(folder)
    return [data.instance(model, 1, memory_mib=16000.0) for model in data.gpu_models]


def _read_repository(folder: Path) -> object:
    return Repository(folder / "r.db").data_set()


def _read_slurm(folder: Path) -> object:
    return import_slurm(
        {"a100": 40960.0},
        jobs=str(folder / "jobs"),
        nodes=str(folder / "nodes"),
        topology=str(folder / "topology"),
    )


def _read_gavel(folder: Path) -> object:
    path = str(folder / "throughputs.json")
    return gavel_data(path), import_gavel(path, "v100", 2)


def _read_lucid(folder: Path) -> object:
    return lucid_data(str(folder)), import_lucid(str(folder), 2)


def _make_model(folder: Path) -> None:
    save_model(made("coscheml")[0], folder / "m")


def _read_model(folder: Path) -> object:
    workloads = data_set().workloads(GPU)
    return answers(load_model(folder / "m"), workloads)


_DATA = (lambda folder: write_dataset(DATA, folder), _read_data)
_SLURM = (
    _texts(jobs=json.dumps(SLURM_JOBS), nodes=SLURM_NODES, topology=TOPOLOGY),
    _read_slurm,
)
_GAVEL = _texts(throughputs__json=json.dumps(GAVEL), simulation_throughputs__json=json.dumps(GAVEL))


_RESULT = _texts(
    r__json=json.dumps(
        {
            "request_rate": 4.0,
            "max_concurrency": None,
            "failed": 0,
            "p99_ttft_ms": 80.5,
            "p99_tpot_ms": 14,
            "p99_e2el_ms": 3000.0,
        }
    )
)
SERVING = {
    "format": "dovetail-serving/1",
    "name": "two models",
    "gpus": [{"model": "A100-80GB", "cost_per_hour": 2.0}, {"model": "X", "memory_mib": 40000}],
    "models": {
        "chat": {
            "requests_per_s": 5,
            "p99_ms": {"ttft": 600, "tpot": 60},
            "gpu_memory_utilization": 0.5,
            "runs": [
                {"file": "r.json", "gpu": "A100-80GB", "sm_active": 0.3},
                {
                    "gpu": "A100-80GB",
                    "requests_per_s": 9,
                    "p99_ms": {"ttft": 300, "tpot": 30},
                    "sm_active": 0.5,
                },
            ],
        },
        "tuned": {"like": "chat", "requests_per_s": 2.5},
        "code": {
            "concurrency": 8,
            "p99_ms": {"e2el": 900},
            "memory_mib": 9000.0,
            "startup_mib": 500,
            "runs": [{"gpu": "A100-80GB", "concurrency": 4, "p99_ms": {"e2el": 500}}],
        },
    },
    "together": [
        {
            "models": ["chat", "code"],
            "gpu": "A100-80GB",
            "share": [60, 40],
            "loads": [5, 8],
            "p99_ms": [{"ttft": 500, "tpot": 40}, {"e2el": 800}],
        }
    ],
}


def _plan_servers(path: Path) -> object:
    serving = read_serving(str(path))
    plans, reasons = plans_for(serving, Budget.of(5))
    return ServingWords(serving, plans, reasons, str(path)).data()


def _trace(name: str, text: str, also: Callable[[Path], object] = read_trace) -> Kind:
    return Kind(
        name,
        _written({name: text}),
        lambda folder: (read_trace(folder / name), also(folder / name)),
    )


def _profiler(name: str, write: Callable[[Path], object]) -> Kind:
    def read(folder: Path) -> object:
        return with_kernels(DATA, "a", "V100", read_kernels(folder / name), iterations=2)

    return Kind(name, write, read)


KINDS: Mapping[str, Kind] = {
    "instance.json": Kind(
        "a.json",
        lambda folder: write_data(example_data(), folder / "a.json"),
        lambda folder: _read_instance(folder / "a.json"),
    ),
    "instance.yaml": Kind(
        "a.yaml",
        lambda folder: write_data(example_data(), folder / "a.yaml"),
        lambda folder: _read_instance(folder / "a.yaml"),
    ),
    "instance.json.gz": Kind(
        "a.json.gz",
        lambda folder: write_data(example_data(), folder / "a.json.gz"),
        lambda folder: _read_instance(folder / "a.json.gz"),
    ),
    "plan": Kind("a.json", lambda folder: write_data(plan_data(), folder / "a.json"), _read_plan),
    "trace.csv": Kind(
        "t.csv",
        lambda folder: write_trace(folder / "t.csv", Trace("t", JOBS)),
        lambda folder: read_trace(folder / "t.csv"),
    ),
    "trace.parquet": Kind(
        "t.parquet",
        lambda folder: write_trace(folder / "t.parquet", Trace("t", JOBS)),
        lambda folder: read_trace(folder / "t.parquet"),
    ),
    "trace of others": Kind(
        "o.csv",
        _written({"o.csv": OTHERS}),
        lambda folder: read_trace(folder / "o.csv", columns=NAMED),
    ),
    "philly": _trace("p.csv", PHILLY),
    "philly log": Kind(
        "cluster_job_log",
        _texts(cluster_job_log=PHILLY_LOG),
        lambda folder: read_trace(folder / "cluster_job_log", "philly-log"),
    ),
    "muri": _trace("m.csv", MURI, muri_stages),
    "helios": _trace("h.csv", HELIOS),
    "alibaba 2020": _trace("t.csv", TASKS),
    "alibaba 2023": _trace("o.csv", OPENB),
    "alibaba 2026": _trace("s.csv", SPOT),
    "swf": _trace("l.swf", SWF),
    "gavel trace": Kind(
        "g.trace",
        lambda folder: (_GAVEL(folder), (folder / "g.trace").write_text(GAVEL_TRACE)),
        lambda folder: read_trace(folder / "g.trace"),
    ),
    "profiles.csv": Kind("profiles.csv", *_DATA),
    "pairs.csv": Kind("pairs.csv", *_DATA),
    "pairs.parquet": Kind(
        "pairs.parquet", lambda folder: write_dataset(DATA, folder, parquet=True), _read_data
    ),
    "repository": Kind(
        "r.db",
        lambda folder: Repository(folder / "r.db").append(DATA.profiles, DATA.measurements),
        _read_repository,
    ),
    "import pairs": Kind(
        "x.csv", _written({"x.csv": PAIRS}), lambda folder: import_pairs(str(folder / "x.csv"), 2)
    ),
    "nsight export": _profiler("report.sqlite", export),
    "nsight table": _profiler("report_cuda_gpu_trace.csv", table),
    "torch trace": _profiler("trace.json", trace),
    "slurm jobs": Kind("jobs", *_SLURM),
    "slurm nodes": Kind("nodes", *_SLURM),
    "slurm topology": Kind("topology", *_SLURM),
    "gavel": Kind("throughputs.json", _GAVEL, _read_gavel),
    "lucid profiles": Kind("single_data.csv", _written(LUCID), _read_lucid),
    "lucid pairs": Kind("colocate_info.csv", _written(LUCID), _read_lucid),
    "miso": Kind("mig_iter_time.csv", _written(MISO), lambda folder: miso_data(str(folder))),
    "parvagpu": Kind("bert.csv", _written(PARVAGPU), lambda folder: parvagpu_data(str(folder))),
    "model": Kind("m", _make_model, _read_model),
    "campaign": Kind(
        "c.yaml",
        lambda folder: write_data(CAMPAIGN, folder / "c.yaml"),
        lambda folder: read_campaign(folder / "c.yaml"),
    ),
    "serving": Kind(
        "s.yaml",
        lambda folder: (write_data(SERVING, folder / "s.yaml"), _RESULT(folder)),
        lambda folder: _plan_servers(folder / "s.yaml"),
    ),
    "server result": Kind("r.json", _RESULT, lambda folder: result_data(folder / "r.json")),
    "policy options": Kind(
        "policy",
        _texts(policy="\n".join(POLICIES)),
        lambda folder: [
            policy_named(line)
            for line in (folder / "policy").read_text(errors="replace").splitlines()
            if not line.startswith("python:")
        ],
    ),
}

_ODD = (
    *(b"", b"0", b"-1", b"0.5", b"1e400", b"-0.0", b"nan", b"NaN", b"inf", b"Infinity", b"null"),
    *(b"9" * 400, b"9" * 5000, b"300000000", b"1-200000000", b"0x10", b"1_0", b"true", b"''"),
    *(b'""', b"[]", b"{}", b"[" * 2000, b"{" * 2000, b"(" * 2000, b"x" * 3000, b"a.b", b"\x00"),
    *(b"\n", b"\r", b",", b";", b"\t", b":", b"=", b'"', b"'", b"\\", b"&a ", b"*a", b"!t ", b"|"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xe2\x80\xae", b"\xed\xa0\x80", b"%s{}{0}"),
    *("名\u0661\u200b".encode(), b"2026-11-21T10:00:00+00:00", b"0001-01-01", b"[0-99999999]"),
)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return a content with one to four changes, mostly inside compressed parts."""
    if content[:2] == b"\x1f\x8b" and draw.random() < 0.7:
        return gzip.compress(mutated(gzip.decompress(content), draw), mtime=0)
    if content[:2] == b"PK" and draw.random() < 0.8:
        return _zip_mutated(content, draw)
    for _ in range(draw.randint(1, 4)):
        content = _changed(content, draw)
    return content


def _zip_mutated(content: bytes, draw: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(sorted(parts))
    match draw.randrange(6):
        case 0:
            del parts[name]
        case 1:
            parts[draw.choice(["x", "../x", "/x", f"{name}x"])] = parts[name]
        case _:
            parts[name] = mutated(parts[name], draw)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, part in parts.items():
            archive.writestr(each, part)
    return out.getvalue()


def _changed(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content) + 1)
    end = min(len(content), at + draw.choice((0, 1, 2, 4, 8, 40)))
    match draw.randrange(8):
        case 0:
            return content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
        case 1:
            return content[:at] + content[end:]
        case 2:
            return content[:at] + content[at:end] * draw.randint(2, 60) + content[end:]
        case 3:
            return content[:at] + draw.choice(_ODD) + content[end:]
        case 4:
            return content[:at] if draw.random() < 0.3 else content[:at] + draw.randbytes(4)
        case 5:
            lines = content.split(b"\n")
            draw.shuffle(lines)
            return b"\n".join(lines)
        case _:
            return _word_changed(content, at, draw)


def _word_changed(content: bytes, at: int, draw: random.Random) -> bytes:
    """Replace the word or the number at a place."""
    ends = b' \t\n,;:=[]{}()"'
    first, last = at, at
    while first > 0 and content[first - 1] not in ends:
        first -= 1
    while last < len(content) and content[last] not in ends:
        last += 1
    other = content[first:last] * 2 if draw.random() < 0.1 else draw.choice(_ODD)
    return content[:first] + other + content[last:]


class HangError(BaseException):
    """A reader has taken too long."""


def judged(kind: Kind, folder: Path) -> str:
    """Read a file; return a fault unless it was read or refused in one short line."""
    try:
        kind.read(folder)
    except DovetailError as error:
        text = str(error)
        if len(text) > MOST_MESSAGE + len(str(folder)) or not text.isprintable():
            return f"message: {text[:200]!r}, {len(text)} characters"
    except HangError:
        return "hang"
    except Exception:
        return traceback.format_exc()
    return ""


def fuzz(name: str, count: int, seed: int) -> list[tuple[int, str]]:
    """Return the faults found in ``count`` changed files, with the number of each."""
    kind, found = KINDS[name], []
    with tempfile.TemporaryDirectory() as base:
        valid = Path(base, "valid")
        valid.mkdir()
        kind.make(valid)
        content = (valid / kind.file).read_bytes()
        assert judged(kind, valid) == ""
        for number in range(seed, seed + count):
            folder = Path(base, "d")
            shutil.copytree(valid, folder)
            (folder / kind.file).write_bytes(mutated(content, random.Random(f"{name} {number}")))
            trouble = judged(kind, folder)
            if trouble:
                found.append((number, trouble))
            shutil.rmtree(folder)
    return found


def _hang(number: int, frame: object) -> None:
    raise HangError


def _watched(name: str, count: int, seed: int) -> list[tuple[int, str]]:
    """Fuzz file by file with a limit of processor time for each."""
    signal.signal(signal.SIGPROF, _hang)
    kind_read = KINDS[name].read

    def read(folder: Path) -> object:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            return kind_read(folder)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    KINDS[name] = KINDS[name]._replace(read=read)  # type: ignore[index]
    return fuzz(name, count, seed)


if __name__ == "__main__":
    troubles = _watched(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"kind": sys.argv[1], "peak_mib": round(peak_mib), "troubles": troubles}))
