"""Kernels of profilers as records of a job, and as the profile of jobs in other files."""

from __future__ import annotations

import pytest

from dovetail.advising.reader import read_usage
from dovetail.advising.usage import joined
from dovetail.instances.errors import InputError
from tests.advising.readers.fuzz import read_damaged
from tests.instances.profiler_files import export, table, trace


def files(folder):
    """Return sample files by name."""
    return {write(folder).name: write(folder).read_bytes() for write in (table, trace)}


@pytest.mark.parametrize("write", [export, table, trace])
def test_a_file_of_kernels_is_a_job_of_its_own(tmp_path, write):
    path = write(tmp_path)
    path = path.rename(tmp_path / f"resnet{path.suffix}")
    usage = read_usage(str(path))
    (job,) = usage.jobs.itertuples()
    assert (job.job, job.name, job.gpus) == ("resnet", "resnet", 1)
    metrics = usage.profiles["resnet"]
    assert metrics.kernels_s == pytest.approx(2 / 500e-6)
    assert metrics.kernel_mean_s == pytest.approx(200e-6)
    assert metrics.kernel_weighted_s == pytest.approx((300**2 + 100**2) / 400 * 1e-6)


def test_jobs_of_its_name_take_its_place(tmp_path):
    path = trace(tmp_path).rename(tmp_path / "resnet.json")
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job,gpus,name,gpu_util_mean\n1,1,resnet,0.5\n2,1,bert,0.5\n", encoding="utf-8")
    usage = joined([read_usage(str(path)), read_usage(str(jobs))])
    assert sorted(usage.jobs.job) == ["1", "2"]
    assert list(usage.profiles) == ["resnet"]
    jobs.write_text("job,gpus,name,gpu_util_mean\n2,1,bert,0.5\n", encoding="utf-8")
    usage = joined([read_usage(str(path)), read_usage(str(jobs))])
    assert sorted(usage.jobs.job) == ["2", "resnet"]


def test_kernels_of_several_gpus_are_refused(tmp_path):
    path = export(tmp_path)
    export(tmp_path, device=1)
    with pytest.raises(InputError) as caught:
        read_usage(str(path))
    assert str(caught.value) == (
        f"{path}: must have kernels of one GPU, has those of several: write a file for each rank"
    )


def test_reports_are_exported_first(tmp_path):
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"\x00" * 100)
    with pytest.raises(InputError, match="must be exported first: nsys export --type sqlite FILE"):
        read_usage(str(path))


def test_damaged_files(tmp_path):
    read_damaged(tmp_path, "kernels", files(tmp_path))
