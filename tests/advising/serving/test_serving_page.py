"""The page of a serving plan: whole by itself, safe with any name, with the figures of the data."""

from __future__ import annotations

import copy
import json
import re

import pytest

from dovetail.cli.main import main
from tests.advising.serving.test_serving_files import GOOD
from tests.api.pages import Page, in_browser

HOSTILE = "</td><script>document.title='taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture
def page(tmp_path, capsys):
    """Return the page for models that are like the first, under these names, and its data."""

    def run(*names):
        data = copy.deepcopy(GOOD)
        for name in names:
            data["models"][name] = {"like": "chat", "serve": name}
        path, out = tmp_path / "s.json", tmp_path / "s.html"
        path.write_text(json.dumps(data))
        assert main(["advise", str(path), "--json", "--report", str(out)]) == 0
        return out.read_text(), json.loads(capsys.readouterr().out)

    return run


def test_its_figures_are_those_of_the_data(page):
    html, data = page("one", "two")
    text = Page(html).text
    plan = data["plans"][0]
    assert str(plan["gpus_alone"]) in text["saving"]
    for gpu in plan["sharing"]["low"]["layout"]:
        for seat in gpu:
            assert seat["server"] in text["layout"]
            if len(gpu) > 1:
                assert seat["command"] in text["type-in"]
                assert seat["settings"]["KAI"] in text["type-in"]
    assert "estimate" in text["trust"]


def test_it_needs_no_other_file_and_names_are_no_markup(page):
    html, _ = page(HOSTILE)
    for tag, given in Page(html).tags:
        for name in ("src", "href"):
            target = given.get(name) or "#"
            assert target.startswith(("#", "data:")), (tag, target)
    assert "<img" not in html
    assert "<script>document" not in html


def test_a_browser_runs_no_name_and_complains_of_nothing(page, tmp_path):
    html, _ = page(HOSTILE)
    made, log = in_browser(html, tmp_path, 1280)
    assert "are enough" in made
    assert "taken" not in re.search(r"<title>(.*?)</title>", made, re.S)[1]
    assert "CONSOLE" not in log


@pytest.mark.parametrize("width", [1280, 500])
def test_nothing_sticks_out_of_the_page(page, tmp_path, width):
    html, _ = page("n" * 190, "m" * 190)
    measure = "<script>document.title = document.documentElement.scrollWidth - innerWidth</script>"
    made, _ = in_browser(html.replace("</body>", measure + "</body>"), tmp_path, width)
    assert int(re.search(r"<title>(-?\d+)</title>", made)[1]) <= 0
