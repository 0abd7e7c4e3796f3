"""When to start a process again that ended by itself, and when to give up. Knows no process and
reads no clock."""

from dataclasses import dataclass

from tandem.facts.backoff import spread

# With this exit status a process says that it was told to leave in order to be started anew.
AGAIN = 75


@dataclass(frozen=True, slots=True)
class RestartConfig:
    """The first restart comes after `first_delay_s`, every next one after twice as long, but never
    more than `longest_delay_s`; all are spread, so that many do not start together. After
    `most_in_a_row` it is given up; who ran for `steady_s` begins anew. With one of
    the exit statuses `hopeless` a process says that a new start mends nothing."""

    first_delay_s: float = 0.5
    longest_delay_s: float = 30.0
    most_in_a_row: int = 8
    steady_s: float = 60.0
    hopeless: tuple[int, ...] = (2, 3)


class Restarts:
    """The books of all processes, by name."""

    def __init__(self, config: RestartConfig) -> None:
        self.config = config
        self._in_a_row: dict[str, int] = {}

    def delay_s(self, name: str, status: int, ran_s: float, *, chance: float = 1.0) -> float | None:
        """How long to wait before the process starts again that ended with this status after
        `ran_s`, spread by `chance`; None to give it up."""
        if status in self.config.hopeless:
            return None
        count = 0 if ran_s >= self.config.steady_s else self._in_a_row.get(name, 0)
        if count >= self.config.most_in_a_row:
            return None
        self._in_a_row[name] = count + 1
        delay_s = min(self.config.longest_delay_s, self.config.first_delay_s * 2.0**count)
        return spread(delay_s, chance)

    def last_resort_s(self, *, chance: float = 1.0) -> float:
        """How long to wait with one that would be given up if anybody else did its work."""
        return spread(self.config.longest_delay_s, chance)
