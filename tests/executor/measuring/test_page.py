"""The page of campaigns names every field that a user can write or read."""

from pathlib import Path

import pytest

from dovetail.executor.measuring.campaign import Campaign, Stage, Windows, read_campaign
from dovetail.executor.measuring.results import Latency, Result, Throughput

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "howto" / "measure.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("record", [Campaign, Stage, Windows, Result, Throughput, Latency])
def test_every_field_is_there(record):
    assert [name for name in record.model_fields if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("record", [Stage, Windows, Campaign])
def test_defaults_are_as_text(record):
    for name, field in record.model_fields.items():
        if isinstance(field.default, int | float | str):
            assert f"| `{name}` | {_text(field.default)} |" in PAGE


def _text(default):
    return f"`{default}`" if isinstance(default, str) else f"{default:g}"


def test_its_campaigns_are_campaigns(tmp_path):
    texts = [part.split("\n", 1)[1].split("```")[0] for part in PAGE.split("```yaml")[1:]]
    assert len(texts) == 2
    for text in texts:
        (tmp_path / "campaign.yaml").write_text(text)
        read_campaign(tmp_path / "campaign.yaml")
