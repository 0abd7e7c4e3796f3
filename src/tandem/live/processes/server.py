"""Puts a server in one process together from its options: kernels, decoder, KV pool, engine,
worker, HTTP API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tandem.api.app import build_app
from tandem.api.batches.runner import BatchRunner, batch_runner
from tandem.api.config import ApiConfig
from tandem.api.key_ring import KeyRing
from tandem.api.server_load import ServerLoad
from tandem.cluster.worker.machine import WorkerMachine
from tandem.config.api_options import api_config
from tandem.config.environment import tokens_directory
from tandem.config.memory import adapter_bytes
from tandem.config.options import ServeOptions
from tandem.config.start_notes import beside_the_model
from tandem.engine.engine import Engine
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.serving import ModelCard
from tandem.facts.slo import AS_THEY_WISH, LOWER_ONLY, ClientPriorities
from tandem.facts.tracing import SpanSink
from tandem.kv.store import KvStore
from tandem.live.access_log import AccessLogWriter, access_log
from tandem.live.adapters import AdapterRegistry, wanted_modules
from tandem.live.cascade import Cascade, LocalGenerator
from tandem.live.clock import wall_clock_s
from tandem.live.encoders import LiveEncoders
from tandem.live.grpc_port import GrpcPort, grpc_port
from tandem.live.http_server import HttpServer, http_server_over, listen
from tandem.live.local_worker import LocalWorker
from tandem.live.processes.cascade import (
    ServedModel,
    check_same_tokens,
    confidence_floor,
    plan_cascade,
)
from tandem.live.processes.encoders import ModelBehind, load_encoders
from tandem.live.processes.lifecycle import StartUp
from tandem.live.processes.model import adapter_cache, load_model, plan_model
from tandem.live.processes.speculation import proposer_maker
from tandem.live.tracing import Tracer, tracer
from tandem.models.decoder import Decoder
from tandem.observe.adapter_metrics import AdapterNames
from tandem.observe.metrics import ShownAdapters
from tandem.text.model import TextModel


@dataclass(frozen=True, slots=True)
class Server:
    """Everything loaded; nothing runs yet. `notes` are a few words on what was chosen; `startup`
    knows how long what took. Calls go to the `log`, if there is one; `adapters` are served beside
    the model (None: there can be none). `load` counts the calls; `encoders` and `batches` are None
    where there are none; `grpc` is where that is spoken, if it is; `tracer` sends traces, if there
    are to be any."""

    worker: LocalGenerator
    text: TextModel
    api: ApiConfig
    notes: tuple[str, ...]
    startup: StartUp
    log: AccessLogWriter | None = None
    adapters: AdapterRegistry | None = None
    load: ServerLoad = field(default_factory=ServerLoad)
    encoders: LiveEncoders | None = None
    grpc: GrpcPort | None = None
    batches: BatchRunner | None = None
    tracer: Tracer | None = None


def assemble(model: str | None, options: ServeOptions) -> Server:
    """Load a model, or the two of a cascade, and build a server around it. Raises
    `InvalidConfiguration`."""
    startup = StartUp("server")
    startup.so_far("imports")
    # A file that cannot be written is said before a model is loaded.
    log = access_log(options.access_log)
    grpc, traces = grpc_port(options), tracer(options, "server")
    floor = confidence_floor(options)
    with startup.phase("looking at the model"):
        large, small = _planned(model, options) if floor is None else plan_cascade(model, options)
    api = api_config(options, large.planned.machine.api_keys)
    # So is a folder that another server uses.
    batches = batch_runner(api)
    with startup.phase("tokenizer"):
        text = _text_of(large)
    if small is not None:
        check_same_tokens(large, text, small, _text_of(small))
    adapters = _adapters(large, options)
    priorities = AS_THEY_WISH if options.allow_client_priority else LOWER_ONLY
    names = dict if adapters is None else adapters.names
    with startup.phase("weights"):
        decoder = _decoder(large)
    with startup.phase("KV cache"):
        worker: LocalGenerator = _worker(large, decoder, text, priorities, names, traces)
    notes = _notes(large)
    if floor is not None and small is not None:
        asked_first = _worker(small, _decoder(small), text, priorities, spans=traces)
        worker = Cascade(asked_first, worker, floor)
        said = f"cascade: {small.served_names[0]} answers where it is sure ({floor})"
        notes = (*notes, said, *_notes(small))
    notes = (*notes, *_beside(large, adapters))
    served = (*large.served_names, *(() if adapters is None else adapters.served))
    behind = ModelBehind(
        *(large.served_names[0], large.planned.directory, decoder, text.tokenizer),
        worker.card.context_tokens,
    )
    encoders = load_encoders(options, large.planned.plan.threads, served, behind)
    if encoders is not None:
        notes = (*notes, f"encoders: {', '.join(encoders.cards)}")
    return Server(
        *(worker, text, api, notes, startup, log, adapters),
        encoders=encoders,
        grpc=grpc,
        batches=batches,
        tracer=traces,
    )


def _adapters(model: ServedModel, options: ServeOptions) -> AdapterRegistry | None:
    """What is served beside the model, checked before that is loaded. Raises
    `InvalidConfiguration`."""
    modules = wanted_modules(options)
    if not options.enable_lora:
        return None
    if options.cascade_model:
        raise InvalidConfiguration(
            "enable-lora: a cascade has two models, and an adapter fits one; leave out one of both"
        )
    registry = AdapterRegistry(model.planned.spec, options.max_lora_rank, model.served_names)
    registry.begin(modules)
    return registry


def _planned(model: str | None, options: ServeOptions) -> tuple[ServedModel, None]:
    """The only model."""
    return ServedModel(plan_model(model, options), options), None


def _text_of(model: ServedModel) -> TextModel:
    options = model.options
    return TextModel.load(
        tokens_directory(model.planned.directory, options.load_format),
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
    )


def _decoder(model: ServedModel) -> Decoder:
    """Its weights are in memory from now on."""
    return load_model(model.planned, model.options, model.planned.plan.threads)


def _worker(
    model: ServedModel,
    decoder: Decoder,
    text: TextModel,
    priorities: ClientPriorities,
    adapter_names: AdapterNames = dict,
    spans: SpanSink | None = None,
) -> LocalWorker:
    planned, plan = model.planned, model.planned.plan
    kv = KvStore(plan.layout, plan.worker.block_count, plan.device)
    adapters = adapter_cache(planned, model.options)
    engine = Engine(
        decoder,
        kv,
        plan.slots,
        threads=plan.threads,
        load_grammars=text.grammars.load,
        make_proposer=proposer_maker(planned, model.options, plan.threads),
        adapters=adapters,
    )
    card = ModelCard(
        names=model.served_names,
        context_tokens=plan.worker.context_tokens,
        vocabulary_tokens=planned.spec.vocabulary_tokens,
        end_token_ids=text.tokenizer.end_token_ids,
        created_s=wall_clock_s(),
    )
    serves_adapters = model.options.enable_lora
    shown = ShownAdapters(adapters.memory, adapter_names) if serves_adapters else None
    return LocalWorker(card, WorkerMachine(plan.worker), engine, priorities, adapters, shown, spans)


def _notes(model: ServedModel) -> tuple[str, ...]:
    """A few words on what was chosen for it."""
    planned, plan = model.planned, model.planned.plan
    return (
        f"{planned.spec.parameters / 1e6:.1f}M parameters in {plan.weights} on {plan.device.type}, "
        f"{plan.threads} threads"
        if plan.device.type == "cpu"
        else f"{plan.weights} on GPU",
        f"kernels: {planned.reason}",
        f"KV cache: {plan.kv_bytes / (1 << 20):.0f} MiB, {plan.worker.block_count} blocks of "
        f"{plan.worker.block_size} tokens in {plan.layout.dtype}; context "
        f"{plan.worker.context_tokens}",
        *plan.cuts,
    )


def _beside(model: ServedModel, adapters: AdapterRegistry | None) -> tuple[str, ...]:
    """A few words on who drafts for it, and on adapters."""
    drafts = model.planned.drafts
    return beside_the_model(
        model.options,
        () if adapters is None else tuple(adapters.served),
        drafts_from="" if drafts is None else str(drafts.directory),
        adapter_bytes=adapter_bytes(model.options, model.planned.spec),
    )


def http_server(server: Server, log_level: str) -> HttpServer:
    """The HTTP server over an assembled server; run it inside `running`."""
    log, ring = server.log, KeyRing(server.api)
    app = build_app(
        server.worker,
        server.text,
        server.api,
        log,
        ring,
        adapters=server.adapters,
        load=server.load,
        encoders=server.encoders,
        batches=server.batches,
        observed=server.worker,
        tracer=server.tracer,
    )
    grpc, context_tokens = server.grpc, server.worker.card.context_tokens
    return http_server_over(
        app,
        server.api.connections,
        log_level,
        logs_access=log is not None,
        companion=None if grpc is None else grpc.server(app, server.api, context_tokens, ring),
    )


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[None]:
    """The worker runs while the block does, batches do, log and traces are written. The HTTP server
    is made before."""
    await server.worker.start()
    if server.encoders is not None:
        server.encoders.start()
    if server.log is not None:
        server.log.start()
    if server.batches is not None:
        server.batches.start()
    try:
        yield
    finally:
        if server.batches is not None:
            await server.batches.stop()
        await server.worker.stop()
        if server.encoders is not None:
            await server.encoders.stop()
        if server.log is not None:
            await asyncio.to_thread(server.log.stop_writing)
        if server.tracer is not None:
            await asyncio.to_thread(server.tracer.stop_sending)


@asynccontextmanager
async def served_in_process(server: Server) -> AsyncIterator[str]:
    """Serve on a free loopback port while the block runs; gives the URL."""
    listener = listen("127.0.0.1", 0)
    http = http_server(server, "error")
    async with running(server):
        task = asyncio.create_task(http.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            http.should_exit = True
            await task
