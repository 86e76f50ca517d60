"""Isolated pairs come from measurements: of the pair itself, or of others."""

import math
from statistics import stdev

import numpy as np
import pytest

from dovetail.instances._record import IDLE
from dovetail.instances.datasets import Measurement
from dovetail.instances.instance import Instance
from dovetail.predictors import predict
from dovetail.predictors.fitted.model_file import load_model, save_model
from dovetail.predictors.fitted.repeats import repeats_of, t_quantile
from dovetail.predictors.fitted.training import fit
from tests.predictors.synthetic import GPU, synthetic

UTIL = 0.5
SERVICES, TRAININGS = ("f0 b0", "f1 b0"), ("f2 b0", "f3 b0")


def isolated(first, behind, slowdown, p99=None):
    return Measurement(
        workloads=(behind, first),
        gpu_model=GPU,
        share=(IDLE, None),
        slowdown=slowdown and slowdown[::-1],
        p99=None if p99 is None else (None, p99),
    )


def model(tmp_path, *measured):
    """Return a model of synthetic pairs, and of these, as it comes from its file."""
    data = synthetic()
    profiles = tuple(
        one.replace(metrics=one.metrics.replace(gpu_util=UTIL)) for one in data.profiles
    )
    data = data.replace(profiles=profiles, measurements=(*data.measurements, *measured))
    save_model(fit(data), tmp_path / "m")
    return load_model(tmp_path / "m")


def problem(**changes):
    node = {"id": "n", "gpu_count": 2, "gpu": {"model": GPU, "memory_mib": 8000}}
    training = {"memory_mib": 1000, "isolation": "blocks"}
    workloads = {name: {"memory_mib": 1000} for name in SERVICES}
    return Instance.from_data(
        {
            "name": "p",
            "cluster": {"nodes": [node], "shares": ["idle"]},
            "workloads": workloads | dict.fromkeys(TRAININGS, training),
            "jobs": [
                *({"id": n, "workload": n, "priority": "latency", "gsla": 1.2} for n in SERVICES),
                *({"id": name, "workload": name} for name in TRAININGS),
            ],
            **changes,
        }
    )


def found(instance, predictor, **options):
    """Return the isolated entries by pair."""
    entries = predict(instance, predictor, **options).slowdowns
    return {one.pair: one for one in entries if IDLE in one.shares}


def test_a_measured_pair_is_as_it_was_measured_and_too_few_say_nothing_of_others(tmp_path):
    measured = [
        isolated("f0 b0", "f2 b0", slowdown, 1.1) for slowdown in ((1.02, 2.2), (1.04, 2.4))
    ]
    failed = isolated("f0 b0", "f3 b0", None)
    pairs = found(problem(), model(tmp_path, *measured, failed), confidence=0.9)
    one = pairs["f0 b0", "f2 b0"]
    first, behind = repeats_of((1.02, 1.04)), repeats_of((2.2, 2.4))
    assert (one.source, one.gpu_model, one.shares) == ("measured", GPU, (None, IDLE))
    assert one.slowdown == pytest.approx((first.mean, behind.mean), abs=1e-4)
    assert one.upper == pytest.approx((first.upper, behind.upper), abs=1e-4)
    assert one.p99[0] == pytest.approx(repeats_of((1.1, 1.1)).upper, abs=1e-4)
    assert pairs["f0 b0", "f3 b0"].slowdown is None
    for behind in TRAININGS:
        other = pairs["f1 b0", behind]
        # Tally's published means: 1.072, and 1.25 / (1 - 0.5).
        assert (other.source, other.slowdown, other.upper) == ("estimate", (1.072, 2.5), None)


def test_others_are_estimated_by_how_much_the_measured_ones_differ(tmp_path):
    slowdowns = {
        ("f0 b0", "f2 b0"): (1.2, 4.0),
        ("f0 b0", "f3 b0"): (1.3, 3.0),
        ("f1 b0", "f2 b0"): (1.1, 5.0),
    }
    measured = [isolated(*pair, slowdown) for pair, slowdown in slowdowns.items()]
    one = found(problem(), model(tmp_path, *measured), confidence=0.8)["f1 b0", "f3 b0"]
    assert (one.source, one.confidence) == ("estimate", 0.8)
    for k, usual in enumerate((1.072, 2.5)):
        logs = [math.log(each[k] / usual) for each in slowdowns.values()]
        mean = usual * math.exp(np.mean(logs))
        wide = t_quantile(2, 0.8) * stdev(logs) * math.sqrt(1 + 1 / 3)
        assert one.slowdown[k] == pytest.approx(mean, abs=1e-4)
        assert one.upper[k] == pytest.approx(mean * math.exp(wide), abs=2e-4)
    # No p99 was measured: that of the slowdown is used.
    assert one.p99 == one.upper


def test_an_entry_of_the_instance_stays(tmp_path):
    given = {"pair": ["f0 b0", "f2 b0"], "share": [None, "idle"], "slowdown": [1.5, 9.0]}
    predictor = model(tmp_path, isolated("f0 b0", "f2 b0", (1.02, 2.2)))
    assert found(problem(slowdowns=[given]), predictor)["f0 b0", "f2 b0"].slowdown == (1.5, 9.0)
