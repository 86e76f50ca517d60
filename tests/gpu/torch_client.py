"""Two questions to PyTorch's allocator; a program of its own for a Python with PyTorch.

    python torch_client.py reuse [cpu]         is a freed block handed to the product that follows?
    python torch_client.py expandable mib=N    how far does expandable_segments come?

It prints one JSON object a line, as ``client.py`` does.
"""

import json
import os
import sys
import time

SIZES = ((16, 1000, 2048), (64, 4096, 4096), (2048, 2048, 2048), (4096, 1024, 4096))
SMALL = ((16, 100, 64), (33, 65, 129))
STEP_MIB = 64


def say(event, **fields):
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def reuse(torch, device):
    """Fill a block with NaN, free it, and look where the next product is written."""
    same, sizes = 0, SIZES if device == "cuda" else SMALL
    for m, n, k in sizes:
        a = torch.ones(m, k, dtype=torch.float16, device=device)
        b = torch.ones(k, n, dtype=torch.float16, device=device)
        torch.mm(a, b)
        filled = torch.full((m, n), float("nan"), dtype=torch.float16, device=device)
        before = filled.data_ptr()
        del filled
        same += torch.mm(a, b).data_ptr() == before
    say("reuse", same=same, of=len(sizes), torch=torch.__version__)


def expandable(torch, mib):
    """Take memory by pieces until that fails."""
    held, error_text = [], "no error"
    try:
        while len(held) * STEP_MIB < mib:
            held.append(torch.ones(STEP_MIB << 20, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
    except RuntimeError as error:
        error_text = str(error).splitlines()[0]
    free, total = (value >> 20 for value in torch.cuda.mem_get_info())
    say("taken", mib=len(held) * STEP_MIB, error_text=error_text, free_mib=free, total_mib=total)


def main():
    """Run the command line."""
    # PyTorch reads this when it is imported.
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    mode, *options = sys.argv[1:]
    if mode == "reuse":
        del os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    try:
        import torch

        if mode == "reuse":
            reuse(torch, options[0] if options else "cuda")
        else:
            expandable(torch, int(options[0].removeprefix("mib=")))
    except Exception as error:
        say("error", call="PyTorch", number=-1, name=(str(error).splitlines() or ["?"])[0])


if __name__ == "__main__":
    main()
