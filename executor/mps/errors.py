"""What can go wrong with MPS, each told in one line."""

from __future__ import annotations

from dovetail.instances.errors import DovetailError


class MpsError(DovetailError):
    """MPS cannot do, or must not do, what was asked."""


class MpsRefusedError(MpsError):
    """The manager refuses: it would break a rule of MPS, or touch what is not ours."""


class NoDaemonError(MpsError):
    """No control daemon answers at this pipe directory."""


class NoAnswerError(MpsError):
    """The control daemon did not answer in time, or said what nobody understands."""


class NoServerError(MpsError):
    """The daemon knows no server of this pid (any more)."""


class UnknownCommandError(MpsError):
    """The installed control program does not know the command."""
