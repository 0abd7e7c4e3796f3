"""Worker threads: the order of tasks, their number, and their end."""

import threading

from tandem.kv.threads import StepThread, WorkerThread

END_S = 20.0


def never(*_: object) -> None:
    raise AssertionError("no task fails here")


def test_urgent_tasks_go_before_every_step_of_the_others():
    done: list[str] = []

    def step(task: str) -> bool:
        done.append(task)
        if done == ["long"]:
            worker.post("urgent", urgent=True)
        return task != "long" or done.count("long") == 3

    worker = WorkerThread("test", step, failed=never)
    worker.post("long")
    worker.post("short")
    worker.start_worker()
    worker.stop_worker()
    assert worker.join_worker(END_S)
    assert done == ["long", "urgent", "long", "long", "short"]


def test_no_more_tasks_wait_than_may():
    done: list[int] = []
    worker = WorkerThread("test", lambda task: done.append(task) is None, failed=never, capacity=2)
    assert [worker.post(task) for task in range(3)] == [True, True, False]
    worker.start_worker()
    worker.stop_worker()
    assert worker.join_worker(END_S)
    assert done == [0, 1]


def test_what_is_taken_from_the_queue_is_not_worked_on():
    done: list[str] = []

    def work(task: str) -> bool:
        done.append(task)
        assert worker.take_waiting() == ["second", "third"]
        return True

    worker = WorkerThread("test", work, failed=never)
    for task in ("first", "second", "third"):
        worker.post(task)
    worker.start_worker()
    worker.stop_worker()
    assert worker.join_worker(END_S)
    assert done == ["first"]


def test_the_end_is_reported_in_the_thread():
    names: list[str] = []
    worker = WorkerThread(
        "test of the end",
        lambda task: True,
        failed=never,
        ended=lambda: names.append(threading.current_thread().name),
    )
    worker.start_worker()
    assert worker.alive
    worker.stop_worker()
    assert worker.join_worker(END_S)
    assert names == ["test of the end"]


def test_steps_go_on_until_they_are_over():
    left = [3]

    def step() -> bool:
        left[0] -= 1
        return left[0] == 0

    worker = StepThread("test", never)
    worker.start_worker()
    worker.post(step)
    worker.stop_worker()
    assert worker.join_worker(END_S)
    assert left == [0]
