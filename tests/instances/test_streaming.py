"""Instances whose slowdowns become columns while the text is read: equal to those read whole."""

from __future__ import annotations

import gzip
import io
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.instances.errors import InputError
from dovetail.instances.files import parse_instance, read_instance
from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.instances.library import load, names
from dovetail.instances.reading import streaming
from dovetail.instances.reading.contents import parse_json
from dovetail.instances.reading.streaming import read_streamed

ODD_NAMES = ["a", 'b"', "}, {", "}]", "c: d", '"slowdowns": [{', "\\", "naïve", "e\u00a0f"]


def odd() -> dict[str, object]:
    """Return an instance whose names look like the marks that a reader looks for."""
    made = Instance.build("odd", max_jobs_per_gpu=3)
    made.add_node("n", 1, "A100", 40000)
    for name in ODD_NAMES:
        made.add_workload(name, 100)
    for first, second in pairwise(ODD_NAMES):
        made.add_slowdown([first, second], [1.1, 1.2])
    made.add_slowdown(["a", "a", "}]"], [1.2, 1.2, 1.3])
    made.add_slowdown(["a", "a"], None, gpu_model="A100")
    return made.instance().to_data()


def layouts(data: object) -> list[str]:
    return [
        json.dumps(data),
        json.dumps(data, indent=2, ensure_ascii=False),
        json.dumps(data, separators=(" ,\n", ":")),
    ]


@pytest.mark.parametrize("chunk", [7, 100, 10**6])
@pytest.mark.parametrize("name", names())
def test_shipped_instances(name, chunk, monkeypatch):
    monkeypatch.setattr(streaming, "_CHUNK_BYTES", chunk)
    instance = load(name)
    for text in layouts(instance.to_data()):
        data = read_streamed(io.BytesIO(text.encode()))
        assert (data is not None) == (len(instance.slowdowns) > 0)
        assert data is None or Instance.from_data(data) == instance


@pytest.mark.parametrize("chunk", [7, 100, 10**6])
def test_names_like_marks(chunk, monkeypatch, tmp_path):
    monkeypatch.setattr(streaming, "_CHUNK_BYTES", chunk)
    for text in layouts(odd()):
        (tmp_path / "odd.json").write_text(text)
        assert read_instance(tmp_path / "odd.json") == Instance.from_data(odd())


def test_any_order_of_fields_and_any_way_to_give_the_file(tmp_path, monkeypatch):
    data = generate(5, seed=1).to_data()
    turned = json.dumps(dict(reversed(data.items()))).encode()
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + turned)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(turned))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(turned)))
    for path in (tmp_path / "a.json", tmp_path / "a.json.gz", "-"):
        assert read_instance(path) == Instance.from_data(data)


@given(st.data())
def test_changed_texts_have_the_outcome_of_the_whole(draw):
    text = json.dumps(odd())
    at = draw.draw(st.integers(0, len(text)))
    cut = draw.draw(st.integers(0, 12))
    new = draw.draw(
        st.sampled_from(
            [
                *("", " ", '"', "[", "]", "{", "}", ",", ":", "1", "-", "NaN", "null", "1e999"),
                *('"pair": ["a", "b"],', '{"slowdowns": [{}]}', '"slowdowns": [{"a": 1}],'),
                *("é", "\0"),
            ]
        )
    )
    changed = text[:at] + new + text[at + cut :]

    def outcome(read):
        try:
            return read()
        except InputError as error:
            return str(error)

    def streamed():
        data = read_streamed(io.BytesIO(changed.encode()))
        return whole() if data is None else Instance.from_data(data, "x.json")

    def whole():
        return Instance.from_data(parse_json(changed), "x.json")

    assert outcome(streamed) == outcome(whole)


def test_an_error_names_its_place():
    data = generate(10, seed=1).to_data()
    data["slowdowns"][300]["slowdown"][1] = 0
    with pytest.raises(
        InputError, match=r"slowdowns\[300\]\.slowdown\[1\]: must be >= 0.001, got 0"
    ):
        parse_instance(json.dumps(data), "x.json")


def test_a_long_text_without_items_is_not_searched_again_for_each_part(monkeypatch):
    monkeypatch.setattr(streaming, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(streaming, "_LONGEST_ITEM", 1000)
    file = io.BytesIO(b'{"slowdowns": [{"pair": ["' + b"a" * 10_000 + b'"]}]}')
    assert read_streamed(file) is None
    assert file.tell() <= 1200
