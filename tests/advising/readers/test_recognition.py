"""Each kind of file is recognised by its reader and by no other."""

from __future__ import annotations

import json

import pytest

from dovetail.advising.reader import readers
from tests.advising.readers import (
    slurm_files,
    test_alibaba,
    test_dmon,
    test_kubernetes,
    test_nvidia_smi,
    test_prometheus,
    test_sacct,
    test_series,
)
from tests.instances.profiler_files import TABLE, chrome_trace


def beginnings(files):
    return {
        name: content.decode("utf-8", "replace")
        for name, content in files.items()
        if not name.endswith(".gz")
    }


SAMPLES = {
    "table": {"jobs.csv": "job,gpus,gpu_util_mean\na,1,0.5\n"},
    **{form: beginnings(of_form) for form, of_form in test_alibaba.files().items()},
    "kubernetes": beginnings(test_kubernetes.files()),
    **{form: beginnings(test_dmon.files(form)) for form in test_dmon.FILES},
    "kernels": {
        "table.csv": TABLE,
        "trace.json": json.dumps(chrome_trace()),
        "export.sqlite": "SQLite format 3\0",
        "run.nsys-rep": "\0",
    },
    "nvidia-smi": beginnings(test_nvidia_smi.files()),
    "prometheus": beginnings(test_prometheus.files()),
    "series-csv": beginnings(test_series.files()),
    "sacct": {
        "sacct.txt": f"{test_sacct.HEADER}\n{test_sacct.row('1')}\n",
        "trailing.txt": f"{test_sacct.HEADER}|\n{test_sacct.row('1')}|\n",
        "commas.csv": "User,JobIDRaw,Start,End,AllocTRES\n",
        "columns.txt": "JobID           JobName  Partition    State\n----------",
    },
    "squeue": {
        "queue.json": json.dumps(slurm_files.squeue_document(newer=True)),
        "older.json": json.dumps(slurm_files.squeue_document(newer=False), indent=2),
        "empty.json": '{"meta": {"Slurm": {}}, "errors": [], "jobs": []}',
        "queue.txt": slurm_files.QUEUE,
        "columns.txt": "             JOBID PARTITION     NAME     USER ST       TIME  NODES\n",
    },
    "scontrol-jobs": {"jobs.txt": slurm_files.JOBS},
    "scontrol-nodes": {"nodes.txt": slurm_files.NODES},
}
"""The beginnings of files by reader and name."""


@pytest.mark.parametrize(
    ("reader", "name"), [(reader, name) for reader in SAMPLES for name in SAMPLES[reader]]
)
def test_one_reader_recognises_each_file(reader, name):
    text = SAMPLES[reader][name]
    assert [known for known, each in readers().items() if each.recognises(name, text)] == [reader]
