"""From an instance to mathematics and back.

``rounds`` compiles an instance, ``groups`` lists every set of jobs that may share a GPU, ``values``
computes the value of each, ``integer_program`` and ``pair_graph`` turn them into inputs of the
backends, and ``placement`` and ``node_program`` turn an answer into GPUs of named nodes.
"""
