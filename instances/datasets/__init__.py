"""What has been measured: solo profiles, and workloads measured together on one GPU."""

from dovetail.instances.datasets.records import DataSet, Measurement, SoloProfile

__all__ = ["DataSet", "Measurement", "SoloProfile"]
