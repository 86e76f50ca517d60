"""Jobs on a GPU by the names of their workloads and their shares."""

from dovetail.instances.slowdowns.entry import GpuKind
from dovetail.instances.slowdowns.shares import share_code


def coded(known, members):
    """Return named members as the known slowdowns number them."""
    return tuple((known.number[name], share_code(share)) for name, share in members)


def find(known, model, members):
    """Return what is known of named members on a GPU model under MPS."""
    return known.find(on(model), coded(known, members))


def on(model):
    """Return GPUs of a model under MPS."""
    return GpuKind(model, "mps")
