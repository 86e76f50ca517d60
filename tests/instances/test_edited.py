"""Jobs changed within the text of a YAML file: all else of it stays as it is."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dovetail.instances.reading import contents
from dovetail.instances.reading.contents import parse_yaml, yaml_line
from dovetail.instances.reading.edited import edited_jobs

FIELDS = ("id", "workload", "state", "gpus", "share", "sub_batch", "weight")
VALUES = (1, 2.5, "running", "GPU-ü 1", ["n0-0", "n0-1"], [30, None], None)


def flow(job, margin, comment):
    """A job in braces, over several lines where it has a comment."""
    between = f",  # {comment}\n{margin}  " if comment else ", "
    return "{" + between.join(f"{key}: {yaml_line(value)}" for key, value in job.items()) + "}"


def block(job, margin, comment):
    """A job with a line for each field, and lists as blocks."""
    lines = []
    for key, value in job.items():
        if isinstance(value, list):
            lines += [f"{key}:", *(f"  - {yaml_line(item)}" for item in value)]
        else:
            lines.append(f"{key}: {'' if value is None else yaml_line(value)}")
    if comment:
        lines.insert(1, f"# {comment}")
    return f"\n{margin}  ".join(lines)


@st.composite
def files(draw):
    """Draw jobs, their text in one of many styles, and changes."""
    count = draw(st.integers(1, 4))
    other = st.dictionaries(st.sampled_from(FIELDS[1:]), st.sampled_from(VALUES))
    jobs = [
        {key: each[key] for key in draw(st.permutations(list(each)))}
        for k in range(count)
        for each in [{"id": f"job {k}", **draw(other)}]
    ]
    margin = draw(st.sampled_from(["", "  "]))
    lines = ["# first", "name: x", draw(st.sampled_from(["jobs:", "jobs:  # the jobs"]))]
    for k, job in enumerate(jobs):
        if draw(st.booleans()):
            lines.append(f"{margin}# kept {k}")
        style = draw(st.sampled_from([flow, block]))
        dash = draw(st.sampled_from(["- ", f"-\n{margin}  "]))
        lines.append(f"{margin}{dash}{style(job, margin, draw(st.sampled_from(['', 'in it'])))}")
        if draw(st.booleans()) and style is flow:
            lines[-1] += "  # behind it"
    lines += [f"{margin}# kept last", "slowdowns: []  # none"]
    end = draw(st.sampled_from(["\n", ""]))
    changes = draw(st.dictionaries(st.sampled_from([job["id"] for job in jobs]), st.none() | other))
    return jobs, "\n".join(lines) + end, changes


def changed(jobs, changes):
    """Return jobs with the changes, by the definition."""
    found = []
    for job in jobs:
        fields = changes.get(job["id"], {})
        if fields is not None:
            after = {**job, **fields}
            found.append({k: v for k, v in after.items() if fields.get(k, "kept") is not None})
    return found


@pytest.mark.parametrize("loader", [yaml.SafeLoader, contents.LOADER])
def test_the_text_says_what_was_asked_and_keeps_its_comments(loader):
    @given(files())
    def every_file(file):
        jobs, text, changes = file
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contents, "LOADER", loader)
            edited = edited_jobs(text, changes)
            assert parse_yaml(text)["jobs"] == jobs
            assert parse_yaml(edited) == {**parse_yaml(text), "jobs": changed(jobs, changes)}
        comments = [line for line in text.splitlines() if "# kept" in line or "# none" in line]
        left = edited.splitlines()
        assert [line for line in left if line in comments] == comments
        untouched = [job["id"] for job in jobs if job["id"] not in changes]
        for name in untouched:
            lines = [line for line in text.splitlines() if name in line]
            assert [line for line in left if name in line] == lines

    every_file()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("jobs: [{id: a}, {id: b}, {id: c}]\n", "jobs: [{id: b}, {id: c, state: running}]\n"),
        (
            "jobs:\n- id: a\n- {id: b}\n- id: c # C\n",
            "jobs:\n- {id: b}\n- id: c # C\n  state: running\n",
        ),
        ("jobs:\r\n- {id: a}\r\n- {id: c}\r\n", "jobs:\r\n- {id: c, state: running}\r\n"),
        ("{jobs: [{id: a},], name: x}", "{jobs: [], name: x}"),
        ("jobs: # all\n  - id: a\nname: x", "jobs: [] # all\nname: x"),
        ("jobs:\n- id: >-\n    c\n# end\n", "jobs:\n- id: >-\n    c\n  state: running\n# end\n"),
    ],
)
def test_styles(before, after):
    assert edited_jobs(before, {"a": None, "c": {"state": "running"}}) == after


def test_a_field_goes_with_its_comment_and_the_others_stay():
    text = "jobs:\n- state: running\n  gpus: [a]\n  # of anna\n  id: x  # hers\n  share:\n  - 30\n"
    gone = dict.fromkeys(("state", "gpus", "share"))
    assert edited_jobs(text, {"x": gone}) == "jobs:\n- id: x  # hers\n"
    flow = "jobs: [{id: x, gpus: [a], share: [30]}]"
    assert edited_jobs(flow, {"x": gone}) == "jobs: [{id: x}]"
