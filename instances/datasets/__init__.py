"""Measurements: solo profiles, and workloads measured together on one GPU."""

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.files import (
    PairTable,
    dataset_files,
    read_dataset,
    read_pairs,
    write_dataset,
)
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.datasets.repository import (
    REPOSITORY,
    EvidenceRecord,
    Repository,
    RepositoryRecord,
)

__all__ = [
    "REPOSITORY",
    "DataSet",
    "EvidenceRecord",
    "Measurement",
    "PairTable",
    "Repository",
    "RepositoryRecord",
    "SoloProfile",
    "dataset_files",
    "read_dataset",
    "read_pairs",
    "write_dataset",
]
