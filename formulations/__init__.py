"""From an instance to mathematics and back.

``rounds`` compiles an instance, ``groups`` lists every set of jobs that may share a GPU,
``values`` says what each is worth, ``integer_program`` and ``pair_graph`` write that down for
the backends, and ``placement`` and ``node_program`` turn an answer into GPUs of named nodes.
"""
