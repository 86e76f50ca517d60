"""The feature study on numbers that can be checked by hand, and on a published data set."""

import json

import numpy as np
import pytest

from dovetail.instances.datasets import DataSet
from dovetail.instances.errors import InputError
from dovetail.papers.studies.feature_study import feature_study, gini


def data_set(profiles, measured):
    """Return a data set of profiles by name, and pairs with their slowdowns."""
    return DataSet.from_data(
        {
            "name": "tiny",
            "profiles": [
                {"workload": name, "gpu_model": "V100", "metrics": metrics}
                for name, metrics in profiles.items()
            ],
            "measurements": [
                {"workloads": list(pair), "gpu_model": "V100", "slowdown": list(slowdown)}
                for pair, slowdown in measured.items()
            ],
        }
    )


@pytest.fixture(scope="module")
def study():
    # The slowdown is 1 + sm_active; mem_util is sm_active again, a little off; sm_occupancy is
    # the same of both; dram_active grows where sm_active falls.
    profiles = {
        "a": {"sm_active": 0.2, "mem_util": 0.2, "sm_occupancy": 0.5, "dram_active": 0.8},
        "b": {"sm_active": 0.6, "mem_util": 0.7, "sm_occupancy": 0.5, "dram_active": 0.4},
    }
    measured = {("a", "a"): (1.2, 1.2), ("a", "b"): (1.2, 1.6), ("b", "b"): (1.6, 1.6)}
    return feature_study(data_set(profiles, measured))


def test_correlations(study):
    found = {feature.name: feature for feature in study.features}
    assert list(found) == [
        "sm_active",
        "sm_occupancy",
        "dram_active",
        "mem_util",
        "share",
    ]
    assert study.rows == 6
    assert found["sm_active"].pearson_own == pytest.approx(1)
    assert found["sm_active"].spearman_own == pytest.approx(1)
    assert found["dram_active"].pearson_own == pytest.approx(-1)
    # Rows (own, other): aa, ab, bb, aa, ba, bb. With a = -1 and b = 1 the products of own and
    # other are 1, -1, 1, 1, -1, 1, and the mean of that is 1/3.
    assert found["sm_active"].pearson_other == pytest.approx(1 / 3)
    assert found["sm_occupancy"].pearson_own is None


def test_similarity(study):
    names = [feature.name for feature in study.features]
    sm, occupancy, dram, mem = (
        names.index(n) for n in ("sm_active", "sm_occupancy", "dram_active", "mem_util")
    )
    # Own is a in three rows and b in three: (0.2 * 0.8 + 0.6 * 0.4) / (|0.2, 0.6| |0.8, 0.4|)
    # = 0.4 / sqrt(0.4 * 0.8) = 0.7071
    assert study.similarity[sm][dram] == pytest.approx(np.sqrt(0.5))
    # (0.04 + 0.42) / sqrt(0.4 * 0.53) = 0.99905
    assert study.similarity[sm][mem] == pytest.approx(0.46 / np.sqrt(0.4 * 0.53))
    assert study.similarity[sm][sm] == pytest.approx(1)
    assert study.centred[sm][dram] == pytest.approx(-1)
    assert study.centred[sm][occupancy] is None


def test_the_paper_s_rule(study):
    assert study.kept == ("sm_active", "dram_active")
    assert {feature.name: feature.dropped for feature in study.features if feature.dropped} == {
        "sm_occupancy": "never varies",
        "mem_util": "similar to sm_active",
        "share": "never varies",
    }


def test_weak_correlation():
    profiles = {
        name: {"sm_active": value} for name, value in zip("abc", (0.1, 0.2, 0.3), strict=True)
    }
    # Own a, b, c and the slowdowns 1.2, 1.5, 1.2: nothing of a straight line.
    measured = {("a", "a"): (1.2, 1.2), ("b", "b"): (1.5, 1.5), ("c", "c"): (1.2, 1.2)}
    found = feature_study(data_set(profiles, measured), ["sm_active"])
    assert found.features[0].pearson_own == pytest.approx(0)
    assert found.features[0].dropped == "correlation below 0.4"
    assert found.kept == ()


def test_slowdowns(study):
    # Three times 1.2 and three times 1.6: mean 1.4, deviation 0.2. Of the 36 ordered pairs half
    # differ by 0.4, so the mean difference is 0.2; half of that over the mean is 0.2 / 2.8.
    assert study.slowdown_mean == pytest.approx(1.4)
    assert study.slowdown_deviation == pytest.approx(0.2)
    assert study.gini == pytest.approx(0.2 / 2.8)
    assert study.balanced


@pytest.mark.parametrize(
    ("values", "expected"),
    # 1 and 3: |difference| is 0, 2, 2, 0, mean 1, half of it over the mean 2 is 0.25.
    [([1.0, 3.0], 0.25), ([3.0, 1.0], 0.25), ([2.0, 2.0, 2.0], 0.0), ([5.0], 0.0)],
)
def test_gini(values, expected):
    assert gini(np.array(values)) == pytest.approx(expected)


def test_large_numbers_do_not_overflow():
    profiles = {"a": {"pcie_rx_bytes_s": 1e15}, "b": {"pcie_rx_bytes_s": 5e14}}
    measured = {("a", "b"): (1.5, 1.1), ("b", "b"): (1.1, 1.1)}
    found = feature_study(data_set(profiles, measured), ["pcie_rx_bytes_s"])
    assert found.features[0].pearson_own == pytest.approx(1)


def test_plain_data(study):
    data = json.loads(json.dumps(study.to_data()))
    assert type(study).from_data(data) == study


def test_without_pairs():
    with pytest.raises(InputError, match="at least one measured pair"):
        feature_study(DataSet(name="empty"))
