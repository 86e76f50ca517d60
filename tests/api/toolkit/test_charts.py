"""Charts: SVG for pages, light and dark, and files for papers."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dovetail.instances._frames import frame
from dovetail.instances.errors import InputError
from dovetail.toolkit.charts import (
    WIDTH_IN,
    bars,
    check_figures,
    curves,
    dots,
    lanes,
    load,
    points,
    svg,
    write_figures,
)
from tests.api.pages import Page
from tests.api.samples import HOSTILE

pytest.importorskip("matplotlib")

TEMPLATES = Path(__file__).parents[3] / "api" / "toolkit" / "templates"


def table(*rows, columns):
    return frame((dict(zip(columns, row, strict=True)) for row in rows), columns)


def every_kind():
    named = table((HOSTILE, 1.0, 2.0), ("$x^2$", 3.0, None), columns=("name", "a", "b"))
    line = table(("p", 1.0, 0.0), ("p", 100.0, 1.0), columns=("policy", "t", "part"))
    point = table((1.2, 1.1, False), (1.5, 1.9, True), columns=("x", "y", "broken"))
    used = table((0.0, 1, 2, 1), (60.0, 0, 1, 0), columns=("time_s", "w", "b", "s"))
    held = table(
        (0, 10.0, 0, 0, 2, 0, HOSTILE),
        (0, 10.0, 0, 1, 2, 1, HOSTILE),
        (5, 20.0, 1, 0, 1, 2, HOSTILE),
        columns=("start_s", "end_s", "gpu", "lane", "lanes", "job", "name"),
    )
    minutes = (60.0, "min")
    return [
        bars("bars", "Bars", named, "x"),
        dots("dots", "Dots", named, "x", joined=("a", "b")),
        curves("curves", "Curves", line, "x", "y", shown=["p"], log=True),
        points("points", "Points", point, "x", "y", ("kept", "broken")),
        load("load", "Load", used, minutes, (1.0, 2.0)),
        lanes("lanes", "Lanes", held, minutes, (0.0, 20.0), [("n0", 0, 2)]),
    ]


def test_charts_of_a_page_are_named_and_turned_by_its_style_sheet():
    for chart in every_kind():
        text = svg(chart)
        assert f'class="plot" role="img" aria-label="{chart.title}' in text
        assert "<style" not in text
    assert ".plot { filter: invert" in (TEMPLATES / "page.css").read_text()


def test_a_bar_of_a_page_has_the_name_of_its_job_as_a_tooltip():
    titles = ElementTree.fromstring(svg(every_kind()[-1])).iter("title")
    assert {title.text for title in titles} == {HOSTILE}


def test_charts_of_a_page_share_no_ids_and_each_reference_is_met():
    text = "".join(map(svg, every_kind()))
    made = re.findall(r' id="([^"]*)"', text)
    assert len(set(made)) == len(made)
    used = re.findall(r'href="#(\w+)"', text) + re.findall(r"url\(#(\w+)\)", text)
    assert set(used) <= set(made)
    assert used


def test_a_diagonal_leaves_the_axes_to_the_data():
    from matplotlib.figure import Figure

    held = table(("all", 0.5, 0.6), ("all", 0.9, 0.8), columns=("pairs", "promised", "held"))
    figure = Figure()
    curves("held", "Held", held, "promised", "held", shown=["all"], diagonal=True).draw(figure)
    (axes,) = figure.axes
    assert 0.4 < axes.get_xlim()[0] < axes.get_xlim()[1] < 1
    assert 0.5 < axes.get_ylim()[0] < axes.get_ylim()[1] < 0.9


def test_hostile_names_stay_text():
    page = Page(f'<html lang="en">{svg(every_kind()[0])}</html>')
    assert "script" not in [tag for tag, _ in page.tags]
    assert "$x^2$" in page.text["text"]


@pytest.mark.parametrize("name", ["a", "a-name-of-fourteen", "a-long-name-" * 8])
def test_a_legend_beside_long_names_is_not_cut_off(name):
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [{"job": name, "slowdown": 1.2, "at most": 1.3, "gSLA": 1.5}]
    chart = dots("marks", "Marks", frame(rows, rows[0]), "slowdown")
    with rc_context({"font.size": 8, "legend.fontsize": 7.5}):
        figure = Figure(figsize=(WIDTH_IN, chart.height_in))
        chart.draw(figure)
        box = figure.axes[0].get_legend().get_window_extent(FigureCanvasAgg(figure).get_renderer())
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_every_chart_is_three_figures_and_its_data(tmp_path):
    charts = every_kind()
    write_figures(str(tmp_path / "a" / "figures"), charts)
    folder = tmp_path / "a" / "figures"
    starts = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    for chart in charts:
        for ending, start in starts.items():
            assert (folder / f"{chart.name}.{ending}").read_bytes().startswith(start)
        rows = list(csv.reader((folder / f"{chart.name}.csv").read_text().splitlines()))
        assert rows[0] == list(chart.data.columns)
        assert len(rows) == 1 + len(chart.data)
    assert len(list(folder.iterdir())) == 4 * len(charts) + 1
    listed = list(csv.DictReader((folder / "figures.csv").read_text().splitlines()))
    assert [row["title"] for row in listed] == [chart.title for chart in charts]


def test_the_same_data_are_the_same_files(tmp_path):
    for name in ("one", "two"):
        write_figures(str(tmp_path / name), every_kind()[:2])
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_names_of_files_are_safe_and_different(tmp_path):
    data = table(("a", 1.0), columns=("name", "value"))
    names = ("load-a/../b", "load-a b", "load-A b", HOSTILE, "..")
    write_figures(str(tmp_path), [bars(name, "t", data, "x") for name in names])
    made = {path.name for path in tmp_path.glob("*.pdf")}
    assert {"load-a-..-b.pdf", "load-a-b.pdf", "load-A-b_2.pdf", "chart.pdf"} < made
    assert len(made) == 5


def test_folders_of_others_are_refused(tmp_path):
    check_figures(None)
    check_figures(str(tmp_path / "new"))
    write_figures(str(tmp_path / "ours"), every_kind()[:1])
    check_figures(str(tmp_path / "ours"))
    Path(tmp_path / "file").write_text("")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("")
    for name, rule in (("file", "must be a folder"), ("theirs", "holds something other than")):
        with pytest.raises(InputError, match=rule):
            check_figures(str(tmp_path / name))
    with pytest.raises(InputError, match="must be a folder"):
        check_figures("-")
