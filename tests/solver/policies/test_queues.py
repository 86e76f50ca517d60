from types import SimpleNamespace

from dovetail.solver.policies.queues import Queue
from dovetail.solver.policies.state import Job


def _job(number, work_s):
    return Job(number, f"j{number}", 0, 1, work_s, 0.0)


def test_jobs_come_in_order_whatever_the_order_in_which_they_began_to_wait():
    queue = Queue(lambda job: (job.work_s, job.number))
    a, b, c = _job(0, 5.0), _job(1, 3.0), _job(2, 4.0)
    state = SimpleNamespace(pending={0: a, 1: b})
    assert [job.number for job in queue.jobs(state)] == [1, 0]
    state.pending = {0: a, 2: c}  # b started, c arrived
    assert [job.number for job in queue.jobs(state)] == [2, 0]
    b.starts, b.work_s = 1, 1.0
    state.pending = {0: a, 2: c, 1: b}  # b was stopped, with less to do
    assert [job.number for job in queue.jobs(state)] == [1, 2, 0]


def test_a_renewed_job_is_met_once_and_in_its_new_place():
    queue = Queue(lambda job: (job.work_s, job.number))
    a, b = _job(0, 1.0), _job(1, 2.0)
    state = SimpleNamespace(pending={0: a, 1: b})
    assert [job.number for job in queue.jobs(state)] == [0, 1]
    a.work_s = 9.0
    queue.renew(a)
    assert [job.number for job in queue.jobs(state)] == [1, 0]


def test_old_entries_are_forgotten():
    queue = Queue(lambda job: (job.number,))
    state = SimpleNamespace(pending={})
    for number in range(1000):
        state.pending = {number: _job(number, 1.0)}
        assert [job.number for job in queue.jobs(state)] == [number]
    assert len(queue._sorted) < 100
