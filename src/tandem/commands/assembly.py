"""Wires a server from its options: kernels, decoder, KV pool, engine, worker, front door."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import uvicorn

import tandem
from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.config.environment import MachineFacts, machine_facts
from tandem.config.options import ServeOptions
from tandem.config.resolve import ModelFacts, ServerPlan, resolve
from tandem.engine.engine import Engine
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.serving import ModelCard
from tandem.kernels.faces import choose_kernels
from tandem.kernels.native.pages import return_freed_memory
from tandem.kv.store import KvStore
from tandem.live.clock import wall_clock_s
from tandem.live.local_worker import LocalWorker
from tandem.machines.worker import WorkerMachine
from tandem.models.configuration import read_model_spec
from tandem.models.load import LoadPlan, find_model, load_decoder
from tandem.models.weights import WeightForm
from tandem.text.model import TextModel

BUNDLED_MODEL = Path(tandem.__file__).parent / "bundled" / "tandem-mini"
# After a signal answers under way may go on for so long; then they end with an error, and the
# server waits a little longer for its clients to take that.
PATIENCE_S = 10
FAREWELL_S = 3


@dataclass(frozen=True, slots=True)
class Server:
    """Everything loaded; nothing runs yet. `notes` say in a few words what was chosen."""

    worker: LocalWorker
    text: TextModel
    plan: ServerPlan
    api: ApiConfig
    notes: tuple[str, ...]


def assemble(model: str | None, options: ServeOptions) -> Server:
    """Load a model and build a server around it. Raises `InvalidConfiguration`."""
    machine = machine_facts()
    directory = BUNDLED_MODEL if model is None else find_model(model, options.revision)
    name = BUNDLED_MODEL.name if model is None else model
    dummy = options.load_format == "dummy"
    # A dummy model may be a config.json alone; then it speaks in the bundled model's tokens.
    speaks = not dummy or (directory / "tokenizer.json").exists()
    text = TextModel.load(directory if speaks else BUNDLED_MODEL)
    spec = read_model_spec(directory)
    plan = resolve(options, ModelFacts(spec, str(name), options.revision), machine)
    spec = replace(spec, context_tokens=plan.worker.context_tokens)
    # Not only the engine's thread: loading packs the weights in this one.
    torch.set_num_threads(plan.threads)
    # On a CPU weights are only stored in fewer bits; on a GPU they are also computed with.
    compute = torch.float32 if plan.device.type == "cpu" else getattr(torch, plan.storage)
    kernels, reason = choose_kernels(plan.device, compute, options.native_kernels)
    load = LoadPlan(
        directory,
        WeightForm(plan.storage, compute, plan.device),
        "dummy" if dummy else "safetensors",
        options.seed,
    )
    decoder = load_decoder(spec, load, kernels)
    return_freed_memory()
    kv = KvStore(plan.layout, plan.worker.block_count, plan.device)
    engine = Engine(decoder, kv, plan.slots, threads=plan.threads)
    card = ModelCard(
        names=options.served_model_name or (Path(name).name if model else str(name),),
        context_tokens=plan.worker.context_tokens,
        vocabulary_tokens=spec.vocabulary_tokens,
        end_token_ids=text.tokenizer.end_token_ids,
        created_s=wall_clock_s(),
    )
    notes = (
        f"{spec.parameters / 1e6:.1f}M parameters in {plan.storage} on {plan.device.type}, "
        f"{plan.threads} threads"
        if plan.device.type == "cpu"
        else f"{plan.storage} on GPU",
        f"kernels: {reason}",
        f"KV cache: {plan.kv_bytes / (1 << 20):.0f} MiB, {plan.worker.block_count} blocks of "
        f"{plan.worker.block_size} tokens in {plan.layout.dtype}; context {card.context_tokens}",
    )
    worker = LocalWorker(card, WorkerMachine(plan.worker), engine)
    return Server(worker, text, plan, _api_config(options, machine), notes)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `InvalidConfiguration` when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise InvalidConfiguration(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --port"
        ) from error
    return listener


class HttpServer(uvicorn.Server):
    """Leaves the signals alone: who runs it decides what they mean (uvicorn itself would raise
    them again after an orderly end, and the process would look killed)."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(server: Server, log_level: str) -> HttpServer:
    """The HTTP server over an assembled server; run it inside `running`."""
    app = build_app(server.worker, server.text, server.api)
    return HttpServer(
        uvicorn.Config(
            app,
            lifespan="off",
            log_level=log_level,
            access_log=log_level == "debug",
            timeout_graceful_shutdown=PATIENCE_S + FAREWELL_S,
            server_header=False,
        )
    )


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[None]:
    """The worker runs while the block does."""
    await server.worker.start()
    try:
        yield
    finally:
        await server.worker.stop()


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


def _api_config(options: ServeOptions, machine: MachineFacts) -> ApiConfig:
    return ApiConfig(
        api_keys=options.api_key or machine.api_keys,
        allowed_origins=options.allowed_origins,
        max_body_bytes=options.max_body_mib << 20,
    )
