"""Makes the journal of a gateway process, and the machine that a journal was recorded of."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import tandem
from tandem.api.clock_and_entropy import fresh_id
from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.config.cluster.file import read_cluster
from tandem.config.cluster.live import as_served
from tandem.config.cluster.requests import JournalConfig
from tandem.config.gateway import reconfigured
from tandem.config.hardware.pools import capacity_of, pool_models
from tandem.config.journal import recorded_cluster, recorded_text
from tandem.config.policies import (
    learning_of,
    limit_terms,
    pause_config,
    planning_config,
    router_config,
)
from tandem.facts.errors import InvalidConfiguration
from tandem.live.clock import now_ns, wall_clock_s
from tandem.live.gateway.journal import Journal
from tandem.observe.journal.files import FileLimits, JournalFiles
from tandem.observe.journal.pseudonyms import SessionNames, TenantNames
from tandem.observe.journal.recorder import Recorder
from tandem.observe.journal.records import Head, Reconfigured
from tandem.observe.journal.replay import Configure, ReplayedHashes

# The cluster file as it is to be recorded, with the files that it names.
RecordedFile = Callable[[], tuple[str, dict[str, str]]]


def with_journal(
    config: GatewayConfig, wanted: JournalConfig, cluster_file: Path, incarnation: str
) -> tuple[GatewayConfig, Journal, RecordedFile]:
    """The configuration of a machine whose hashes are recorded, the journal that records its turns,
    and what reads the cluster file anew. Raises `InvalidConfiguration`, as that does."""
    tenants = TenantNames(
        [tenant.name for tenant in read_cluster(str(cluster_file)).tenants],
        plain=wanted.plain_names,
    )
    text, files = recorded_text(cluster_file, tenants.label)
    router = config.router
    head = Head(
        version=tandem.__version__,
        gateway=config.gateway,
        incarnation=incarnation,
        number=0,
        turns_before=0,
        started_ns=now_ns(),
        wall_clock_s=wall_clock_s(),
        cluster=text,
        files=files,
        root=router.root,
        block_size=router.block_size,
        terms=config.terms,
        model=config.model,
        revision=config.revision,
        block_format=config.block_format,
        plans=config.planning is not None,
    )
    sessions = SessionNames(fresh_id("").encode(), plain=wanted.plain_names)
    recorder = Recorder(router.block_size, tenants, sessions)
    _make_folder(Path(wanted.directory))
    limits = FileLimits(int(wanted.file_size_bytes), wanted.keep)
    journal = Journal(recorder, JournalFiles(Path(wanted.directory), head, limits))
    recorded = replace(config, router=replace(router, hashes=recorder.hashes))
    return recorded, journal, lambda: recorded_text(cluster_file, tenants.label)


def recorded_machine(head: Head, folder: Path) -> tuple[GatewayMachine, ReplayedHashes, Configure]:
    """A fresh machine as the recorded one was, which explains what it decides, and what makes its
    later configurations. Files that they name are written to `folder`, and needed for as long as it
    is used. Raises `InvalidConfiguration`, as that does."""
    cluster = recorded_cluster(head.cluster, head.files, folder)
    hashes, served = ReplayedHashes(head.block_size), as_served(cluster)
    router = router_config(served, head.root, head.block_size, {})
    config = GatewayConfig(
        gateway=head.gateway,
        router=replace(router, hashes=hashes, explains=True),
        capacity_of=capacity_of(served),
        terms=head.terms,
        model=head.model,
        revision=head.revision,
        block_format=head.block_format,
        planning=planning_config(served) if head.plans else None,
        limits=limit_terms(served, served.gateways),
        learning=learning_of(served),
        pauses=pause_config(served),
        pool_models=pool_models(served),
    )
    machine = GatewayMachine(config)

    def configure(record: Reconfigured) -> GatewayConfig:
        nonlocal served
        own = folder / f"configuration-{record.number}"
        own.mkdir()
        before = served
        served = as_served(recorded_cluster(record.cluster, record.files, own))
        return reconfigured(
            machine.config, before, served, number=record.number, plans=record.plans
        )

    return machine, hashes, configure


def _make_folder(directory: Path) -> None:
    """What cannot be written fails before anybody waits for the gateway."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfiguration(
            f"journal.directory: cannot make {directory}: {error.strerror}; choose another folder"
        ) from error
