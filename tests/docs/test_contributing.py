"""What a change touches, as ``CONTRIBUTING.md`` says it, is where an existing example stands."""

from __future__ import annotations

import re

import pytest

from tests.rooms import CORE, ROOMS, ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def files_of(row: str) -> set[str]:
    """Return the Python files of the product that a row of the page names."""
    (text,) = re.findall(rf"^- \*\*{re.escape(row)}.*$", PAGE, re.M)
    found = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text))
    return {file for file in found if not file.startswith(("docs/", "tests/"))}


def files_with(pattern: str, folders: tuple[str, ...]) -> set[str]:
    """Return the Python files in which a line matches."""
    line = re.compile(pattern, re.M)
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return {str(file.relative_to(ROOT)) for file in files if line.search(file.read_text())}


def test_an_option_of_submit_stands_in_the_files_that_the_page_names():
    assert files_of("an option of `submit`") == files_with(r"\bretries\b", CORE)


def test_a_number_of_a_pair_is_a_field_in_the_files_that_the_page_names():
    folders = ("instances", "predictors", "formulations")
    assert files_of("a number carried with a pair") == files_with(r"^    power_w: \S", folders)


@pytest.mark.parametrize("row", re.findall(r"^- \*\*(.+?)[:,]?\*\*", PAGE, re.M))
def test_every_file_that_a_row_names_exists(row):
    assert all((ROOT / file).is_file() for file in files_of(row))


def test_every_folder_of_the_product_is_in_the_tables():
    assert set(re.findall(r"^\| `(\w+)/`", PAGE, re.M)) == {*CORE, *ROOMS}
