"""A batch outlives the processes that answer it: killed in the middle, the server goes on where it
was, and every answer is there once, the same as undisturbed."""

from tests.chaos.batches import killed_batch, server


def test_a_batch_outlives_a_kill_and_says_each_answer_once(tmp_path):
    disturbed, undisturbed = killed_batch(server(tmp_path, at_once=2), 200, [70])
    assert disturbed == undisturbed
    assert len(set(disturbed.values())) > 20
