"""How long silence is tolerated in a cluster, live and simulated. Raises `InvalidConfiguration` for
times that would kill whoever is well."""

from dataclasses import dataclass, field

from tandem.facts.errors import InvalidConfiguration

# Where a report interval of 0 cannot mean "always known".
LIVE_REPORT_INTERVAL_S = 0.1


def _seconds(meaning: str, default: float) -> float:
    """A time that is also a key of a cluster file."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class Health:
    """How long silence is tolerated."""

    report_interval_s: float = _seconds(
        "How often a worker sends its load; 0: always known to the simulator, 100 ms live.", 0.0
    )
    heartbeat_timeout_s: float = _seconds("A silent worker counts as dead after it.", 10.0)
    transfer_timeout_s: float = _seconds("A transfer counts as lost after it.", 60.0)
    lease_s: float = _seconds(
        "A worker gives up requests that no gateway asked for in so long.", 30.0
    )

    @property
    def live_report_interval_s(self) -> float:
        return self.report_interval_s or LIVE_REPORT_INTERVAL_S

    def __post_init__(self) -> None:
        for name, seconds in (
            ("heartbeat_timeout", self.heartbeat_timeout_s),
            ("transfer_timeout", self.transfer_timeout_s),
            ("lease", self.lease_s),
        ):
            if seconds <= 0:
                raise InvalidConfiguration(f"{name} must be more than 0, got {seconds:g}s")
        if 2 * self.report_interval_s > self.heartbeat_timeout_s:
            raise InvalidConfiguration(
                f"heartbeat_timeout ({self.heartbeat_timeout_s:g}s) must be at least twice "
                f"report_interval ({self.report_interval_s:g}s), or one late report kills a worker"
            )
