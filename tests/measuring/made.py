"""Results of a campaign, made by hand."""

from dovetail.measuring.campaign import Campaign, Experiment, WorkerSeat, experiments
from dovetail.measuring.ledger import fingerprint
from dovetail.measuring.results import ExperimentResult, Latency, Machine, Throughput

DATE = "2026-11-22T10:00:00+00:00"


def campaign(*stages, **fields):
    return Campaign.from_data(
        {
            "format": "dovetail-campaign/1",
            "name": "first",
            "workloads": ["conv", "lstm", "tiny"],
            "stages": list(stages) or [{"measure": "solos"}],
            **fields,
        }
    )


def machine(of, **fields):
    return Machine.from_data(
        {
            "campaign": of.name,
            "fingerprint": fingerprint(of),
            "gpu_model": "H200",
            "driver": "580.1",
            "cublas": "130100",
            "sms": 132,
            "memory_mib": 143771.0,
            "host_cores": 16,
            "dovetail": "0.1.0",
            "date": DATE,
            **fields,
        }
    )


def pace(time_s, error=0.01, **fields):
    return Throughput(iterations_s=1 / time_s, iterations=1000, relative_error=error, **fields)


def result(seats, times=None, *, stage=0, repeat=0, **fields):
    """Return a result; ``times`` are the iteration times of the workers, in seconds."""
    seats = [WorkerSeat(seat, "mps") if isinstance(seat, str) else seat for seat in seats]
    experiment = Experiment(stage, tuple(seats), repeat)
    return ExperimentResult.from_data(
        {
            "key": experiment.key,
            "stage": stage,
            "repeat": repeat,
            "mode": seats[0].mode,
            "workloads": [seat.workload for seat in seats],
            "shares": [seat.share for seat in seats],
            "first": [seat.first for seat in seats],
            "status": "ok",
            "paces": None if times is None else [pace(time) for time in times],
            "residents": len(seats),
            "date": DATE,
            **fields,
        }
    )


__all__ = ["DATE", "Latency", "campaign", "experiments", "machine", "pace", "result"]
