"""What every test shares."""

from __future__ import annotations

import signal

from hypothesis import settings

# Machines that run tests are busy; how long one example takes says nothing about the code.
settings.register_profile("dovetail", deadline=None)
settings.load_profile("dovetail")

# Shells let what they start in the background ignore Ctrl-C, and tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
