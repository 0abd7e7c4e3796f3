"""A gateway process of a cluster: the HTTP API in front, its workers and operators behind. It loads
no model, so nothing it imports may import torch; only one that has encoders does, for them."""

import asyncio
import importlib
import logging
import os
import socket
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from tandem.api.app import build_app
from tandem.api.batches.runner import BatchRunner, batch_runner
from tandem.api.config import ApiConfig, KeyFile
from tandem.api.key_ring import KeyRing
from tandem.api.response_cache import ResponseCache
from tandem.cluster.gateway.configuration import ConfigurationChanged, GatewayConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.config.api_options import (
    api_config,
    cached_tenants,
    check_exposure,
    tenant_key_files,
    tenant_keys,
)
from tandem.config.cluster.live import as_served
from tandem.config.environment import BUNDLED_MODEL, tokens_directory
from tandem.config.gateway import reconfigured
from tandem.config.hardware.pools import capacity_of, pool_models
from tandem.config.kv_format import kv_format
from tandem.config.options import ServeOptions
from tandem.config.policies import (
    learning_of,
    limit_terms,
    pause_config,
    planning_config,
    router_config,
)
from tandem.config.processes import (
    CLUSTER_FILE,
    GatewayConfiguration,
    GatewayListening,
    GatewaySetup,
    read_setup,
)
from tandem.config.tracing import check_tracing
from tandem.facts.encoding import Encoders
from tandem.facts.errors import EngineFailed, InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.facts.serving import ModelCard
from tandem.live.access_log import AccessLogWriter, access_log
from tandem.live.adapters import AdapterRegistry, lora_modules
from tandem.live.channels.gateway_channel import GatewayChannel
from tandem.live.channels.keys import Admitted, AdmittedKeys, KeyPair, PeerRole
from tandem.live.channels.sockets import ChannelLimits, GatewayKeys
from tandem.live.clock import NS_PER_S, wall_clock_s
from tandem.live.gateway.gateway import Gateway
from tandem.live.gateway.history import MOST_EXPLAINED
from tandem.live.gateway.journal import Journal
from tandem.live.gateway.reconfiguration import NewConfiguration, Reconfiguration
from tandem.live.gateway.settings_change import SettingsChange
from tandem.live.gateway.shape_simulator import SHAPE_SIMULATION
from tandem.live.gateway.terms import GatewayTerms
from tandem.live.gateway.what_if import WhatIf
from tandem.live.grpc_port import grpc_port
from tandem.live.http_server import http_server_over, listen, url_of
from tandem.live.launching.state_directory import ADAPTERS_FILE, OPERATOR_KEY_FILE
from tandem.live.processes.journal import RecordedFile, with_journal
from tandem.live.processes.lifecycle import (
    end_as,
    end_with_parent,
    log_of_process,
    loop_runner,
    run_to_the_end,
)
from tandem.live.tracing import Tracer, tracer
from tandem.messages.cluster import Registered
from tandem.messages.node import Leave
from tandem.models.configuration import read_model_spec
from tandem.models.directory import model_label
from tandem.text.model import TextModel

# Under its own name, which is another one while this is what was started.
logger = logging.getLogger("tandem.live.processes.gateway")

# A gateway that was started again waits so long for its workers before it takes requests.
SETTLE_S = 5.0
SETTLE_POLL_S = 0.02
# Of encoders that do not say how many they have: a gateway shares its cores with workers.
ENCODER_THREADS = 1


class LiveEncoders(Encoders, Protocol):
    """Those of `tandem.live.encoders`, which imports torch."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Assembled:
    """Everything of a gateway that needs no event loop."""

    card: ModelCard
    text: TextModel
    config: GatewayConfig
    api: ApiConfig
    terms: GatewayTerms
    journal: Journal | None = None
    log: AccessLogWriter | None = None
    recorded_file: RecordedFile | None = None
    adapters: AdapterRegistry | None = None
    encoders: LiveEncoders | None = None
    batches: BatchRunner | None = None
    tracer: Tracer | None = None


def run_gateway(setup: GatewaySetup) -> None:
    """Until a signal comes. Raises `SystemExit` as `end_as`."""
    end_with_parent(setup.parent)
    log_of_process(setup.options, setup.gateway)
    end_as(setup.gateway, lambda: _run(setup))


def _run(setup: GatewaySetup) -> Leave:
    # The address is taken first: a taken port is reported at once.
    with listen(setup.options.host, setup.options.port, shared=True) as listener:
        assembled = assemble_gateway(setup)
        with loop_runner() as runner:
            if runner.run(_serve(setup, assembled, listener)):
                raise EngineFailed("its machine failed")
    return Leave()


def assemble_gateway(setup: GatewaySetup) -> Assembled:
    """Raises `InvalidConfiguration`."""
    options = setup.options
    cluster = as_served(setup.cluster)
    check_tracing(options, cluster.explain_memory_bytes)
    directory = Path(cluster.model) if Path(cluster.model).exists() else BUNDLED_MODEL
    text = TextModel.load(
        tokens_directory(directory, options.load_format),
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
    )
    spec = read_model_spec(directory)
    name = setup.model or BUNDLED_MODEL.name
    card = ModelCard(
        names=options.served_model_name or (model_label(name),),
        context_tokens=options.max_model_len or spec.context_tokens,
        vocabulary_tokens=spec.vocabulary_tokens,
        end_token_ids=text.tokenizer.end_token_ids,
        created_s=wall_clock_s(),
    )
    stored = kv_format(cluster, setup.model, directory)
    config = GatewayConfig(
        gateway=setup.gateway,
        # Under this root there is no block: the workers register with the one that names theirs.
        router=replace(
            router_config(cluster, stored.root, stored.layout.block_size, {}),
            explains=cluster.explain_memory_bytes > 0,
            explained_candidates=MOST_EXPLAINED,
        ),
        capacity_of=capacity_of(cluster),
        terms=_terms(setup),
        model=name,
        revision=options.revision,
        block_format=stored.block_format if cluster.tiers.remote is not None else None,
        planning=planning_config(cluster) if setup.plans else None,
        limits=limit_terms(cluster, cluster.gateways),
        learning=learning_of(cluster),
        pauses=pause_config(cluster),
        configuration=setup.configuration,
        pool_models=pool_models(cluster),
    )
    api = _api_config(setup)
    if warning := check_exposure(options, has_keys=api.has_keys):
        logger.warning("%s: %s", setup.gateway, warning)
    # A start within the same second has another process id.
    incarnation = f"{wall_clock_s():x}-{os.getpid():x}"
    terms = _client_terms(setup, incarnation)
    journal, recorded_file = None, None
    if (wanted := setup.cluster.journal) is not None:
        cluster_file = Path(setup.state_directory) / CLUSTER_FILE
        config, journal, recorded_file = with_journal(config, wanted, cluster_file, incarnation)
    log = access_log(options.access_log)
    adapters = _adapters(setup, spec, card)
    encoders = _encoders(options, (*card.names, *(() if adapters is None else adapters.served)))
    return Assembled(
        *(card, text, config, api, terms, journal, log, recorded_file, adapters, encoders),
        *(batch_runner(api), tracer(options, setup.gateway)),
    )


def _adapters(setup: GatewaySetup, spec: ModelSpec, card: ModelCard) -> AdapterRegistry | None:
    """What is served beside the model, by all gateways of this state directory. Raises
    `InvalidConfiguration`."""
    options = setup.options
    if not options.enable_lora:
        return None
    file = Path(setup.state_directory) / ADAPTERS_FILE
    registry = AdapterRegistry(spec, options.max_lora_rank, card.names, file)
    registry.begin(lora_modules(options.lora_modules))
    return registry


def _encoders(options: ServeOptions, served: Collection[str]) -> LiveEncoders | None:
    """They compute in threads of this process. Raises `InvalidConfiguration`."""
    if not options.encoder_models:
        return None
    loading = importlib.import_module("tandem.live.processes.encoders")
    encoders: LiveEncoders | None = loading.load_encoders(options, ENCODER_THREADS, served, None)
    return encoders


def _api_config(setup: GatewaySetup) -> ApiConfig:
    """Raises `InvalidConfiguration`."""
    cluster = setup.cluster
    api = api_config(
        setup.options,
        (),
        tenant_keys(cluster),
        tenant_key_files(cluster),
        cached_tenants(cluster),
    )
    own = Path(setup.state_directory) / OPERATOR_KEY_FILE
    if not own.exists():
        return api
    return replace(api, operator_key_files=(*api.operator_key_files, KeyFile(str(own))))


def _client_terms(setup: GatewaySetup, incarnation: str) -> GatewayTerms:
    cluster = setup.cluster
    return GatewayTerms(
        incarnation,
        setup.options.max_num_queued_reqs,
        cluster.slo,
        pin_sessions_s=cluster.tiers.pin_sessions_s,
        longest_pin_s=cluster.tiers.longest_pin_s,
        longest_pins_s={
            tenant.name: tenant.longest_pin_s
            for tenant in cluster.tenants
            if tenant.longest_pin_s is not None
        },
        tenants=tuple(tenant.name for tenant in cluster.tenants),
        longest_pause_s=cluster.tiers.longest_pause_s,
        explain_bytes=int(cluster.explain_memory_bytes),
    )


class Configurations:
    """What operators configure anew of one gateway process, which began with this set-up, has its
    API keys on this `ring`, and keeps answers in this `cache`."""

    def __init__(
        self, setup: GatewaySetup, assembled: Assembled, ring: KeyRing, cache: ResponseCache
    ) -> None:
        self._setup, self._assembled, self._ring, self._cache = setup, assembled, ring, cache
        self._config = assembled.config

    def make(self, configuration: bytes) -> NewConfiguration:
        """See `MakeConfiguration`. Raises `InvalidConfiguration`."""
        try:
            new = msgspec.json.decode(configuration, type=GatewayConfiguration)
        except msgspec.MsgspecError as error:
            raise InvalidConfiguration(f"the configuration cannot be read: {error}") from error
        setup = self._setup.configured(new)
        before, after = as_served(self._setup.cluster), as_served(new.cluster)
        config = reconfigured(self._config, before, after, number=new.number, plans=new.plans)
        check_tracing(setup.options, after.explain_memory_bytes)
        router = replace(config.router, explains=after.explain_memory_bytes > 0)
        config = replace(config, router=router)
        api = _api_config(setup)
        check_exposure(setup.options, has_keys=api.has_keys)
        ring = KeyRing(api)

        def change() -> ConfigurationChanged:
            recorded_file = self._assembled.recorded_file
            cluster, files = recorded_file() if recorded_file else ("", {})
            return ConfigurationChanged(config, cluster, files)

        def taken() -> None:
            self._setup, self._config = setup, config
            self._ring.become(ring)
            self._cache.reconfigure(api.response_cache)

        return NewConfiguration(
            change, _client_terms(setup, self._assembled.terms.incarnation), taken
        )


async def _serve(setup: GatewaySetup, assembled: Assembled, listener: socket.socket) -> bool:
    """Whether it failed."""
    machine = GatewayMachine(assembled.config)
    simulation = (
        *SHAPE_SIMULATION,
        str(Path(setup.state_directory) / CLUSTER_FILE),
        str(os.getpid()),
    )
    adapters, journal = assembled.adapters, setup.cluster.journal
    gateway = Gateway(
        assembled.card,
        machine,
        assembled.terms,
        assembled.journal,
        simulation=simulation,
        adapter_names=dict if adapters is None else adapters.names,
        what_if=None if journal is None else WhatIf(Path(journal.directory)),
        change=SettingsChange(Path(setup.state_directory)),
        spans=assembled.tracer,
    )
    keys = GatewayKeys(
        KeyPair(setup.keys.gateway_public, setup.keys.gateway_secret), _admitted(setup)
    )
    ring = KeyRing(assembled.api)
    cache = ResponseCache(assembled.api.response_cache, assembled.card.names[0])
    limits = ChannelLimits(unread_s=setup.cluster.health.heartbeat_timeout_s)
    configurations = Configurations(setup, assembled, ring, cache)
    reconfiguration = Reconfiguration(gateway, configurations.make)
    channel = GatewayChannel(setup.listen, keys, reconfiguration.on_news, limits)
    reconfiguration.open(channel)
    try:
        endpoint = channel.open()
    except zmq.ZMQError as error:
        raise InvalidConfiguration(
            f"cannot listen for workers on {setup.listen}: {error.strerror}; choose another listen"
        ) from error
    await gateway.start(channel)
    log = assembled.log
    encoders, batches = assembled.encoders, assembled.batches
    app = build_app(
        gateway,
        assembled.text,
        assembled.api,
        log,
        ring,
        cache,
        adapters=adapters,
        encoders=encoders,
        batches=batches,
        observed=gateway.observation,
        operated=gateway,
        tracer=assembled.tracer,
    )
    grpc, context_tokens = grpc_port(setup.options, shared=True), assembled.card.context_tokens
    http = http_server_over(
        app,
        assembled.api.connections,
        setup.options.log_level,
        logs_access=log is not None,
        companion=None if grpc is None else grpc.server(app, assembled.api, context_tokens, ring),
    )
    if log is not None:
        log.start()
    if encoders is not None:
        encoders.start()
    http.end_on_signals(gateway.close)
    comes_back = _announcement(setup).exists()
    _announce(setup, endpoint, url_of(listener))
    if comes_back:
        await _until_ready(gateway)
    if batches is not None:
        batches.start()
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    ended = asyncio.create_task(gateway.ended())
    await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
    http.should_exit = True
    await serving
    if batches is not None:
        await batches.stop()
    await reconfiguration.stop()
    await gateway.stop()
    if encoders is not None:
        await encoders.stop()
    await ended
    if log is not None:
        await asyncio.to_thread(log.stop_writing)
    if assembled.tracer is not None:
        await asyncio.to_thread(assembled.tracer.stop_sending)
    return gateway.failed


def _admitted(setup: GatewaySetup) -> AdmittedKeys:
    """Who may come in. Raises `InvalidConfiguration`."""
    named = {
        PeerRole.WORKER: setup.keys.worker_public,
        PeerRole.OPERATOR: setup.keys.operator_public,
    }
    fixed = [Admitted(role, public) for role, public in named.items() if public]
    return AdmittedKeys(fixed, Path(setup.admitted) if setup.admitted else None)


async def _until_ready(gateway: Gateway) -> None:
    """The workers that its predecessor had come back in a moment: clients wait that long in the
    socket's queue, rather than being refused."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + SETTLE_S
    while not gateway.ready and clock() < end_s:
        await asyncio.sleep(SETTLE_POLL_S)


def _announcement(setup: GatewaySetup) -> Path:
    return Path(setup.state_directory) / f"{setup.gateway}.json"


def _announce(setup: GatewaySetup, endpoint: str, url: str) -> None:
    """Write where it listens, for the launcher. The file appears whole or not at all."""
    listening = GatewayListening(gateway=setup.gateway, endpoint=endpoint, url=url, pid=os.getpid())
    file = _announcement(setup)
    half = file.with_suffix(".json.new")
    half.write_bytes(msgspec.json.encode(listening))
    half.replace(file)
    logger.info("%s listens on %s, and for workers on %s", setup.gateway, url, endpoint)


def _terms(setup: GatewaySetup) -> Registered:
    health = setup.cluster.health
    return Registered(
        gateway=setup.gateway,
        report_interval_ns=int(health.live_report_interval_s * NS_PER_S),
        silence_ns=int(health.heartbeat_timeout_s * NS_PER_S),
        lease_ns=int(health.lease_s * NS_PER_S),
    )


def main() -> None:
    """What a launcher starts as `python -m`; the last word names the file with the set-up."""
    run_gateway(read_setup(GatewaySetup, Path(sys.argv[-1])))


if __name__ == "__main__":
    run_to_the_end(main)
