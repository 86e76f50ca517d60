"""The files of a release of this commit, and what refuses to make one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from dovetail.instances._version import VERSION
from releasing import building, release
from releasing.building import Address, ReleaseError, absolute
from tests.rooms import CORE, ROOMS, ROOT

AT = Address(
    "https://git.example.org/lab/dovetail",
    "{repository}/blob/{tag}/{path}",
    "{repository}/raw/{tag}/{path}",
)
NEEDS_COMMIT = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return sdist and wheel; that two builds and one from the sdist agree is asked on the way."""
    folder = tmp_path_factory.mktemp("release")
    return release.built_twice(ROOT, folder, AT, release.version_of(ROOT))


@NEEDS_COMMIT
def test_the_bytes_do_not_depend_on_who_builds_them(built, tmp_path, monkeypatch):
    mask = os.umask(0o077)
    for name, value in {
        "TZ": "Asia/Tokyo",
        "SOURCE_DATE_EPOCH": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.autocrlf",
        "GIT_CONFIG_VALUE_0": "true",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        epoch = building.stage(ROOT, tmp_path / "tree", AT, VERSION)
        (again,) = building.build(tmp_path / "tree", tmp_path / "out", epoch, ["wheel"])
    finally:
        os.umask(mask)
    assert again.read_bytes() == built[1].read_bytes()


@NEEDS_COMMIT
def test_the_wheel_has_the_committed_packages_and_nothing_else(built):
    _, wheel = built
    release.contents(wheel)
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    shown = ["git", "-C", ROOT, "ls-files", *CORE, *ROOMS]
    committed = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()
    names = {folder: name.replace(".", "/") for name, folder in folders["package-dir"].items()}
    expected = set()
    for file in committed:
        package = next(str(one) for one in Path(file).parents if str(one) in names)
        expected.add(f"{names[package]}/{Path(file).relative_to(package)}")
    with zipfile.ZipFile(wheel) as packed:
        found = {name for name in packed.namelist() if ".dist-info/" not in name}
        metadata = message_from_bytes(packed.read(f"dovetail-{VERSION}.dist-info/METADATA"))
    assert found == expected
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"Source, {AT.repository}" in metadata.get_all("Project-URL")
    text = metadata.get_payload()
    assert f"({AT.repository}/blob/v{VERSION}/docs/quickstart.md)" in text
    assert f"({AT.repository}/raw/v{VERSION}/docs/images/plan.svg)" in text


@NEEDS_COMMIT
def test_the_sdist_has_every_committed_file_and_no_user_or_time_of_the_builder(built):
    sdist, _ = built
    shown = ["git", "-C", ROOT, "ls-files"]
    committed = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()
    clock = ["git", "-C", ROOT, "log", "-1", "--format=%ct"]
    epoch = int(subprocess.run(clock, capture_output=True, text=True, check=True).stdout)
    with tarfile.open(sdist) as packed:
        members = packed.getmembers()
    names = {one.name.partition("/")[2] for one in members}
    assert set(committed) - names <= {".gitignore"}
    assert {(one.uid, one.gid, one.uname, one.mtime) for one in members} == {(0, 0, "", epoch)}


@NEEDS_COMMIT
def test_the_installed_wheel_plans(built, tmp_path):
    """It is unpacked as pip does; the dependencies are those of this environment."""
    with zipfile.ZipFile(built[1]) as packed:
        packed.extractall(tmp_path)
    program = "import dovetail, sys; print(dovetail.__file__); from dovetail.cli.main import main; "
    words = f"{program}sys.exit(main(['plan', 'library:first-pairs']))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(tmp_path)), done.stderr
    assert "proven" in done.stdout


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[a](docs/x.md#y)", "[a](B/docs/x.md#y)"),
        ("![a](i.svg)", "![a](R/i.svg)"),
        ("[![a](i.svg)](x.md)", "[![a](R/i.svg)](B/x.md)"),
        ("[a](#part)", "[a](B/README.md#part)"),
        ("[a](https://e.org/x) [b](mailto:a@e.org)", "[a](https://e.org/x) [b](mailto:a@e.org)"),
        ("```sh\n[a](x.md)\n```\n[a](x.md)", "```sh\n[a](x.md)\n```\n[a](B/x.md)"),
    ],
)
def test_links_are_absolute(written, expected):
    expected = expected.replace("(B/", f"({AT.repository}/blob/v1/")
    expected = expected.replace("(R/", f"({AT.repository}/raw/v1/")
    assert absolute(written, AT, "v1") == expected


def test_every_link_of_the_readme_becomes_absolute():
    text = absolute((ROOT / "README.md").read_text("utf-8"), AT, "v1")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)]*)\)", prose)
    assert len(links) > 20
    assert {link.partition(":")[0] for link in links} == {"https"}


@pytest.fixture
def checkout(tmp_path):
    """A small repository with what a release looks at."""
    (tmp_path / "instances").mkdir()
    (tmp_path / "instances" / "_version.py").write_text('VERSION = "1.2.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# C\n\n## [1.2.0] - 2026-01-31\n\n- New.\n")
    git(tmp_path, "init", "-q")
    keep(tmp_path)
    return tmp_path


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *who, *words], check=True)


def keep(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")


def test_a_commit_of_a_release_is_ready(checkout):
    release.ready(checkout, "1.2.0", AT)
    git(checkout, "checkout", "-q", "--detach")
    release.ready(checkout, "1.2.0", AT)


@pytest.mark.parametrize("kind", [[], ["-a", "-m", "x"]], ids=["plain", "annotated"])
def test_a_version_is_released_once(checkout, kind):
    """Its files can be made again from the commit of its tag."""
    git(checkout, "tag", "v1.2.0", *kind)
    git(checkout, "tag", "v1.2.0.1", "HEAD")
    release.ready(checkout, "1.2.0", AT)
    (checkout / "more").touch()
    keep(checkout)
    with pytest.raises(ReleaseError, match=r"^the tag v1.2.0 exists, at another commit"):
        release.ready(checkout, "1.2.0", AT)


def test_a_folder_without_git_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ReleaseError, match=r"^git status: fatal: not a git repository"):
        release.ready(tmp_path, "1.2.0", AT)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReleaseError, match=r"^git is not installed$"):
        release.ready(tmp_path, "1.2.0", AT)


def test_a_missing_tool_is_named(tmp_path):
    with pytest.raises(ReleaseError, match=r"^twine is not installed: pip install"):
        release.run(tmp_path / "twine", "check")


@pytest.mark.parametrize(
    ("file", "text", "version", "words"),
    [
        ("CHANGELOG.md", "## [1.2.0] - unreleased\n", "1.2.0", "must say ## [1.2.0] - YYYY-MM-DD"),
        ("CHANGELOG.md", "## [1.2.0]\n", "1.2.0", "must say"),
        ("CHANGELOG.md", "## [1.2.0] - 2999-01-01\n", "1.2.0", "in the future"),
        ("CHANGELOG.md", "## [1.1.0] - 2026-01-31\n", "1.2.0", "the first section must be [1.2.0]"),
        ("CHANGELOG.md", "nothing\n", "1.2.0", "got none"),
        ("instances/_version.py", 'VERSION = "1.1.0"\n', "1.2.0", "must set VERSION"),
        ("CHANGELOG.md", "## [1.2.0] - 2026-01-31\n\n", "1.3.0", "must be 1.3.0, got 1.2.0"),
        (
            "CHANGELOG.md",
            "## [1.2.0] - 2026-01-31\n\n### Added\n\n## [1.1.0] - 2026-01-01\n\n- Old.\n",
            "1.2.0",
            "the section [1.2.0] is empty",
        ),
    ],
)
def test_what_is_not_a_release_is_refused(checkout, file, text, version, words):
    (checkout / file).write_text(text)
    with pytest.raises(ReleaseError, match="the checkout has changes"):
        release.ready(checkout, version, AT)
    keep(checkout)
    with pytest.raises(ReleaseError) as refused:
        release.ready(checkout, version, AT)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("address", ["", "http://e.org/x", "https://e.org", "https://e.org/x/"])
def test_without_an_address_of_the_repository_nothing_is_released(checkout, address):
    with pytest.raises(ReleaseError, match=r"must be the address of the repository"):
        release.ready(checkout, "1.2.0", AT._replace(repository=address))


def test_an_old_file_stays_when_a_release_is_refused(checkout, capsys):
    (checkout / "dist").mkdir()
    (checkout / "dist" / "old.whl").touch()
    (checkout / "pyproject.toml").write_text(
        '[project]\nversion = "1.2.0"\n[tool.dovetail.release]\n'
        'repository = ""\npage = ""\nraw = ""\n'
    )
    with pytest.raises(ReleaseError):
        release.release(checkout, "1.2.0")
    assert (checkout / "dist" / "old.whl").exists()


@pytest.mark.parametrize("words", [[], ["--dry"], ["1", "2"]])
def test_a_wrong_call_says_how(words, capsys):
    assert release.main(words) == 2
    assert capsys.readouterr().err.startswith("usage: ")


def test_publishing_is_printed_with_the_files_that_the_index_takes():
    lines = list(release.publishing("1.2.0", ["d-1.2.0.tar.gz", "d.whl", "d.cdx.json"]))
    assert "twine upload dist/d-1.2.0.tar.gz dist/d.whl" in lines
    assert any(line.startswith("git tag --sign v1.2.0 ") for line in lines)


def test_a_backend_that_fails_is_one_line(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    with pytest.raises(ReleaseError, match=r"^wheel: setuptools failed: [^\n]+$"):
        building.build(tmp_path, tmp_path / "out", 0, ["wheel"])
