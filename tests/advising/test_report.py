"""The page of an advice: whole by itself, safe with any name, with the figures of the data."""

from __future__ import annotations

import json
import re

import pytest

from dovetail.cli.main import main
from tests.advising.made_up import month, month_csv, services, services_csv
from tests.api.pages import Page, in_browser


@pytest.fixture
def page(tmp_path, capsys):
    """Return the page for a table of records, and the data of the same advice."""

    def run(text, *options):
        path, out = tmp_path / "records.csv", tmp_path / "advice.html"
        path.write_text(text)
        assert main(["advise", str(path), "--json", "--report", str(out), *options]) == 0
        return out.read_text(), json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("most", ["2", "4"])
def test_its_figures_are_those_of_the_data(page, most):
    options = ["--cost-per-gpu-hour", "2", "--max-jobs-per-gpu", most]
    html, data = page(month_csv(month(200, 3, days=4)), *options)
    text = Page(html).text
    for case in ("low", "likely", "high"):
        assert f"{data['sharing'][case]['gpu_hours']:,.0f}" in text["saving"]
        assert f"{data['sharing'][case]['gpus_needed']:,}" in text["saving"]
    for pair in data["partners"][:20]:
        for job in pair["jobs"]:
            assert f"{job['user']}/{job['name']}" in text["type-in"]
            assert job["settings"]["MPS"] in text["type-in"]
    assert "estimates" in text["trust"]


def test_it_needs_no_other_file_and_no_network(page):
    html, _ = page(services_csv(services(12, 1)))
    for tag, given in Page(html).tags:
        for name in ("src", "href"):
            target = given.get(name) or "#"
            assert target.startswith(("#", "data:")), (tag, target)


HOSTILE = "</td><script>document.title='taken'</script><img src=x onerror=alert(1)>"


def hostile(text):
    """Put a name into every row that would run a script if it were not escaped."""
    head, *rows = text.splitlines()
    at = head.split(",").index("job")
    changed = []
    for row in rows:
        cells = row.split(",")
        cells[at] = f"{HOSTILE}{cells[at]}"
        changed.append(",".join(cells))
    return "\n".join([head, *changed]) + "\n"


def test_names_are_no_markup(page):
    html, data = page(hostile(services_csv(services(12, 1))))
    assert data["partners"]
    assert "<img" not in html
    assert "<script>document" not in html
    Page(html)


def test_a_browser_runs_no_name_and_complains_of_nothing(page, tmp_path):
    html, _ = page(hostile(services_csv(services(12, 1))))
    made, log = in_browser(html, tmp_path, 1280)
    assert "GPUs are likely to be enough" in made
    assert "taken" not in re.search(r"<title>(.*?)</title>", made, re.S)[1]
    assert "CONSOLE" not in log


@pytest.mark.parametrize("most", ["2", "3"])
@pytest.mark.parametrize("width", [1280, 500])
def test_nothing_sticks_out_of_the_page(page, tmp_path, width, most):
    text = services_csv(services(12, 1)).replace("\ns", "\n" + "n" * 190)
    html, _ = page(text, "--cost-per-gpu-hour", "2", "--max-jobs-per-gpu", most)
    measure = "<script>document.title = document.documentElement.scrollWidth - innerWidth</script>"
    made, _ = in_browser(html.replace("</body>", measure + "</body>"), tmp_path, width)
    assert int(re.search(r"<title>(-?\d+)</title>", made)[1]) <= 0
