"""Times in published traces."""

from __future__ import annotations

from datetime import datetime

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError


def moment(text: str) -> datetime:
    """Return a local time like ``2017-10-09 07:01:55``.

    Raises
    ------
    InputError
        When it is not a time, or has a time zone.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is not None:
        raise InputError(f"must be a time like 2017-10-09 07:01:55, got {shown(text)}")
    return found
