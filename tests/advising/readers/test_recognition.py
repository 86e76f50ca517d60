"""Each kind of file is recognised by its reader and by no other."""

from __future__ import annotations

import pytest

from dovetail.advising.reader import readers
from tests.advising.readers import (
    test_alibaba,
    test_kubernetes,
    test_prometheus,
    test_sacct,
    test_series,
)


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
    "prometheus": beginnings(test_prometheus.files()),
    "series-csv": beginnings(test_series.files()),
    "sacct": {
        "sacct.txt": f"{test_sacct.HEADER}\n{test_sacct.row('1')}\n",
        "trailing.txt": f"{test_sacct.HEADER}|\n{test_sacct.row('1')}|\n",
        "commas.csv": "User,JobIDRaw,Start,End,AllocTRES\n",
        "columns.txt": "JobID           JobName  Partition    State\n----------",
    },
}
"""The beginnings of files by reader and name."""


@pytest.mark.parametrize(
    ("reader", "name"), [(reader, name) for reader in SAMPLES for name in SAMPLES[reader]]
)
def test_one_reader_recognises_each_file(reader, name):
    text = SAMPLES[reader][name]
    assert [known for known, each in readers().items() if each.recognises(name, text)] == [reader]
