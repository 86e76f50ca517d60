"""Files written by ``dovetail init``, and the files of ``examples/``, which start from them."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.instances.files import read_instance

EXAMPLES = Path(__file__).parents[3] / "examples"
CALLED = re.findall(r"`(dovetail [^`]+)`", (EXAMPLES / "README.md").read_text())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Run in a folder with the examples, which sees its modules."""
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return folder


def test_it_plans_at_once_and_is_not_overwritten(here, capsys):
    assert main(["init"]) == 0
    assert capsys.readouterr().out == "-> lab.yaml: next, dovetail plan lab.yaml\n"
    assert main(["plan", "lab.yaml"]) == 0
    assert "optimal" in capsys.readouterr().out
    assert main(["init"]) == 2
    assert capsys.readouterr().err == "dovetail: lab.yaml: exists already: name a new file\n"
    assert main(["init", "-"]) == 0
    assert capsys.readouterr().out == (here / "lab.yaml").read_text()


def test_every_field_that_its_comments_name_is_one(here):
    main(["init"])
    text = Path("lab.yaml").read_text()
    for line in ("gsla: 1.3", "weight: 2", "workers: 2", "state: running, gpus: [box-0]"):
        assert f"#   {line}" in text
        changed = text.replace(
            "{id: rl-b, workload: rl, gsla: 2.0, weight: 0.5", f"{{id: rl-b, workload: rl, {line}"
        )
        Path("changed.yaml").write_text(changed)
        assert read_instance("changed.yaml") != read_instance("lab.yaml")


@pytest.mark.parametrize("line", CALLED)
def test_every_command_of_the_readme_runs(here, line, capsys):
    main(["init"])
    for command in line.split(" && "):
        words = shlex.split(command)[1:]
        if words[0] == "compare":
            words += ["--jobs", "1"]  # processes take seconds to start, and are tested elsewhere
        if words != ["init"]:
            assert main(words) == 0, capsys.readouterr().err
