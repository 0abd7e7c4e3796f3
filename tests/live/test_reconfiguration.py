"""Configurations of operators at a gateway that runs: every one is answered, whatever comes of it,
and files are read beside the event loop."""

import threading
from types import SimpleNamespace

import pytest

from tandem.facts.errors import InvalidConfiguration
from tandem.live.channels.gateway_channel import MessageFromOperator
from tandem.live.gateway.reconfiguration import NewConfiguration, Reconfiguration
from tandem.messages.operator import AskConfigure, AskStatus, Done
from tests.live.toy_cluster import until


class Bed:
    """A gateway and its channel, played; `make` reads every configuration."""

    def __init__(self, make) -> None:
        self.taken: list = []
        self.enqueued: list = []
        self.answers: list = []
        config = SimpleNamespace(configuration=3)
        gateway = SimpleNamespace(
            machine=SimpleNamespace(config=config),
            reconfigure=self._reconfigure,
            enqueue=self.enqueued.append,
        )
        self.reconfiguration = Reconfiguration(gateway, make)
        self.reconfiguration.open(
            SimpleNamespace(answer=lambda peer, answer: self.answers.append((peer, answer)))
        )

    async def _reconfigure(self, change, terms) -> None:
        self.taken.append((change, terms))

    async def configure(self, number: int, *, check_only: bool = False) -> str:
        """The problem."""
        asked = AskConfigure(7, number, b"", check_only)
        self.reconfiguration.on_news(MessageFromOperator("operator", asked))
        await until(lambda: self.answers)
        ((peer, done),) = self.answers
        self.answers.clear()
        assert (peer, done.question) == ("operator", 7)
        assert isinstance(done, Done)
        return done.problem


@pytest.mark.parametrize("where", ["make", "change"])
async def test_an_unexpected_error_is_logged_and_answered(where, caplog):
    def fail(*_):
        raise KeyError("datasheet")

    new = NewConfiguration(fail, None, lambda: None)
    bed = Bed(fail if where == "make" else lambda _: new)
    problem = await bed.configure(4)
    assert problem == "it failed: KeyError: 'datasheet'; the log says more"
    assert "configuration 4 was not taken" in caplog.text
    assert "Traceback" in caplog.text
    # The next one is taken up all the same.
    assert "KeyError" in await bed.configure(5)
    assert bed.taken == []


async def test_files_are_read_beside_the_event_loop_and_only_to_take_it():
    threads = []

    def change():
        threads.append(threading.get_ident())
        return "changed"

    done = []
    bed = Bed(lambda _: NewConfiguration(change, "terms", lambda: done.append(1)))
    assert await bed.configure(4, check_only=True) == ""
    assert (threads, bed.taken, done) == ([], [], [])
    assert await bed.configure(4) == ""
    assert threads
    assert threading.get_ident() not in threads
    assert (bed.taken, done) == ([("changed", "terms")], [1])


async def test_a_refusal_has_its_reason_and_nothing_older_is_taken():
    def refuse(_):
        raise InvalidConfiguration("there is no such datasheet")

    bed = Bed(refuse)
    assert await bed.configure(4) == "there is no such datasheet"
    assert await bed.configure(2) == "configuration 3 has been taken since"
    assert await bed.configure(3) == ""
    other = MessageFromOperator("operator", AskStatus(1))
    bed.reconfiguration.on_news(other)
    assert bed.enqueued == [other]
