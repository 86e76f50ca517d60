"""Commands are cut where they need not be whole, and environments are shared."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from dovetail.executor.jobs import events
from dovetail.executor.jobs.specs import Charges, SharedEnvironments, brief
from tests.executor.live.telling import ANN, BOB, Story, spec


@given(st.lists(st.text(max_size=12), min_size=1, max_size=8).map(tuple), st.integers(2, 30))
def test_a_cut_command_is_a_beginning_of_at_most_so_many_characters(command, most):
    found = brief(command, most)
    whole, text = " ".join(command), " ".join(found)
    assert len(text) <= most
    assert found is command if len(whole) <= most else text.endswith("…")
    if found is not command:
        assert whole.startswith(text[:-1])
        assert len(text) == most
        assert brief(found, most) is found


def test_equal_environments_become_one_as_long_as_a_job_has_it():
    shared = SharedEnvironments()
    first, second = shared.in_common([spec(env={"A": "b"}), spec(env={"A": "b"}, nice=2)])
    assert first.env is second.env
    (third,) = shared.in_common([spec(env={"A": "b"})])
    assert third.env is first.env
    (other,) = shared.in_common([spec(env={"A": "c"})])
    assert other.env is not first.env


class TestCharges:
    def test_words_in_common_count_once_for_each_user(self):
        charges, long = Charges(), spec(env={"A": "a" * 10_000})
        assert charges.more([long] * 3) < 13_000
        charges.put("j1", long)
        alone = charges.of_user[ANN.uid]
        assert alone > 10_000
        assert charges.more([long.model_copy(update={"index": 5})]) < 1_000
        charges.put("j2", long.model_copy(update={"index": 1}))
        assert charges.of_user[ANN.uid] < alone + 1_000
        assert charges.more([long.model_copy(update={"owner": BOB})]) > 10_000

    def test_what_is_over_is_charged_no_more(self):
        story = Story()
        jobs = [story.submit(env={"A": str(k)}, after_any=()) for k in range(3)]
        jobs.append(story.running("g0"))
        before = story.machine.charges.of_user[ANN.uid]
        changed = jobs[0].spec.changed({"name": "n" * 100})
        story.tell(events.Edited, job=jobs[0].id, spec=changed, by="ann")
        assert 90 < story.machine.charges.of_user[ANN.uid] - before < 300
        for job in jobs[:3]:
            story.cancel(job)
        story.ended(jobs[3])
        assert not story.machine.charges.of_user

    def test_is_at_least_the_memory_that_words_take(self):
        texts = {f"NAME_{k}": f"value {k}" for k in range(1000)}
        made = spec(env=texts)
        kept = sum(sys.getsizeof(k) + sys.getsizeof(v) for k, v in made.env.items())
        assert Charges().more([made]) >= kept
