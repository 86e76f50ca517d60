"""Plugins are found by the metadata of installed packages, whatever is in it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from dovetail.instances import plugins as module
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import GROUP, KINDS, left_out, others, plugins, require_package
from tests.installed import package, pip_install


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A folder of metadata in the search path, which is read again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module._installed.cache_clear()
    yield tmp_path
    module._installed.cache_clear()


def declare(path, folder, *lines):
    (path / folder).mkdir()
    text = "\n".join((f"[{GROUP}]", *lines))
    (path / folder / "entry_points.txt").write_text(text)


def found(kind):
    return {each.name: (each.package, each.target) for each in plugins(kind).values()}


def test_everything_is_found_as_importlib_metadata_finds_it():
    mine = {f"{kind}.{each.name}": each.target for kind in KINDS for each in plugins(kind).values()}
    theirs = {each.name: each.value for each in metadata.entry_points(group=GROUP)}
    assert mine == theirs


def test_an_installed_package_is_found_under_the_name_that_it_has(path, tmp_path):
    plugins_of_it = {"policy.some.thing": "some_module:Thing", "trace.log": "some_module:LOG"}
    source = package(tmp_path, "Some_package.Name", plugins_of_it, {"some_module": "LOG = 1\n"})
    pip_install(tmp_path, source)
    name, *_ = metadata.distributions(name="some-package-name", path=[str(tmp_path)])
    assert name.metadata["Name"] == "Some_package.Name"
    assert found("policy")["some.thing"] == ("some-package-name", "some_module:Thing")
    assert plugins("trace")["log"].load() == 1
    assert [each.name for each in others()] == ["some.thing", "log"]


def test_metadata_of_an_editable_installation_count(path):
    declare(path, "some_package.egg-info", "policy.one = some.module:One")
    declare(path, "other_package-2.0-py3.11.egg-info", "policy.two = some.module:Two")
    assert found("policy")["one"] == ("some-package", "some.module:One")
    assert found("policy")["two"] == ("other-package", "some.module:Two")


def test_only_lines_of_the_group_count(path):
    declare(
        path,
        "a-1.dist-info",
        "# policy.comment = a:B",
        "",
        "  policy.spaces  =  a.b : C.d [extra]  ",
        "no equals sign",
        "[console_scripts]",
        "policy.program = a:main",
        f"[more.{GROUP}]",
        "policy.more = a:more",
        f"[{GROUP}]",
        "policy.again = a:again",
    )
    mine = {name for name, (package, _) in found("policy").items() if package == "a"}
    assert mine == {"spaces", "again"}


def test_of_two_packages_with_one_name_the_first_in_the_alphabet_is_used(path):
    declare(path, "b-1.dist-info", "policy.same = b:Same", "policy.other = b:Other")
    declare(path, "a-1.dist-info", "policy.same = a:Same")
    assert found("policy")["same"] == ("a", "a:Same")
    assert found("policy")["other"] == ("b", "b:Other")
    assert [(each.package, why) for each, why in left_out()] == [
        ("b", "is left out: the package a has one of the same name")
    ]


def test_several_packages_add_options_to_one_command(path):
    declare(path, "b-1.dist-info", "options.queue = b:MORE")
    declare(path, "a-1.dist-info", "options.queue = a:MORE")
    targets = [each.target for each in plugins("options").values() if each.name == "queue"]
    assert targets == ["a:MORE", "b:MORE"]
    assert not list(left_out())


def test_dovetails_own_come_before_those_of_every_other_package(path, monkeypatch):
    declare(path, "aaa-1.dist-info", "policy.same = aaa:Same")
    declare(path, "dovetail-1.dist-info", "policy.same = dovetail.some:Same")
    assert found("policy")["same"] == ("dovetail", "dovetail.some:Same")
    assert others() == ()


def test_of_a_package_that_is_in_the_path_twice_the_first_is_used(path, tmp_path, monkeypatch):
    declare(path, "a-1.dist-info", "policy.same = a:Old")
    first = tmp_path / "first"
    first.mkdir()
    declare(first, "a-2.dist-info", "policy.same = a:New")
    monkeypatch.syspath_prepend(str(first))
    module._installed.cache_clear()
    assert found("policy")["same"] == ("a", "a:New")
    assert not list(left_out())


@pytest.mark.parametrize("line", ["unknown.name = a:B", "policy = a:B", "policy. = a:B"])
def test_an_entry_point_of_another_form_is_left_out_with_the_reason(path, line):
    declare(path, "a-1.dist-info", line)
    ((plugin, why),) = left_out()
    assert str(plugin) == f"plugin {line.split()[0].rstrip('.')} of the package a (a:B)"
    assert why.startswith("must be called KIND.NAME, where KIND is one of policy, predictor, ")


def test_files_that_cannot_be_read_are_as_none(path):
    (path / "binary-1.dist-info").mkdir()
    (path / "binary-1.dist-info/entry_points.txt").write_bytes(b"[dovetail.plugins]\n\xff = \xfe")
    (path / "folder-1.dist-info" / "entry_points.txt").mkdir(parents=True)
    (path / "old-1.egg-info").write_text("a file, as distutils wrote it")
    assert not others()
    assert not list(left_out())


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("plugged", "must name an object as MODULE:NAME"),
        ("plugged:", "must name an object as MODULE:NAME"),
        ("plugged:NAME.part", "cannot be imported: AttributeError: 'int' object has no attribute"),
        ("plugged.sub:NAME", "cannot be imported: ModuleNotFoundError: No module named 'plugged.s"),
        ("raises:NAME", "cannot be imported: ValueError: two lines"),
        ("wrong:NAME", "cannot be imported: SyntaxError: "),
        ("exits:NAME", "cannot be imported: SystemExit: 3"),
        ("plugged:NAME", "must be a function or a class, got int"),
    ],
)
def test_what_cannot_be_loaded_is_one_line_with_plugin_package_and_reason(path, target, why):
    (path / "plugged.py").write_text("NAME = 3\n")
    (path / "raises.py").write_text("raise ValueError('two\\nlines')\n")
    (path / "wrong.py").write_text("def\n")
    (path / "exits.py").write_text("raise SystemExit(3)\n")
    declare(path, "a-1.dist-info", f"policy.x = {target}")
    plugin = plugins("policy")["x"]
    with pytest.raises(UnsupportedError) as caught:
        plugin.load_function()
    text = str(caught.value)
    assert text.startswith(f"plugin policy.x of the package a ({target}) {why}")
    assert "\n" not in text


def test_an_object_of_another_class_is_named(path):
    declare(path, "a-1.dist-info", "policy.x = json:dumps")
    assert plugins("policy")["x"].load_function() is __import__("json").dumps
    with pytest.raises(UnsupportedError, match="must be of type str, got function"):
        plugins("policy")["x"].load_as(str)


def test_nothing_is_imported_before_it_is_used(path):
    declare(path, "a-1.dist-info", "policy.x = plugged:X", "command.x = plugged:X")
    (path / "plugged.py").write_text("raise SystemError\n")
    assert "x" in plugins("policy")


def test_a_missing_package_of_an_extra_is_named_with_what_installs_it(path):
    require_package("json", "train", "fitting x")
    with pytest.raises(UnsupportedError) as caught:
        require_package("absent", "train", "fitting x")
    assert str(caught.value) == "fitting x needs absent: pip install './dovetail[train]'"


def test_reading_the_metadata_needs_no_more_modules_than_python_itself():
    code = (
        "import sys; from dovetail.instances.plugins import plugins; plugins('policy');"
        "print([m for m in ('importlib.metadata', 'email', 'zipfile') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
