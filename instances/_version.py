"""The version of Dovetail, readable from every package."""

from typing import Final

VERSION: Final = "0.1.0"
