"""When the engine runs compiled, in separate processes with an empty folder for the code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run_with_code_in(folder: Path, script: str) -> str:
    """Run a script in a process that keeps machine code in the folder; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plain_python_where_that_is_quicker(tmp_path):
    run_with_code_in(
        tmp_path,
        """
        from dovetail.formulations.budget import Budget
        from dovetail.solver.pairing.compilation import *
        import dovetail.solver.pairing

        assert [is_worth_compiling(jobs) for jobs in (100, 101)] == [False, True]
        assert quickest(100, Budget.of(None)) is interpreted
        assert quickest(600, Budget.of(None)) is interpreted
        assert quickest(601, Budget.of(None)) is compiled
        assert quickest(1200, Budget.of(1.0)) is interpreted
        assert quickest(1201, Budget.of(1.0)) is compiled
        assert quickest(601, Budget.of(60.0)) is compiled
        note_plain(9.0)
        assert quickest(101, Budget.of(None)) is interpreted
        note_plain(1.0)
        assert quickest(101, Budget.of(None)) is compiled
        assert quickest(101, Budget.of(1.0)) is interpreted
        """,
    )


def test_kept_code_is_loaded_where_that_is_quicker(tmp_path):
    run_with_code_in(
        tmp_path,
        """
        from dovetail.formulations.budget import Budget
        from dovetail.solver.pairing.compilation import *
        import dovetail.solver.pairing

        keep()
        assert not is_worth_compiling(101)
        assert quickest(100, Budget.of(None)) is interpreted
        assert quickest(101, Budget.of(None)) is compiled
        assert quickest(101, Budget.of(1.0)) is compiled
        note_plain(1.0)
        assert quickest(100, Budget.of(None)) is compiled
        """,
    )


def test_a_short_time_limit_does_not_wait_for_the_compilation(tmp_path):
    run_with_code_in(
        tmp_path,
        """
        import numpy as np
        from dovetail.solver.pairing import certificate_errors, match_pairs
        from dovetail.solver.pairing.compilation import is_compiled

        values = np.random.default_rng(0).random((150, 150))
        values += values.T
        matching = match_pairs(values, np.ones(150), 60, time_limit=0.5)
        assert not is_compiled()
        assert matching.status in ("optimal", "feasible")
        assert certificate_errors(matching, values, np.ones(150), 60) == []
        """,
    )


@pytest.mark.long
def test_all_kernels_are_compiled_ahead(tmp_path):
    """After ``python -m dovetail.solver.pairing`` nothing is left to compile in any round."""
    run_with_code_in(
        tmp_path,
        """
        import runpy
        from dovetail.solver.pairing.compilation import is_kept

        assert not is_kept()
        runpy.run_module("dovetail.solver.pairing", run_name="__main__")
        assert is_kept()
        """,
    )
    code = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.nbc")}
    assert len(code) > 40
    run_with_code_in(
        tmp_path,
        """
        import numpy as np
        import scipy.sparse as sp
        from dovetail.solver.pairing import match_pairs

        rng = np.random.default_rng(1)
        for kind in (np.float32, np.float64, np.int64):
            for n in (101, 300, 700):
                values = (rng.random((n, n)) * 8).astype(kind)
                values += values.T
                size = rng.choice([1, 2, 4], n)
                alone = np.ones(n)
                matching = match_pairs(values, alone, n // 2, size)
                match_pairs(values, alone, n // 2, size, previous=matching)
                match_pairs(values, alone, n // 2, size, rng.random(n) < 0.1)
                match_pairs(values[::-1, ::-1], alone, n // 3, time_limit=0.001)
                match_pairs(values)
                match_pairs(sp.csr_array(np.where(values > 9, values, 0)), alone, n // 2)
        """,
    )
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.nbc")} == code


WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""Runs root's command as one that permissions hold for."""

KEEP = """
    import numpy as np
    from dovetail.solver.pairing import compilation
    from dovetail.solver.pairing.matching import take_in_order

    before = compilation.is_kept()
    one, none = np.ones(1, np.int64), np.full(1, -1)
    take = compilation.compiled(take_in_order)
    take(one - 1, one - 1, one - 1, one, one, one, 1, none)
    assert none[0] == 0
    compilation.keep()
    worth = compilation.is_worth_compiling(1000)
    print(before, compilation.is_kept(), sum(take.stats.cache_hits.values()), worth)
    """


def copied(folder: Path) -> Path:
    """Install what the kernels need in a folder; return the package."""
    package = folder / "dovetail"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "api", package, ignore=ignored)
    for part in ("instances", "formulations", "solver"):
        shutil.copytree(ROOT / part, package / part, ignore=ignored)
    return package


@pytest.fixture(scope="module")
def read_only(tmp_path_factory):
    """An installed package that may not be written to."""
    package = copied(tmp_path_factory.mktemp("site"))
    for folder in package.rglob("*/"):
        folder.chmod(0o555)
    yield package
    for folder in package.rglob("*/"):
        folder.chmod(0o755)


def start(package: Path, home: Path, script: str = KEEP) -> subprocess.Popen[str]:
    """Run a script with a home, and with a package that it finds before any other."""
    if os.geteuid() == 0 and shutil.which(WITHOUT_PRIVILEGES[0]) is None:
        pytest.skip("root may write everywhere, and there is no setpriv")
    prefix = WITHOUT_PRIVILEGES if os.geteuid() == 0 else ()
    hidden = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
    own = {"HOME": str(home), "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", textwrap.dedent(script)],
        env={**{k: v for k, v in os.environ.items() if k not in hidden}, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out.strip()


def test_a_read_only_installation_keeps_the_code_in_the_home(read_only, tmp_path):
    at_once = [start(read_only, tmp_path) for _ in range(2)]
    assert all(outcome(process).split()[1] == "True" for process in at_once)
    assert list((tmp_path / ".cache").rglob("*.nbc"))
    assert outcome(start(read_only, tmp_path)) == "True True 1 False"


def test_without_any_folder_every_process_compiles(read_only, tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    assert outcome(start(read_only, home)) == "False False 0 False"


CALLEE = """
from typing import NamedTuple

from dovetail.solver.pairing.compilation import kernel


class Pair(NamedTuple):
    first: int
    second: int


@kernel
def combined(pair: Pair) -> int:
    return pair.first + pair.second
"""

CALLER = """
from dovetail.solver.pairing import callee
from dovetail.solver.pairing.callee import combined
from dovetail.solver.pairing.compilation import kernel


@kernel
def doubled(pair) -> int:
    return 2 * combined(pair)


pair = next(kind for kind in vars(callee).values() if hasattr(kind, "_fields"))(3, 4)
"""

DOUBLE = """
    from dovetail.solver.pairing import compilation
    from dovetail.solver.pairing.caller import doubled, pair

    before = compilation.is_kept()
    run = compilation.compiled(doubled)
    print(before, run(pair), sum(run.stats.cache_hits.values()))
    compilation.keep()
    """


@pytest.fixture
def doubling(tmp_path):
    """An installed package with two kernels more, one of which calls the other."""
    package = copied(tmp_path)
    (package / "solver" / "pairing" / "callee.py").write_text(CALLEE)
    (package / "solver" / "pairing" / "caller.py").write_text(CALLER)
    return package


@pytest.mark.parametrize(
    ("changed", "result"),
    [
        (CALLEE.replace("first + pair", "first - pair"), -2),
        (CALLEE.replace("Pair", "Two"), 14),
    ],
)
def test_code_of_earlier_sources_is_not_taken(doubling, tmp_path, changed, result):
    assert outcome(start(doubling, tmp_path, DOUBLE)) == "False 14 0"
    assert outcome(start(doubling, tmp_path, DOUBLE)) == "True 14 1"
    earlier = set(doubling.rglob("*.nb?"))
    # Code of a version without folders for states lies beside them.
    for name in ("callee.double-3.py311.nbi", "callee.double-3.py311.1.nbc"):
        earlier.add(old := doubling / "solver" / "pairing" / "__pycache__" / name)
        old.write_bytes(b"")
    (doubling / "solver" / "pairing" / "callee.py").write_text(changed)
    at_once = [start(doubling, tmp_path, DOUBLE) for _ in range(3)]
    assert {outcome(process).split()[1] for process in at_once} == {str(result)}
    assert outcome(start(doubling, tmp_path, DOUBLE)) == f"True {result} 1"
    assert len(list(doubling.rglob("*.nb?"))) == len(earlier) - 2
    assert not any(code.exists() for code in earlier)


def test_a_process_keeps_no_code_of_sources_that_changed_under_it(doubling, tmp_path):
    changing = f"""
    from pathlib import Path
    from dovetail.solver.pairing import callee

    Path(callee.__file__).write_text({CALLEE.replace("first + pair", "first - pair")!r})
    """
    assert outcome(start(doubling, tmp_path, changing + DOUBLE)) == "False 14 0"
    assert not list(doubling.rglob("*.nb?"))
    assert outcome(start(doubling, tmp_path, DOUBLE)) == "False -2 0"


def test_an_engine_that_is_not_compiled_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    run_with_code_in(
        tmp_path,
        """
        from dovetail import solve
        from dovetail.instances.generate import generate

        result = solve(generate(102, gangs=False, shares=()), explain=False)
        assert result.status == "optimal"
        assert any("NUMBA_DISABLE_JIT is set" in note for note in result.plan.notes)
        """,
    )
