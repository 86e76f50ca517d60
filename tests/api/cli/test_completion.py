"""Completion of commands, run in each installed shell."""

import shutil
import subprocess

import pytest

from dovetail.cli.main import main

ASK = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_dovetail
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(capsys, tmp_path):
    """Return the file with the script of a shell."""

    def made(shell):
        assert main(["completion", shell]) == 0
        path = tmp_path / shell
        path.write_text(capsys.readouterr().out)
        return path

    return made


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("ca",), {"cancel"}),
        (("comp",), {"compare", "completion"}),
        (("submit", "--pri"), {"--priority"}),
        (("submit", "--priority", ""), {"batch", "latency"}),
        (("submit", "--name", "queue", "--arr"), {"--array"}),
        (("predictors", "fi"), {"fit"}),
        (("predictors", "fit", "--js"), {"--json"}),
        (("completion", ""), {"bash", "zsh", "fish", "-h", "--help", "--json"}),
        (("submit", "--", "--pri"), {""}),
        (("submit", "--name", "la"), {""}),
        (("library", "la"), {"lab", "latency"}),
        (("library", "h2"), {"h200-2026-11"}),
        (("plan", "--objective", "thr"), {"throughput"}),
        (("simulate", "--policy", "dov"), {"dovetail"}),
        (("queue", "--state", "fi"), {"finished"}),
        (("cancel", "--state", "fi"), {""}),
    ],
)
def test_bash(script, words, found):
    asked = ["bash", "-c", ASK, "bash", str(script("bash")), "dovetail", *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert (set(done.stdout.split("\n")[:-1]), done.stderr) == (found, "")


def test_zsh_takes_that_of_bash(script):
    first, _, rest = script("zsh").read_text().partition("\n")
    assert first == "autoload -U +X bashcompinit && bashcompinit"
    assert rest == script("bash").read_text()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(script, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    done = subprocess.run([shell, "-n", script(shell)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_has_a_line_for_each_word(script):
    lines = script("fish").read_text().splitlines()
    assert all(line.startswith("complete -c dovetail -n '") for line in lines)
    cancel = "complete -c dovetail -n '__fish_seen_subcommand_from cancel' -l now"
    assert any(line.startswith(cancel) for line in lines)
