"""One history of several gateways of a cluster, from the journals that they keep in one folder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.rate_limits import background_account, owner_of_account
from tandem.observe.journal.files import JournalRun
from tandem.observe.journal.history import History, PastRequest
from tandem.observe.journal.replay import turns_of

# Heads know the second of their clock. On one machine all instants are of one clock; clocks that
# are no further apart are taken for one.
SAME_CLOCK_NS = 1_500_000_000


def history_of(run: JournalRun) -> History:
    """Of one run alone."""
    return History(run.head, turns_of(run.records()))


def joint_history(
    run: JournalRun, tenants: Iterable[str]
) -> tuple[History, tuple[JournalRun, ...]]:
    """The requests that came to any gateway of a cluster since this run began, as if all had come
    to one; and the other runs in it: of each other gateway the newest in the folder, if both were
    there at the same time. Requests are numbered anew, by arrival. A session that went to two
    gateways is two, since each has its own pseudonyms; so is a tenant, but for these `tenants`,
    who stand in the cluster file."""
    own = history_of(run)
    first_ns = _first_ns(own)
    joined: list[tuple[JournalRun, History, int]] = []
    for other in _beside(run):
        if other.head.root != run.head.root:
            continue
        history = history_of(other)
        shift_ns = _shift_ns(own, history)
        if history.last_ns + shift_ns >= first_ns and _first_ns(history) + shift_ns <= own.last_ns:
            joined.append((other, history, shift_ns))
    if joined:
        others = [(history, shift_ns) for _, history, shift_ns in joined]
        _join(own, others, first_ns, frozenset(tenants))
    return own, tuple(other for other, _, _ in joined)


def _beside(run: JournalRun) -> Iterator[JournalRun]:
    """The newest run of each other gateway; those that cannot be read are left out."""
    newest = {files[0].gateway: files for files in run.others.values()}
    newest.pop(run.head.gateway, None)
    for files in newest.values():
        try:
            yield JournalRun(files)
        except InvalidConfiguration:
            # Of another version, or cut off before its head: it is named as not played.
            continue


def _first_ns(history: History) -> int:
    """When the gateway was there, as far as is recorded."""
    return min(history.head.started_ns, history.first_ns)


def _shift_ns(own: History, other: History) -> int:
    """What is added to the other's instants."""

    def unix_ns(history: History) -> int:
        return history.head.wall_clock_s * 1_000_000_000 - history.head.started_ns

    shift_ns = unix_ns(other) - unix_ns(own)
    return 0 if abs(shift_ns) < SAME_CLOCK_NS else shift_ns


def _join(
    own: History,
    others: Sequence[tuple[History, int]],
    since_ns: int,
    tenants: frozenset[str],
) -> None:
    requests = list(own.requests.values())
    for place, (other, shift_ns) in enumerate(others, 1):
        requests += [
            _moved(request, shift_ns, place, tenants)
            for request in other.requests.values()
            if request.arrival_ns + shift_ns >= since_ns
        ]
        own.last_ns = max(own.last_ns, other.last_ns + shift_ns)
        for name, worker in other.workers.items():
            known = own.workers.setdefault(name, worker)
            if known is not worker:
                # Both saw the same worker.
                known.up_ns = max(known.up_ns, worker.up_ns)
    requests.sort(key=lambda request: request.arrival_ns)
    own.first_ns = requests[0].arrival_ns if requests else own.first_ns
    own.requests = {
        number: replace(request, submitted=structs.replace(request.submitted, name=number))
        for number, request in enumerate(requests)
    }


def _moved(
    request: PastRequest, shift_ns: int, gateway: int, tenants: frozenset[str]
) -> PastRequest:
    """What happened to it on the clock of the first history, with a tenant's name that no other
    gateway gives. Deadlines stay on its own clock."""

    def moved(at_ns: int) -> int:
        return at_ns + shift_ns if at_ns >= 0 else at_ns

    asked = request.submitted
    owner = owner_of_account(asked.tenant)
    if owner and owner not in tenants:
        tenant = f"{owner}.{gateway}"
        if owner != asked.tenant:
            tenant = background_account(tenant)
        asked = structs.replace(asked, tenant=tenant)
    return replace(
        request,
        submitted=asked,
        arrival_ns=moved(request.arrival_ns),
        first_token_ns=moved(request.first_token_ns),
        last_token_ns=moved(request.last_token_ns),
        end_ns=moved(request.end_ns),
    )
