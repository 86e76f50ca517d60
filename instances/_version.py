"""The version of Dovetail, where every room may read it."""

from typing import Final

VERSION: Final = "0.1.0"
