"""The benchmark of capped starts: a run on a few jobs."""

from benchmarks import capped


def test_more_jobs_a_gpu_and_splits_that_are_tried(monkeypatch, capsys):
    monkeypatch.setattr(capped, "AT_ONCE", 20)
    capped.main(["sets", "trials", "--seeds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + 2 * 3
    hours = {line.split("  ")[0]: float(line.split("mean JCT")[1].split()[0]) for line in lines}
    assert hours["at most 3"] <= hours["at most 2"]
