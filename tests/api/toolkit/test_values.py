"""From the text of an argument to its value."""

from argparse import ArgumentTypeError

import pytest

from dovetail.toolkit.commands import duration, pair


@pytest.mark.parametrize(
    ("text", "time_s"),
    [("90", 90), ("90s", 90), ("1.5h", 5400), ("15m", 900), ("2d", 172_800), ("0", 0)],
)
def test_times_as_people_write_them(text, time_s):
    assert duration(text) == time_s


@pytest.mark.parametrize("text", ["", "h", "-1", "1e3", "2 h", "1w", "٣", "nan", "inf", "9" * 400])
def test_what_is_no_time(text):
    with pytest.raises(ArgumentTypeError, match="must be a time like 90, 15m, 2h or 1d"):
        duration(text)


def test_a_name_and_its_value():
    assert pair("GPU=FITTED")("RTX 3090=V100") == ("RTX 3090", "V100")
    assert pair("TYPE=MIB", r"\d+")("a100=40960") == ("a100", "40960")


@pytest.mark.parametrize("text", ["", "a", "=b", "a=", "a100=4.5"])
def test_what_is_no_name_with_a_value(text):
    with pytest.raises(ArgumentTypeError, match="must be TYPE=MIB"):
        pair("TYPE=MIB", r"\d+")(text)
