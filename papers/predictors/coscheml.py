"""A random forest on the metrics of a kernel profiler.

Co-scheML (Kim and Kim, Cluster Computing 2021), section 4: compared with linear regression and a
decision tree, a random forest best predicts how much longer an application takes with another,
from the metrics of table 1, measured for each alone with nvprof.

The paper leaves open the number of trees and when they stop growing. Table 1 has the maximum and
the average of memory, and the paper normalises the metrics; a random forest does not depend on the
scale of values, so nothing is normalised here and the maximum of the memory is a logarithm. The
paper has no caps; ``share`` is a feature here.
"""

from __future__ import annotations

from typing import Final

from dovetail.instances.plugins import require_package
from dovetail.papers.forms.forest import Forest
from dovetail.papers.predictors._trees import forest_of_sklearn
from dovetail.predictors.estimators.registry import ModelSpec

require_package("sklearn", "train", "fitting coscheml")

from sklearn.ensemble import RandomForestRegressor

METRICS: Final = (
    "gpu_util",
    "mem_util",
    "sm_active",
    "pcie_tx_bytes_s",
    "warp_efficiency",
    "pcie_rx_bytes_s",
    "ipc",
    "gld_bytes_s",
    "sm_occupancy",
    "gst_bytes_s",
    "log_memory_mib",
    "duration_s",
    "memory_mean_mib",
)
"""Table 1: SM efficiency is ``sm_active``, device to host is ``pcie_tx_bytes_s``."""


class CoScheMLForest(RandomForestRegressor):  # type: ignore[misc]
    """scikit-learn's random forest with conversion to arrays."""

    def to_form(self) -> Forest:
        """Return the trees as arrays; they predict the same."""
        return forest_of_sklearn(self)


def _build(seed: int) -> CoScheMLForest:
    return CoScheMLForest(n_estimators=100, max_leaf_nodes=256, max_features=0.5, random_state=seed)


SPEC: Final = ModelSpec((*METRICS, "share"), _build, least=3)
"""At least two metrics in addition to the share."""
