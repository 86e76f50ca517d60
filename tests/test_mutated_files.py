"""Any file is read or refused in one line, quickly and in little memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.mutants import KINDS, MOST_MEMORY_MIB, fuzz

every_kind = pytest.mark.parametrize("kind", KINDS)


def needs(kind):
    if "parquet" in kind:
        pytest.importorskip("pyarrow", reason="needs the extra: pip install './dovetail[parquet]'")
    if kind == "model":
        pytest.importorskip("sklearn", reason="needs the extra: pip install './dovetail[train]'")


@every_kind
def test_changed_files(kind):
    needs(kind)
    assert fuzz(kind, 15, seed=0) == []


@pytest.mark.long
@every_kind
def test_many_changed_files(kind):
    needs(kind)
    command = [sys.executable, "-m", "tests.mutants", kind, "7500", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["troubles"] == []
    assert result["peak_mib"] < MOST_MEMORY_MIB
