"""Kernels to launch, with the memory that each leaves if it runs as it is."""

from __future__ import annotations

import functools
import random

from dovetail.isolation.ptx import parse
from tests.isolation import running
from tests.isolation.cuda_kernels import KERNELS
from tests.isolation.made_up_client import Task
from tests.isolation.nvrtc import compiled


@functools.cache
def task(name):
    written = KERNELS[name]
    text, case = compiled(written.source), written.case()
    module = parse(text)
    (kernel,) = module.kernels
    pointers = tuple(not isinstance(one, int) for one in written.arguments)
    expected = running.as_it_is(module, kernel, case, random.Random(0))
    return Task(name, text.encode(), case, pointers, expected)
