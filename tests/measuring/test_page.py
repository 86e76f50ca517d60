"""The campaigns that the page on measuring shows can be read."""

from pathlib import Path

from dovetail.measuring.campaign import read_campaign

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "measure.md").read_text(encoding="utf-8")


def test_its_campaigns_are_campaigns(tmp_path):
    texts = [part.split("\n", 1)[1].split("```")[0] for part in PAGE.split("```yaml")[1:]]
    assert len(texts) == 2
    for text in texts:
        (tmp_path / "campaign.yaml").write_text(text)
        read_campaign(tmp_path / "campaign.yaml")
