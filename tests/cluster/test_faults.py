"""Faults of agents, links and controllers of a pool of nodes, with real processes.

Every job appends a line to a file as it starts, so starts are counted by the jobs themselves.
"""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from dovetail.cluster.lease import LEAST_S
from dovetail.cluster.logs import LogPiece, LogPlace
from dovetail.cluster.messages import AgentAnswer, AgentCallError, AgentRequest, Want
from dovetail.cluster.pool import NodesPool
from dovetail.executor.pools.runs.files import whole
from dovetail.executor.system.clock import boot_s
from tests.executor.local_runs import Watched, a_run, cleared, left_over, python
from tests.executor.waiting import LIMIT_S, wait_until

from . import agents as on_this_machine
from .agents import start_agents

ANOTHER = "a controller with another state directory has this node"

AMPLE_S = 600.0
"""A lease that outlasts whatever a busy machine takes."""


@pytest.fixture
def agents(tmp_path):
    """Return two agents of one device each."""
    started = start_agents(tmp_path / "agents", 2, "cpu:devices=1")
    yield started
    for agent in started:
        agent.end()


@pytest.fixture
def finder(agents):
    return on_this_machine.finder(agents)


@pytest.fixture
def make(tmp_path, finder):
    """Return a function that makes a controller; the one before is closed."""
    pools = []

    def new(*runs, lease_s=AMPLE_S, **options):
        for old in pools:
            old.pool.close()
        pools.append(Watched(NodesPool(tmp_path / "home", finder, lease_s, **options)))
        pools[-1].found = pools[-1].pool.resume(runs)
        return pools[-1]

    yield new
    for old in pools:
        old.pool.close()


def counted(tmp_path, then, name="j1.1", nodes=("n1", "n2"), **spec):
    """Return a run that counts its starts, one rank a node."""
    command = f"echo started >> {tmp_path}/starts-{name}-${{RANK:-0}}; {then}"
    return a_run(command, name=name, gpus=tuple(f"{node}/cpu-0" for node in nodes), **spec)


def starts(tmp_path):
    return {
        path.name.removeprefix("starts-"): path.read_text().count("started")
        for path in sorted(tmp_path.glob("starts-*"))
    }


def events_of(pool, kind):
    pool.events += pool.pool.poll()
    return [event for event in pool.events if event.kind == kind]


def wait_for_any(pool, kinds, rank, run="j1.1", since=0):
    """Return the first event of these kinds of a rank, once there is one."""

    def found():
        pool.events += pool.pool.poll()
        fits = (
            e for e in pool.events[since:] if (e.kind in kinds and (e.run, e.rank) == (run, rank))
        )
        return next(fits, None)

    wait_until(found, what=f"{kinds} of {run}, rank {rank}")
    return found()


def homes(agent):
    return [*(agent.state / "homes").glob("*")]


def test_a_gang_meets_where_its_first_rank_is(make, tmp_path, agents):
    pool = make()
    pool.pool.launch(counted(tmp_path, "echo $RANK/$WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"))
    for rank in (0, 1):
        assert pool.wait_for("rank_ended", rank).status == 0
    logs = [Path(pool.pool.log_path("j1.1", rank)).read_text().split() for rank in (0, 1)]
    assert [line[0] for line in logs] == ["0/2", "1/2"]
    assert logs[0][2] == logs[1][2]
    assert logs[0][2].startswith("127.0.0.2:")


def test_an_agent_that_is_killed_and_started_again_loses_nothing(make, tmp_path, agents):
    pool = make()
    pool.pool.launch(counted(tmp_path, "sleep 3; exit 3"))
    for rank in (0, 1):
        pool.wait_for("rank_ready", rank)
    agents[1].kill()
    agents[1].start()
    assert pool.wait_for("rank_ended", 1).status == 3
    assert pool.wait_for("rank_ended", 0).status == 3
    assert len(events_of(pool, "rank_ended")) == 2
    assert starts(tmp_path) == {"j1.1-0": 1, "j1.1-1": 1}


def test_a_log_that_its_node_does_not_send_is_said_to_lack_output(make, tmp_path, agents):
    pool = make()
    pool.pool.launch(counted(tmp_path, "echo one"))
    for rank in (0, 1):
        assert pool.wait_for("rank_ended", rank).status == 0
    agents[1].kill()
    assert pool.pool.log_path("j1.1", 1) is None
    assert pool.pool.log_lack("j1.1", 1).startswith(f"{agents[1].node}: ")
    assert Path(pool.pool.log_path("j1.1", 0)).read_text() == "one\n"
    assert pool.pool.log_lack("j1.1", 0) == ""
    agents[1].start()
    wait_until(lambda: pool.pool.log_path("j1.1", 1))
    assert pool.pool.log_lack("j1.1", 1) == ""
    assert Path(pool.pool.log_path("j1.1", 1)).read_text() == "one\n"


# The job records its starts and copies that run at the same time; only its shim can end it.
LOCKED = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lines = os.open(sys.argv[1] + "-lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
lock = os.open(sys.argv[1] + "-lock", os.O_RDWR | os.O_CREAT, 0o600)
os.write(lines, b"started\\n")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    os.write(lines, b"twice\\n")
while not os.path.exists(sys.argv[1] + "-go"):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("survives", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_agent_that_has_lost_its_directory_starts_nothing_again(
    make, tmp_path, agents, survives
):
    """The agent's node takes no job before the lease of the old runs has lapsed."""
    agent = agents[1]
    marks = tmp_path / "job"
    run = a_run((*python(LOCKED), str(marks)), gpus=("n2/cpu-0",))
    over = a_run("exit 7", name="j2.1", gpus=("n2/cpu-0",))
    pool = make(lease_s=LEAST_S)
    pool.pool.launch(over)
    assert pool.wait_for("rank_ended", run="j2.1").status == 7
    pool.pool.launch(run)
    wait_until(Path(f"{marks}-lines").exists)
    agent.kill()
    if not survives:
        for home in homes(agent):
            with cleared(home):
                pass
    killed_s = boot_s()
    (agent.state).rename(agent.directory / "old")
    agent.start()
    pool.wait_for("rank_lost", run="j1.1")
    pool = make(run, over, lease_s=LEAST_S)
    pool.pool.launch(run)
    gone = pool.wait_for("rank_gone", run="j1.1")
    assert "its lease has lapsed" in gone.reason
    assert boot_s() - killed_s > LEAST_S
    old = list((agent.directory / "old" / "homes").glob("*"))
    wait_until(lambda: not any(left_over(home) for home in old))
    for one in (run, over):
        pool.pool.release(one.id)
    since = pool.events.index(gone)
    wait_until(lambda: {*events_of(pool, "device_healed")} & {*pool.events[since:]})
    assert Path(f"{marks}-lines").read_text() == "started\n"
    pool = make()
    # The node takes jobs again, and the next agent remembers what it has started.
    again = a_run((*python(LOCKED), str(marks)), name="j1.2", gpus=("n2/cpu-0",))
    pool.pool.launch(again)
    pool.wait_for("rank_ready", run="j1.2")
    agent.kill()
    agent.start()
    Path(f"{marks}-go").touch()
    assert pool.wait_for("rank_ended", run="j1.2").status == 0
    assert Path(f"{marks}-lines").read_text() == "started\n" * 2


def test_nodes_that_are_cut_off_end_their_jobs_before_these_are_reported_as_gone(
    make, tmp_path, agents, finder
):
    """n1's link is cut, n2's agent is frozen; afterwards both answer again."""
    pool = make(lease_s=LEAST_S)
    beat = "trap '' TERM; while :; do date +%s.%N > {}/beat-{}; sleep 0.1; done"
    for k, node in enumerate(("n1", "n2"), 1):
        run = counted(tmp_path, beat.format(tmp_path, node), f"j{k}.1", (node,))
        pool.pool.launch(run)
        pool.wait_for("rank_ready", run=run.id)
    finder.cut.add("n1")
    agents[1].freeze()
    cut_s = boot_s()
    for run in ("j1.1", "j2.1"):
        pool.wait_for("rank_lost", run=run)
        assert "does not answer" in pool.wait_for("rank_gone", run=run).reason.replace(
            "has not answered", "does not answer"
        )
    assert boot_s() - cut_s > LEAST_S
    # No process of them is left by now, although n2's agent was frozen.
    wait_until(lambda: not any(left_over(home) for agent in agents for home in homes(agent)))
    beats = [(tmp_path / f"beat-{node}").read_text() for node in ("n1", "n2")]
    sick = {event.gpu for event in events_of(pool, "device_sick")}
    assert sick == {"n1/cpu-0", "n2/cpu-0"}
    reported = len(pool.events)
    finder.cut.remove("n1")
    agents[1].thaw()
    wait_until(lambda: len(events_of(pool, "device_healed")) == 2)
    for run in ("j1.1", "j2.1"):
        pool.pool.release(run)
    assert {event.kind for event in pool.events[reported:]} <= {"device_healed", "device_sick"}
    # Both take jobs again.
    pool.pool.launch(counted(tmp_path, "true", "j3.1"))
    for rank in (0, 1):
        assert pool.wait_for("rank_ended", rank, "j3.1").status == 0
    assert beats == [(tmp_path / f"beat-{node}").read_text() for node in ("n1", "n2")]
    assert starts(tmp_path) == {"j1.1-0": 1, "j2.1-0": 1, "j3.1-0": 1, "j3.1-1": 1}


def test_a_node_that_answers_again_in_time_reports_its_ranks(make, tmp_path, agents):
    pool = make()
    pool.pool.launch(counted(tmp_path, "exec sleep 600"))
    for rank in (0, 1):
        pool.wait_for("rank_ready", rank)
    agents[1].freeze()
    pool.wait_for("rank_lost", 1)
    before = len(pool.events)
    agents[1].thaw()
    wait_for_any(pool, {"rank_ready"}, 1, since=before)
    pool.pool.stop("j1.1", 20.0)
    assert {pool.wait_for("rank_ended", rank).status for rank in (0, 1)} == {-15}
    assert not events_of(pool, "rank_gone")
    assert starts(tmp_path) == {"j1.1-0": 1, "j1.1-1": 1}


def test_a_rank_that_ended_while_its_node_was_lost_may_be_taken_back(
    make, tmp_path, agents, finder
):
    """The engine ends the node's agent and then its job."""
    finder.taken_back = lambda node: f"{node} was taken back"
    pool = make()
    pool.pool.launch(counted(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600", nodes=("n2",)))
    pool.wait_for("rank_ready")
    agents[1].kill()
    pool.wait_for("rank_lost")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    agents[1].start()
    assert pool.wait_for("rank_gone").reason == "n2 was taken back"
    assert not events_of(pool, "rank_ended")


@pytest.mark.long
def test_a_slow_link_costs_no_job(make, tmp_path, agents, finder):
    """Every message arrives 0.3 s late, in both directions."""
    finder.delay_s = 0.3
    pool = make(lease_s=6.0)
    pool.pool.launch(counted(tmp_path, "sleep 8; exit 3", nodes=("n1",)))
    assert pool.wait_for("rank_ended").status == 3
    assert not events_of(pool, "rank_lost")
    assert starts(tmp_path) == {"j1.1-0": 1}


CONTROLLER = """
import pickle, sys, time
from pathlib import Path
from dovetail.executor.jobs.specs import Run
from dovetail.cluster.pool import NodesPool
pool = NodesPool(Path(sys.argv[1]), pickle.loads(bytes.fromhex(sys.argv[2])), 600.0)
pool.resume([])
for text in sys.argv[3:]:
    pool.launch(Run.model_validate_json(text))
print("launched", flush=True)
while True:
    for event in pool.poll():
        print(event.kind, getattr(event, "reason", ""), flush=True)
    time.sleep(0.05)
"""


def controller(tmp_path, finder, *runs):
    known = pickle.dumps(finder).hex()
    words = [str(tmp_path / "home"), known, *(run.model_dump_json() for run in runs)]
    return subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_controller_that_was_frozen_is_refused_after_the_next_one(make, tmp_path, finder):
    run = counted(tmp_path, "exec sleep 600")
    with controller(tmp_path, finder, run) as old:
        try:
            wait_until(lambda: len(starts(tmp_path)) == 2)
            old.send_signal(signal.SIGSTOP)
            pool = make(run)
            for rank in (0, 1):
                pool.wait_for("rank_ready", rank)
            old.send_signal(signal.SIGCONT)
            lines = []
            while not any("a newer controller has this node" in line for line in lines):
                lines.append(old.stdout.readline())
            assert not any(line.startswith("rank_gone") for line in lines)
        finally:
            old.kill()
    pool.pool.stop("j1.1", 20.0)
    assert {pool.wait_for("rank_ended", rank).status for rank in (0, 1)} == {-15}
    assert starts(tmp_path) == {"j1.1-0": 1, "j1.1-1": 1}


LATER = [pytest.param(s, marks=pytest.mark.long) for s in (0.02, 0.05, 0.08, 0.15, 0.2, 0.4)]


@pytest.mark.parametrize("after_s", [0.0, 0.1, *LATER])
def test_a_controller_that_is_killed_while_gangs_start(make, tmp_path, finder, after_s):
    """Every rank starts once, or never; and the next controller can end all of it."""
    runs = [counted(tmp_path, "exec sleep 600", f"j{k}.1") for k in (1, 2)]
    with controller(tmp_path, finder, *runs) as old:
        try:
            assert old.stdout.readline() == "launched\n"
            time.sleep(after_s)
        finally:
            old.kill()
    pool = make(*runs)
    for run in runs:
        pool.pool.launch(run)
    for run in runs:
        for rank in (0, 1):
            wait_for_any(pool, {"rank_ready", "rank_refused"}, rank, run.id)
    for run in runs:
        pool.pool.stop(run.id, 20.0)
    for run in runs:
        for rank in (0, 1):
            wait_for_any(pool, {"rank_ended", "rank_refused"}, rank, run.id)
    assert set(starts(tmp_path).values()) <= {1}


class TestGangsThatCannotStart:
    def test_a_part_that_is_refused_ends_the_others_at_the_barrier(self, make, tmp_path):
        pool = make()
        run = counted(tmp_path, "true")
        wrong = run.seats[1].model_copy(update={"gpu": "n2/no-such"})
        pool.pool.launch(run.model_copy(update={"seats": (run.seats[0], wrong)}))
        assert pool.wait_for("rank_refused", 1).reason == "no device 'no-such'"
        assert pool.wait_for("rank_refused", 0).later
        assert starts(tmp_path) == {}

    def test_a_program_that_is_missing_is_the_job_s_fault(self, make, tmp_path):
        pool = make()
        pool.pool.launch(a_run(("no-such-program",), gpus=("n1/cpu-0", "n2/cpu-0")))
        first = next(iter([pool.wait_for("rank_refused", 0)]))
        assert "is not found" in first.reason
        assert not first.later

    def test_a_node_that_freezes_before_it_is_prepared_aborts_all(self, make, tmp_path, agents):
        pool = make()
        agents[1].freeze()
        pool.pool.launch(counted(tmp_path, "true"))
        for rank in (0, 1):
            assert pool.wait_for("rank_refused", rank).later
        agents[1].thaw()
        wait_until(lambda: events_of(pool, "device_healed"))
        pool.pool.release("j1.1")
        pool.pool.launch(counted(tmp_path, "true", "j1.2"))
        for rank in (0, 1):
            assert pool.wait_for("rank_ended", rank, "j1.2").status == 0
        assert starts(tmp_path) == {"j1.2-0": 1, "j1.2-1": 1}

    def test_an_agent_that_dies_between_prepare_and_commit_starts_all_or_nothing(
        self, make, tmp_path, agents
    ):
        """Rank 0 waits at the start barrier for n2, which is frozen; then its agent dies."""
        pool = make()
        agents[1].freeze()
        pool.pool.launch(counted(tmp_path, "sleep 0.5"))
        wait_until(lambda: any(left_over(home) for home in homes(agents[0])))
        agents[0].kill()
        agents[0].start()
        agents[1].thaw()
        over = {"rank_ended", "rank_refused"}
        ends = {wait_for_any(pool, over, rank).kind for rank in (0, 1)}
        assert len(ends) == 1
        ran = {"j1.1-0": 1, "j1.1-1": 1} if ends == {"rank_ended"} else {}
        assert starts(tmp_path) == ran
        pool.pool.release("j1.1")
        wait_until(lambda: not any(left_over(home) for agent in agents for home in homes(agent)))

    def test_one_that_is_stopped_while_it_prepares_never_runs(self, make, tmp_path, agents):
        pool = make()
        agents[1].freeze()
        pool.pool.launch(counted(tmp_path, "true"))
        pool.pool.stop("j1.1", 0.0)
        for rank in (0, 1):
            pool.wait_for("rank_refused", rank)
        agents[1].thaw()
        pool.pool.release("j1.1")
        pool.pool.close()
        assert starts(tmp_path) == {}


@contextmanager
def files_limited(agent, most_bytes):
    """Limit the size of an agent's files and of its jobs' files, as on a full disk."""
    pid, kind = agent.pid, resource.RLIMIT_FSIZE
    before = resource.prlimit(pid, kind, (most_bytes, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


class TestFullDisks:
    def test_a_node_that_cannot_write_starts_nothing_and_the_gang_neither(
        self, make, tmp_path, agents
    ):
        """Only the lease can be written, since its file is overwritten in place."""
        pool = make()
        with files_limited(agents[1], 200):
            pool.pool.launch(counted(tmp_path, "true"))
            reasons = [pool.wait_for("rank_refused", rank).reason for rank in (0, 1)]
        assert any("File too large" in reason for reason in reasons)
        pool.pool.release("j1.1")
        pool.pool.launch(counted(tmp_path, "true", "j1.2"))
        for rank in (0, 1):
            assert pool.wait_for("rank_ended", rank, "j1.2").status == 0
        assert starts(tmp_path) == {"j1.2-0": 1, "j1.2-1": 1}

    def test_a_lease_that_cannot_be_written_is_not_taken_as_renewed(self, make, tmp_path, agents):
        pool = make()
        pool.pool.launch(counted(tmp_path, "exec sleep 600"))
        for rank in (0, 1):
            pool.wait_for("rank_ready", rank)
        with files_limited(agents[1], 0):
            assert "File too large" in pool.wait_for("rank_lost", 1).reason
            before = len(pool.events)
        wait_for_any(pool, {"rank_ready"}, 1, since=before)
        pool.pool.stop("j1.1", 20.0)
        assert {pool.wait_for("rank_ended", rank).status for rank in (0, 1)} == {-15}


class TestCalls:
    @pytest.fixture(autouse=True)
    def _with_finder(self, agents):
        self._finder = on_this_machine.finder(agents)
        yield
        self._finder.close()

    def ask(self, agent, body):
        """Return an agent's answer, or the error."""
        try:
            return json.loads(self._finder.call(agent.node, "exchange", body).result(LIMIT_S))
        except AgentCallError as error:
            return f"{type(error).__name__}: {error}"

    def asked(self, **changes):
        fields = {"home": "h", "epoch": 1, "lease_s": 1.0, **changes}
        return AgentRequest.model_validate(fields).model_dump_json()

    def test_an_invalid_call_is_refused_in_one_line(self, agents):
        agent = agents[0]
        assert self.ask(agent, "{").startswith("AgentCallError: invalid JSON: ")
        assert (
            self.ask(agent, "[]")
            == "AgentCallError: must be a mapping of field names to values, got an empty list"
        )
        version = self.asked().replace('"protocol":5', '"protocol":4')
        assert self.ask(agent, version) == "AgentCallError: protocol: must be 5, got 4"
        assert "epoch" in self.ask(agent, '{"protocol":5,"home":"h","epoch":0,"lease_s":1}')
        assert "incarnation" in self.ask(agent, self.asked())
        for place in ({"run": "j1.1"}, {"run": "j1.1", "rank": -1, "part": "", "offset": 0}):
            asked = self._finder.call("n1", "log", json.dumps(place))
            assert isinstance(asked.exception(LIMIT_S), AgentCallError)

    def test_the_log_call_reads_no_other_files(self, agents):
        assert "incarnation" in self.ask(agents[0], self.asked())
        empty = LogPiece().model_dump_json()
        for run in ("..", "../..", "x/../../token", "%2e%2e"):
            place = LogPlace(run=run, rank=0, part="", offset=0).model_dump_json()
            asked = self._finder.call("n1", "log", place)
            assert asked.exception(LIMIT_S) is not None or asked.result() == empty

    def test_an_answer_that_is_lost_is_given_again(self, make, tmp_path, agents):
        """The next controller of the directory sends its request twice."""
        pool = make()
        pool.pool.launch(counted(tmp_path, "exec sleep 600", nodes=("n1",)))
        pool.wait_for("rank_ready", 0)
        pool.pool.close()
        mark = json.loads((tmp_path / "home/nodes/controller.json").read_text())
        next_one = {"home": mark["home"], "epoch": mark["epoch"] + 1, "keep_others": True}
        incarnation = self.ask(agents[0], self.asked(**next_one))["incarnation"]
        wants = {**next_one, "incarnation": incarnation, "version": 1, "wants": ()}
        states = [
            AgentAnswer.model_validate(self.ask(agents[0], self.asked(**wants))).state
            for _ in range(2)
        ]
        assert [part.run.id for part in states[0].unwanted] == ["j1.1"]
        assert [event.kind for event in states[0].ranks] == ["rank_started", "rank_ready"]
        assert states[0] == states[1]
        make().pool.stop("j1.1", 0.0)

    def test_wants_that_were_overtaken_change_nothing(self, make, tmp_path, agents):
        run = counted(tmp_path, "exec sleep 600", nodes=("n1",))
        known = {"incarnation": self.ask(agents[0], self.asked())["incarnation"]}
        newer = self.ask(agents[0], self.asked(**known, version=3, wants=()))
        want = Want(part=whole(run), phase="launch")
        older = self.ask(agents[0], self.asked(**known, version=2, wants=(want,)))
        assert newer["wanted"] == older["wanted"] == 3
        assert older["state"]["ranks"] == []

    def test_a_controller_that_was_displaced_for_a_moment_gets_another_incarnation(self, agents):
        """A request of another directory arrives in between, while the node has no runs."""
        first = self.ask(agents[0], self.asked())
        self.ask(agents[0], self.asked(home="other"))
        again = {"incarnation": first["incarnation"], "version": 1, "wants": ()}
        back = self.ask(agents[0], self.asked(**again))
        assert back["incarnation"] != first["incarnation"]
        assert (back["wanted"], back["facts"]) == (0, first["facts"])

    def test_a_lower_epoch_is_refused_and_another_home_of_an_idle_agent_is_not(self, agents):
        agent = agents[0]
        assert "incarnation" in self.ask(agent, self.asked(epoch=2))
        refused = "FencedError: a newer controller has this node (epoch 2)"
        assert self.ask(agent, self.asked(epoch=1)) == refused
        agent.kill()
        agent.start()
        assert self.ask(agent, self.asked(epoch=1)) == refused
        assert "incarnation" in self.ask(agent, self.asked(home="other"))

    def test_another_home_is_refused_while_runs_are_kept(self, make, tmp_path, agents):
        pool = make()
        pool.pool.launch(counted(tmp_path, "exec sleep 600"))
        pool.wait_for("rank_ready", 0)
        refused = self.ask(agents[0], self.asked(home="other", epoch=99))
        assert refused == f"FencedError: {ANOTHER}"
        pool.pool.stop("j1.1", 0.0)
        pool.wait_for("rank_ended", 0)

    def test_a_controller_that_has_ended_holds_no_node_for_runs_that_are_over(
        self, make, tmp_path, agents
    ):
        """Restarted, it learns how they ended once the node is free."""
        run = counted(tmp_path, "exit 7", nodes=("n1",))
        pool = make(lease_s=LEAST_S)
        pool.pool.launch(run)
        pool.wait_for("rank_ended", 0)
        pool.pool.close()
        other = self.asked(home="other")
        assert self.ask(agents[0], other).startswith("FencedError")
        wait_until(lambda: "incarnation" in self.ask(agents[0], other))
        assert make(run, lease_s=LEAST_S).wait_for("rank_ended", 0).status == 7
        assert starts(tmp_path) == {"j1.1-0": 1}
