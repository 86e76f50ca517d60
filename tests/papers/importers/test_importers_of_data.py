"""Importers of data sets: hand-made files with known records, broken files, published counts."""

from __future__ import annotations

from collections import Counter

import pytest

from dovetail.instances.errors import InputError
from dovetail.instances.metrics import Metrics
from dovetail.papers.importers.gavel import gavel_data, import_gavel
from dovetail.papers.importers.lucid import MEMORY_MIB, import_lucid, lucid_data
from dovetail.papers.importers.miso import miso_data
from dovetail.papers.importers.parvagpu import parvagpu_data
from tests.instances.test_importers import slowdowns_of
from tests.papers.importers.test_importers import (
    A2,
    COLOCATED,
    DATA,
    DEVICE,
    SOLO,
    A,
    B,
    gavel_file,
    lucid_folder,
    published,
)


def pairs_of(data):
    return [(found.workloads, found.slowdown) for found in data.measurements]


def error_of(read, path):
    with pytest.raises(InputError) as error:
        read(str(path))
    return str(error.value).replace(str(path), "D")


# --- gavel: "a" does 10 it/s alone, "b" 4; see test_importers


def test_gavel_pairs_in_both_orders_are_one_measurement(tmp_path):
    data = gavel_data(gavel_file(tmp_path))
    assert pairs_of(data) == [
        (("a", "a"), (2.5, pytest.approx(10 / 6))),  # unequal copies are kept
        (("a", "b"), (2, 2)),
        (("b", "b"), None),
    ]
    profiles = [(p.workload, p.workers, p.throughput, p.gpu_model) for p in data.profiles]
    assert profiles == [("a", 1, 10, "k80"), ("b", 1, 4, "k80"), ("a", 2, 16, "k80")]
    assert {record.source for record in (*data.profiles, *data.measurements)} == {"Gavel"}


def test_gavel_orders_that_differ_are_two_measurements(tmp_path):
    device = {A: DEVICE[A], B: {"null": 4.0, A: [3.0, 5.0]}}
    data = gavel_data(gavel_file(tmp_path, device))
    assert pairs_of(data)[1:] == [(("a", "b"), (2, 2)), (("b", "a"), (pytest.approx(4 / 3), 2))]


def test_gavel_family_and_batch_size_are_in_the_name(tmp_path):
    name = "('ResNet-18 (batch size 16)', 1)"
    data = gavel_data(
        gavel_file(tmp_path, {name: {"null": 3.0}, A: {"null": 10.0}, A2: DEVICE[A2]})
    )
    found = [(p.family, p.batch_size) for p in data.profiles]
    assert found == [("ResNet-18", 16), ("a", None), ("a", None)]
    assert data.families == {"ResNet-18 (batch size 16)": "ResNet-18", "a": "a"}


def test_gavel_slowdowns_out_of_range_are_reported_with_their_place(tmp_path):
    path = gavel_file(tmp_path, {A: {"null": 1.0, A: [1e4, 1.0]}})
    place = "D: k80[('a', 1)[('a', 1)].slowdown[0]]"
    assert error_of(gavel_data, path) == f"{place}: must be >= 0.001, got 0.0001"


@published
def test_gavel_published_tables_agree_with_the_instances():
    path = str(DATA / "gavel/simulation_throughputs.json.gz")
    data = gavel_data(path)
    assert data.gpu_models == ("k80", "p100", "v100")
    assert len(data.families) == 26
    assert len(set(data.families.values())) == 7
    counts = Counter((found.gpu_model, found.failed) for found in data.measurements)
    # As in gavel_pairs.csv: 351 unordered pairs a device.
    assert counts == {
        **{("k80", False): 306, ("k80", True): 45},
        **{("p100", False): 340, ("p100", True): 11},
        **{("v100", False): 330, ("v100", True): 21},
    }
    for device in data.gpu_models:
        made, imported = data.instance(device, 13), import_gavel(path, device, 13)
        assert slowdowns_of(made) == slowdowns_of(imported)
        rates = {name: w.throughput for name, w in made.workloads.items()}
        assert rates == {name: imported.workloads[name].throughput for name in rates}


# --- lucid: see test_importers


def test_lucid_types_have_their_figures_and_families(tmp_path):
    data = lucid_data(lucid_folder(tmp_path))
    profile = data.profiles[1]
    assert (profile.workload, profile.family, profile.batch_size) == ("s D b8 amp", "s", 8)
    assert profile.metrics == Metrics(gpu_util=1.0, mem_util=0.755)
    assert (profile.throughput, profile.memory_mib, profile.gpu_model) == (10, 3000, "RTX 3090")
    assert pairs_of(data)[:2] == [
        (("r D b8", "r D b8"), (1.25, 5)),
        (("s D b8 amp", "r D b8"), (0.8, 2)),
    ]
    assert pairs_of(data)[4] == (("t D b8", "r D b8"), None)


def test_lucid_speeds_out_of_range_are_reported_with_their_line(tmp_path):
    lucid_folder(tmp_path, SOLO, COLOCATED.replace("0.8,r", "8000,r"))
    message = error_of(lucid_data, tmp_path)
    assert message.startswith("D/colocate_info.csv.gz: line 2: slowdown[0]: must be >= 0.001, got")


@published
def test_lucid_published_tables_agree_with_the_instance():
    data = lucid_data(str(DATA / "lucid"))
    imported = import_lucid(str(DATA / "lucid"), 26)
    assert (len(data.profiles), len(data.measurements)) == (66, 1388)
    assert len(set(data.families.values())) == 14
    made = data.instance("RTX 3090", 26, memory_mib=MEMORY_MIB)
    assert made.slowdowns == imported.slowdowns
    assert made.workloads == imported.workloads


# --- miso: "m" alone on two slices and on the whole GPU; "n" was not timed there

FEATURES = """model,batch,sm_util_pct,mem_util_pct,power_w,memory_mb
m,2,50,25,160.5,6347.0
n,4,20,10,100,1000
"""
TIMES = """model,batch,mig_g,mig_mem_gb,n,iter_s_median,iter_s_mean
m,2,2,10,100,0.5,0.6
m,2,7,40,100,0.25,0.3
n,4,3,20,100,0.2,0.2
"""


def miso_folder(folder, features=FEATURES, times=TIMES):
    (folder / "solo_features.csv").write_text(features)
    (folder / "mig_iter_time.csv").write_text(times)
    return folder


def test_miso_slices_are_gpu_models(tmp_path):
    data = miso_data(str(miso_folder(tmp_path)))
    assert data.measurements == ()
    assert [(p.workload, p.gpu_model, p.throughput, p.power_w) for p in data.profiles] == [
        ("m b2", "A100-40GB MIG 2g.10gb", 2, None),
        ("m b2", "A100-40GB", 4, 160.5),
        ("n b4", "A100-40GB MIG 3g.20gb", 5, None),
        ("n b4", "A100-40GB", None, 100),
    ]
    whole = data.profiles[1]
    assert (whole.family, whole.batch_size, whole.memory_mib) == ("m", 2, 6347)
    assert whole.metrics == Metrics(gpu_util=0.5, mem_util=0.25)
    assert data.profiles[0].metrics is None


@pytest.mark.parametrize(
    ("features", "times", "message"),
    [
        (
            FEATURES.replace("m,2,50", "m,2,150"),
            TIMES,
            "solo_features.csv: line 2: sm_util_pct: mus",
        ),
        (
            FEATURES,
            TIMES.replace("0.25", "0"),
            "mig_iter_time.csv: line 3: iter_s_median: must be >",
        ),
        (FEATURES, TIMES.replace("mig_g", "g"), "mig_iter_time.csv: line 1: must have the columns"),
        (
            FEATURES,
            TIMES.replace("m,2,2", "m,two,2"),
            "mig_iter_time.csv: line 2: batch: must be a",
        ),
    ],
)
def test_miso_says_where_the_tables_are_broken(tmp_path, features, times, message):
    assert error_of(miso_data, miso_folder(tmp_path, features, times)).startswith(f"D/{message}")


@published
def test_miso_published_tables_give_their_profiles():
    data = miso_data(str(DATA / "miso"))
    counts = Counter(profile.gpu_model.removeprefix("A100-40GB") for profile in data.profiles)
    assert counts == {
        "": 33,
        **{" MIG 4g.20gb": 32, " MIG 3g.20gb": 32, " MIG 2g.10gb": 28, " MIG 1g.5gb": 21},
    }
    bert = next(p for p in data.profiles if (p.workload, p.gpu_model) == ("bert b2", "A100-40GB"))
    assert (bert.throughput, bert.power_w) == (pytest.approx(1 / 0.0472), 160.56)


# --- parvagpu: one process does 100 samples/s in batches of 4, two do 80 each, three do not run

MODEL = """Mig instance,Batch size,Workload Number,Throughput,Latency
1,4,1,100,0.04
1,4,2,80,0.05
1,4,3,0,0
7,8,1,0,0
7,8,2,0,0
"""


def parvagpu_folder(folder, model=MODEL):
    (folder / "net.csv").write_text(model)
    (folder / "SLO_latency.csv").write_text("1,2,3\n")
    return folder


def test_parvagpu_processes_are_equal_workloads(tmp_path):
    data = parvagpu_data(str(parvagpu_folder(tmp_path)))
    (profile,) = data.profiles  # what did not run alone is left out
    assert (profile.workload, profile.family, profile.batch_size) == ("net inference b4", "net", 4)
    assert profile.throughput == 25  # iterations/s
    assert profile.gpu_model == "A100-80GB MIG 1g.10gb"
    name = profile.workload
    assert pairs_of(data) == [((name,) * 2, (1.25, 1.25)), ((name,) * 3, None)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            MODEL.replace("7,8,1", "5,8,1"),
            "net.csv: line 5: Mig instance: must be one of 1, 2, 3, 4, 7, got 5",
        ),
        (
            MODEL.replace("7,8,2,0", "7,8,2,9"),
            "net.csv: line 6: Throughput: 2 processes ran, so that one must have a throughput",
        ),
        (
            MODEL.replace("1,4,2,", "1,4,1e30,"),
            "net.csv: line 3: Workload Number: must be <= 100, got 1e+30",
        ),
        (MODEL.replace("100", "-1"), "net.csv: line 2: Throughput: must be a finite number >= 0"),
        (MODEL.replace("Mig instance", "MIG"), "net.csv: line 1: must have the columns"),
        ("", "net.csv: line 1: must have the columns"),
    ],
)
def test_parvagpu_says_where_the_tables_are_broken(tmp_path, model, message):
    assert error_of(parvagpu_data, parvagpu_folder(tmp_path, model)).startswith(f"D/{message}")


def test_parvagpu_folder_without_tables_is_reported(tmp_path):
    assert error_of(parvagpu_data, tmp_path) == "D: must have a file MODEL.csv for each model"


@published
def test_parvagpu_published_tables_give_their_measurements():
    data = parvagpu_data(str(DATA / "parvagpu"))
    # 728 of 2,475 rows are zero: 75 configurations did not run alone, nor then together (375).
    assert len(data.profiles) == 495 - 75
    assert len(data.measurements) == 4 * 420
    assert sum(found.failed for found in data.measurements) == 728 - 375
    assert {len(found.workloads) for found in data.measurements} == {2, 3, 4, 5}
    assert len(set(data.families.values())) == 11
    made = data.instance("A100-80GB", 2)
    assert made.cluster.max_jobs_per_gpu == 5
