"""Small files in the shapes that profilers write: two kernels, one after the other, on an H100."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

GRIDS, BLOCKS = ((1056, 1, 1), (16, 8, 1)), ((256, 1, 1), (32, 4, 1))
STARTS_NS, DURATIONS_NS = (5_000_000_000, 5_000_400_000), (300_000, 100_000)
REGISTERS, SHARED = (32, 168), (0, 49_152)

TABLE = """Processing [report.sqlite] with [/opt/nsys/reports/cuda_gpu_trace.py]...

 ** CUDA GPU Trace (cuda_gpu_trace):

Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),\
Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
4900000000,50240,101,,,,,,,,,,8.389,167.0,Pageable,Device,NVIDIA H100 (0),1,,7,\
[CUDA memcpy Host-to-Device]
5000000000,300000,102,1056,1,1,256,1,1,32,0.000,0.000,,,,,NVIDIA H100 (0),1,,7,\
"void add<float>(float *, float *, int)"
5000400000,100000,104,16,8,1,32,4,1,168,0.001,0.048152,,,,,NVIDIA H100 (0),1,,7,\
"gemm(float *, int)"
"""


def table(folder: Path, text: str = TABLE) -> Path:
    """Return a CSV of ``nsys stats --report cuda_gpu_trace``."""
    path = folder / "report_cuda_gpu_trace.csv"
    path.write_text(text)
    return path


def export(folder: Path, sms: int = 132, device: int = 0) -> Path:
    """Return an SQLite export of Nsight Systems, with the columns that matter."""
    path = folder / "report.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE IF NOT EXISTS StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT);
            CREATE TABLE IF NOT EXISTS TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL,
                name TEXT, smCount INTEGER, cuDevice INTEGER, maxWarpsPerSm INTEGER,
                computeMajor INTEGER, computeMinor INTEGER);
            CREATE TABLE IF NOT EXISTS CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL,
                end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
                streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
                demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, gridX INTEGER NOT NULL,
                gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL,
                blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
                registersPerThread INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
                dynamicSharedMemory INTEGER NOT NULL);
            """
        )
        connection.execute(
            "INSERT INTO TARGET_INFO_GPU VALUES (0, ?, 'NVIDIA H100', ?, ?, 64, 9, 0)",
            (device, sms, device),
        )
        for start, took, grid, block, registers, shared in zip(
            STARTS_NS, DURATIONS_NS, GRIDS, BLOCKS, REGISTERS, SHARED, strict=True
        ):
            own = min(shared, 1000)
            connection.execute(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 18)})",
                (
                    *(start, start + took, device, 1, 7, 102, 1 << 48, 1, 1, *grid, *block),
                    *(registers, own, shared - own),
                ),
            )
    return path


def chrome_trace(**changes: Any) -> dict[str, Any]:
    """Return the content of a trace of ``torch.profiler``; ``changes`` of args of its kernels."""
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        | {"ts": 4999990.5, "dur": 4.5, "args": {"cbid": 211, "correlation": 102}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0}
        | {"tid": 7, "ts": 4900000.0, "dur": 50.24, "args": {"device": 0, "bytes": 8389}},
    ]
    for start, took, grid, block, registers, shared in zip(
        STARTS_NS, DURATIONS_NS, GRIDS, BLOCKS, REGISTERS, SHARED, strict=True
    ):
        per_sm = grid[0] * grid[1] * grid[2] / 132
        args = {
            "External id": 12,
            "queued": 0,
            "device": 0,
            "context": 1,
            "stream": 7,
            "correlation": 102,
            "registers per thread": registers,
            "shared memory": shared,
            "blocks per SM": per_sm,
            "warps per SM": per_sm * block[0] * block[1] / 32,
            "grid": list(grid),
            "block": list(block),
            "est. achieved occupancy %": 100,
        } | changes
        events.append(
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7}
            | {"ts": start / 1e3, "dur": took / 1e3, "args": args}
        )
    gpu = {"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    return {"schemaVersion": 1, "deviceProperties": [gpu], "traceEvents": events}


def trace(folder: Path, content: object | None = None) -> Path:
    """Return a trace of ``torch.profiler``."""
    path = folder / "trace.json"
    path.write_text(json.dumps(chrome_trace() if content is None else content))
    return path
