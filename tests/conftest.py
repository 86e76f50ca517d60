"""What every test shares."""

from __future__ import annotations

from hypothesis import settings

# Machines that run tests are busy; how long one example takes says nothing about the code.
settings.register_profile("dovetail", deadline=None)
settings.load_profile("dovetail")
