"""Jobs on a GPU by the names of their workloads and their shares."""

from dovetail.instances.slowdowns.shares import share_code


def coded(known, members):
    """Return named members as the known slowdowns number them."""
    return tuple((known.number[name], share_code(share)) for name, share in members)


def find(known, model, members):
    """Return what is known of named members on a GPU model."""
    return known.find(model, coded(known, members))
