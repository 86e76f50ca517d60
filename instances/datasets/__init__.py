"""What has been measured: solo profiles, and workloads measured together on one GPU."""

from dovetail.instances.datasets.files import dataset_files, read_dataset, write_dataset
from dovetail.instances.datasets.records import DataSet, Measurement, SoloProfile
from dovetail.instances.datasets.repository import Recorded, Repository

__all__ = [
    "DataSet",
    "Measurement",
    "Recorded",
    "Repository",
    "SoloProfile",
    "dataset_files",
    "read_dataset",
    "write_dataset",
]
