"""Records of made-up jobs."""

from __future__ import annotations

import random

HEADER = (
    "job,user,name,gpus,gpu_model,card_mib,service,start_s,end_s,"
    "memory_mean_mib,memory_p95_mib,memory_max_mib,gpu_util_mean,gpu_util_p95"
)


def services(count: int, seed: int) -> list[dict]:
    """Return services on one GPU each of 81,920 MiB, all at one moment."""
    draw = random.Random(seed)
    return [
        {
            "job": f"s{k}",
            "memory_mib": draw.randint(15_000, 60_000),
            "util": round(draw.betavariate(1, 6), 4),
        }
        for k in range(count)
    ]


def services_csv(found: list[dict]) -> str:
    """Return the services as a table of records, with their mean utilisation and peak memory."""
    lines = ["job,gpus,gpu_model,card_mib,service,memory_p95_mib,gpu_util_mean"]
    lines += [f"{s['job']},1,X,81920,yes,{s['memory_mib']},{s['util']}" for s in found]
    return "\n".join(lines) + "\n"


def month(count: int, seed: int, days: float = 30.0) -> list[dict]:
    """Return jobs that come and go."""
    draw = random.Random(seed)
    jobs = []
    for k in range(count):
        user, name = draw.randrange(20), draw.randrange(5)
        kind = random.Random(100 * user + name)
        begin = draw.random() * days * 86_400
        util, memory = kind.random() ** 1.5, kind.randrange(2_000, 70_000)
        jobs.append(
            {
                "job": str(k),
                "user": f"u{user}",
                "name": f"n{name}",
                "gpus": kind.choice([1, 1, 1, 2, 4, 8]),
                "gpu_model": "X",
                "card_mib": 81_920,
                "service": "no",
                "start_s": round(begin, 1),
                "end_s": round(begin + draw.lognormvariate(8.5, 1.3), 1),
                "memory_mean_mib": round(0.8 * memory, 1),
                "memory_p95_mib": memory,
                "memory_max_mib": round(1.1 * memory, 1),
                "gpu_util_mean": round(util, 3),
                "gpu_util_p95": round(min(1, 1.3 * util), 3),
            }
        )
    return jobs


def month_csv(jobs: list[dict]) -> str:
    """Return the jobs as a table of records."""
    lines = [HEADER, *(",".join(str(job[name]) for name in HEADER.split(",")) for job in jobs)]
    return "\n".join(lines) + "\n"
