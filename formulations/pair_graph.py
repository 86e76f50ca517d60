"""."""


class PairGraph:
    def __init__(self, g, v):
        raise NotImplementedError
