"""From an instance to mathematics and back.

``rounds`` compiles an instance, ``candidates`` lists every set of jobs that may share a GPU,
``values`` computes the value of each, and ``programs`` turns them into inputs of the backends, and
an answer into GPUs of named nodes.
"""
