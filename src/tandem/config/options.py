"""Options of `tandem serve`, in one table: the source of its flags, of the keys of its YAML file
and of both their checks."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import yaml
from msgspec import Meta

from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.units import BYTES
from tandem.kernels.instructions import InstructionSet
from tandem.policy.cascade import DEFAULT_FLOOR, DEFAULT_WINDOW_TOKENS

# A size without a unit is in bytes; beyond so many somebody mistyped.
_MEMORY = replace(BYTES, bare="B")
MOST_BYTES = 1e18
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
CacheDtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]
LoadFormat = Literal["auto", "dummy"]
# `auto` and the names of methods: as the checkpoint is stored (`models.formats.choose`).
Quantization = Literal[
    "auto", "none", "int8", "int4", "gptq", "awq", "compressed-tensors", "fp8", "fbgemm_fp8", "gguf"
]
Arithmetic = Literal["auto", "float32"]
Proposers = Literal["none", "ngram", "draft", "medusa", "eagle"]
ToolCallParser = Literal[
    "auto", "none", "hermes", "llama3_json", "mistral", "deepseek_v3", "deepseek_v31", "qwen3_xml"
]
ReasoningParser = Literal["auto", "none", "qwen3", "deepseek_r1"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


def _doc(
    text: str, panel: str, *, of: str = "", known_to: str = "", live: bool = False, **bounds: Any
) -> Meta:
    """What an option means, the panel of the help it stands in, whose it is, which processes of a
    cluster alone are told it, for a secret, whether it changes while a cluster runs (`tandem
    apply`), and its bounds."""
    extra: dict[str, object] = {"panel": panel, "of": of}
    extra |= {"known_to": known_to} if known_to else {}
    extra |= {"live": True} if live else {}
    return Meta(description=text, extra=extra, **bounds)


def _of_gateways(text: str, panel: str = "Server", **more: Any) -> Meta:
    """The same of an option of the HTTP server."""
    return _doc(text, panel, of="gateways", **more)


class ServeOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """Options of `tandem serve`, named as vLLM names them where the meaning is the same."""

    revision: Annotated[str, _doc("Revision of a model from the hub.", "Model")] = "main"
    served_model_name: Annotated[
        tuple[str, ...], _doc("Name clients use; repeat for several.", "Model")
    ] = ()
    dtype: Annotated[
        Dtype,
        _doc(
            "Storage of weights that are not quantised; auto: the checkpoint's own, bfloat16 on a "
            "GPU.",
            "Model",
        ),
    ] = "auto"
    arithmetic: Annotated[
        Arithmetic,
        _doc(
            "What a CPU multiplies in; auto: in what weights are stored in, bfloat16 or codes, and "
            "then keys and values in bfloat16, where the processor has instructions for that.",
            "Model",
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        _doc(
            "auto: weights as the checkpoint holds them, quantised or not; so does the name of its "
            "method (gptq, awq, ...), and refuses others. none: quantised weights are decoded. "
            "int8: weights at one byte each; int4: at half of one, in groups of 32. Quantised "
            "weights are held so on a CPU only.",
            "Model",
        ),
    ] = "auto"
    load_format: Annotated[LoadFormat, _doc("dummy: random weights, for measuring.", "Model")] = (
        "auto"
    )
    max_model_len: Annotated[
        int, _doc("Context in tokens; 0: as long as model and memory allow.", "Model", ge=0)
    ] = 0

    device: Annotated[Device, _doc("Where the model runs.", "Engine")] = "auto"
    threads: Annotated[
        int, _doc("CPU threads for the kernels; 0: all cores.", "Engine", ge=0, le=1024)
    ] = 0
    native_kernels: Annotated[
        bool, _doc("Compile and use the C++ kernels on a CPU.", "Switches")
    ] = True
    instruction_set: Annotated[
        InstructionSet,
        _doc(
            "What the C++ kernels are compiled for; auto: this processor. Workers of unlike "
            "processors reuse each other's KV if all are given the same set and compiler.",
            "Engine",
        ),
    ] = "auto"
    max_num_seqs: Annotated[
        int, _doc("Sequences that run at the same time.", "Engine", ge=1, le=4096)
    ] = 64
    max_num_batched_tokens: Annotated[
        int, _doc("Tokens a step computes at most.", "Engine", ge=1, le=1 << 20)
    ] = 2048
    long_prefill_token_threshold: Annotated[
        int, _doc("Tokens of one prompt in a step at most; 0: no limit.", "Engine", ge=0)
    ] = 0
    max_num_queued_reqs: Annotated[
        int, _doc("Waiting requests before new ones get a 429.", "Engine", ge=1)
    ] = 4096
    steps_in_flight: Annotated[
        int, _doc("Steps planned ahead of the running one.", "Engine", ge=0, le=1)
    ] = 1

    block_size: Annotated[int, _doc("Tokens in a KV block.", "KV cache", ge=1, le=256)] = 16
    kv_cache_dtype: Annotated[
        CacheDtype,
        _doc(
            "auto: float32 on a CPU, else the model's. int8: a byte a value, with a scale for each "
            "token and head.",
            "KV cache",
        ),
    ] = "auto"
    kv_cache_memory: Annotated[
        str, _doc("Memory of the KV pool, as 512MiB or 4GiB; auto: what fits.", "KV cache")
    ] = "auto"
    gpu_memory_utilization: Annotated[
        float, _doc("Share of a GPU's memory to use in all.", "KV cache", gt=0, le=1)
    ] = 0.9
    enable_prefix_caching: Annotated[
        bool, _doc("Reuse the KV of prompts that begin alike.", "Switches")
    ] = True

    speculation: Annotated[
        Proposers,
        _doc(
            "Who drafts tokens for the model to check, which changes no answer: ngram (what was "
            "said before), draft (a smaller model), medusa or eagle (heads).",
            "Speculation",
        ),
    ] = "none"
    speculation_model: Annotated[
        str,
        _doc(
            "The draft model or the heads: a directory or a name. The bundled model has its own.",
            "Speculation",
        ),
    ] = ""
    speculation_tokens: Annotated[
        int,
        _doc("Draft tokens of a sequence and step at most.", "Speculation", ge=1, le=16),
    ] = 4
    speculation_branches: Annotated[
        int,
        _doc(
            "Guesses at one token: 1 drafts a chain, more a tree of the likeliest (draft, medusa, "
            "eagle).",
            "Speculation",
            ge=1,
            le=8,
        ),
    ] = 1
    speculation_adaptive: Annotated[
        bool, _doc("Draft as far as it pays; else always as far as it may.", "Switches")
    ] = True
    prompt_lookup_min: Annotated[
        int, _doc("ngram: tokens that must be the same at least.", "Speculation", ge=1, le=64)
    ] = 2
    prompt_lookup_max: Annotated[
        int, _doc("ngram: tokens that are compared at most.", "Speculation", ge=1, le=64)
    ] = 4
    enable_lora: Annotated[
        bool, _doc("Serve LoRA adapters beside the model, as models of their own.", "Switches")
    ] = False
    lora_modules: Annotated[
        tuple[str, ...],
        _doc(
            "An adapter as name=path, of a folder that PEFT wrote; several, or repeat.",
            "LoRA",
            of="gateways",
        ),
    ] = ()
    max_lora_rank: Annotated[
        int, _doc("The highest rank that an adapter may have.", "LoRA", ge=1, le=1024)
    ] = 16
    max_loras: Annotated[
        int, _doc("Different adapters of the sequences that run at once.", "LoRA", ge=1, le=4096)
    ] = 8
    lora_memory: Annotated[
        str,
        _doc(
            "Memory for adapters, as 2GiB; auto: max-loras of the highest rank in float32.", "LoRA"
        ),
    ] = "auto"

    encoder_models: Annotated[
        tuple[str, ...],
        _doc(
            "An encoder for embeddings, ranking or classes, as name=path or a JSON object that "
            "says how its texts are batched, too; several, or repeat.",
            "Encoders",
            of="gateways",
        ),
    ] = ()

    embeddings: Annotated[
        bool,
        _doc("Embeddings of the served model as well, under its own name.", "Encoders"),
    ] = False

    cascade_model: Annotated[
        str,
        _doc("Smaller model, which tries each request first: a directory or a name.", "Cascade"),
    ] = ""
    cascade_floor: Annotated[
        float,
        _doc(
            "Its answer counts where the mean probability of its tokens is nowhere lower.",
            "Cascade",
            ge=0,
            le=1,
        ),
    ] = DEFAULT_FLOOR
    cascade_window: Annotated[
        int, _doc("Tokens in a row over which that mean is taken.", "Cascade", ge=1, le=1024)
    ] = DEFAULT_WINDOW_TOKENS

    host: Annotated[str, _of_gateways("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _of_gateways("Port to listen on; 0: any free one.", ge=0, le=65535)] = 8000
    grpc_port: Annotated[
        int,
        _of_gateways(
            "Port for gRPC (the Open Inference Protocol); 0: none. Needs tandem[grpc].",
            ge=0,
            le=65535,
        ),
    ] = 0
    api_key: Annotated[
        tuple[str, ...],
        _of_gateways(
            "Key that clients must send; repeat for several (also TANDEM_API_KEY). Better in a "
            "file.",
            known_to="gateway",
            live=True,
        ),
    ] = ()
    api_key_file: Annotated[
        tuple[str, ...],
        _of_gateways(
            "File of such keys, one a line, read again when it changes; repeat.", live=True
        ),
    ] = ()
    operator_key_file: Annotated[
        tuple[str, ...],
        _of_gateways(
            "File of keys of operators, one a line, who may load adapters and reset the prefix "
            "cache; repeat."
        ),
    ] = ()
    allow_client_priority: Annotated[
        bool,
        _of_gateways(
            "Clients may put their requests before those of others (priority).",
            "Switches",
            live=True,
        ),
    ] = False
    allowed_origins: Annotated[
        tuple[str, ...], _of_gateways("Web origin that may call; repeat for several.")
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        _of_gateways(
            "Name that the Host header may have, beside localhost and addresses in numbers; repeat "
            "for several. On a loopback address no other is taken; elsewhere any, unless given."
        ),
    ] = ()
    allow_unauthenticated: Annotated[
        bool, _of_gateways("Listen beyond this machine without any API key.", "Switches")
    ] = False
    max_connections: Annotated[
        int,
        _of_gateways(
            "Connections at the same time; 0: 8,192, or as many as the process may have files.",
            ge=0,
        ),
    ] = 0
    max_connections_per_address: Annotated[
        int,
        _of_gateways(
            "Of one client address; 0: a quarter of all. Behind a proxy all clients have one.", ge=0
        ),
    ] = 0
    max_head_kib: Annotated[int, _of_gateways("Largest request head in KiB.", ge=1, le=1024)] = 64
    max_head_fields: Annotated[
        int, _of_gateways("Header fields of a request at most.", ge=1, le=10_000)
    ] = 100
    head_timeout_s: Annotated[
        float, _of_gateways("Seconds that a request head may take.", gt=0, le=3600)
    ] = 10.0
    max_body_mib: Annotated[
        int,
        _of_gateways(
            "Largest request body in MiB; 0: by the context, 1 MiB + 16 B a token.", ge=0, le=1024
        ),
    ] = 0
    max_answers_mib: Annotated[
        int,
        _of_gateways(
            "MiB of all answers that do not stream together; half of it for one.", ge=1, le=1 << 20
        ),
    ] = 256
    response_cache_mib: Annotated[
        int,
        _of_gateways(
            "MiB of whole answers to be returned again to requests that are greedy or name a seed; "
            "0: none. Where there are tenants, only of those with `response_cache`.",
            ge=0,
            le=1 << 20,
        ),
    ] = 0
    response_store_mib: Annotated[
        int,
        _of_gateways(
            "MiB of responses (`/v1/responses`) that later calls may go on from; 0: none are kept.",
            ge=0,
            le=1 << 20,
        ),
    ] = 64
    max_stored_responses: Annotated[
        int, _of_gateways("So many of them at most.", ge=1, le=10_000_000)
    ] = 10_000
    response_store_hours: Annotated[
        float,
        _of_gateways("Hours after which one that nobody has used is forgotten.", gt=0, le=8760),
    ] = 24.0
    max_choices: Annotated[
        int,
        _of_gateways(
            "Sequences of one call at most: its prompts times n, best_of or beams.", ge=1, le=4096
        ),
    ] = 64
    batch_directory: Annotated[
        str,
        _of_gateways(
            "Folder for files and batches of clients (`/v1/files`, `/v1/batches`), which go on "
            "after a restart; of one server alone. Empty: there are none."
        ),
    ] = ""
    batch_store_mib: Annotated[
        int, _of_gateways("MiB of all these files at most.", ge=1, le=1 << 30)
    ] = 4096
    max_batch_files: Annotated[int, _of_gateways("So many of them at most.", ge=1, le=100_000)] = (
        10_000
    )
    max_batch_file_mib: Annotated[
        int, _of_gateways("MiB of one that is sent.", ge=1, le=1 << 20)
    ] = 200
    max_batches: Annotated[int, _of_gateways("Batches that are kept at most.", ge=1, le=10_000)] = (
        1000
    )
    max_batch_lines: Annotated[int, _of_gateways("Requests of a batch.", ge=1, le=1_000_000)] = (
        50_000
    )
    max_batch_requests: Annotated[
        int,
        _of_gateways(
            "Requests of all batches that run at once; a quarter of it beside other calls.",
            ge=1,
            le=4096,
        ),
    ] = 16
    batch_keep_hours: Annotated[
        float,
        _of_gateways("Hours after which a file, or a batch that ended, goes.", gt=0, le=87_600),
    ] = 720.0
    max_scaling_samples: Annotated[
        int,
        _of_gateways("Samples of a call with `scaling` at most; 0: no such calls.", ge=0, le=64),
    ] = 32
    tool_call_parser: Annotated[
        ToolCallParser,
        _of_gateways(
            "How the model writes tool calls; auto: as its chat template shows, none: tools are "
            "refused."
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        ReasoningParser,
        _of_gateways(
            "How the model reasons before it answers; auto: as its chat template shows, none: "
            "reasoning is part of the answer's text."
        ),
    ] = "auto"
    parse_special_tokens: Annotated[
        bool,
        _of_gateways(
            "Let chat clients' text spell special tokens, such as <|im_end|>.", "Switches"
        ),
    ] = False
    access_log: Annotated[
        str,
        _of_gateways(
            "File that gets a JSON line for each call, without prompts and keys; - for the "
            "standard output. A file that is moved away is made anew."
        ),
    ] = ""
    access_log_content_kib: Annotated[
        int,
        _of_gateways(
            "KiB of each call's prompts, and of its answers, that its line has; 0: none. What "
            "clients write stands in the file then.",
            ge=0,
            le=1 << 14,
        ),
    ] = 0
    otlp_traces_endpoint: Annotated[
        str,
        _of_gateways(
            "URL of an OpenTelemetry receiver (OTLP over HTTP) that gets a trace of each call, as "
            "http://localhost:4318/v1/traces. Needs tandem[otel]."
        ),
    ] = ""
    trace_sample_ratio: Annotated[
        float,
        _of_gateways(
            "Share of the calls to be traced whose clients do not say (1: as OTEL_TRACES_SAMPLER "
            "says, or all).",
            ge=0,
            le=1,
        ),
    ] = 1.0
    metrics_prefix: Annotated[
        str,
        _of_gateways(
            "What names of metrics begin with, before a colon; vllm for dashboards made for vLLM.",
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z",
            max_length=64,
        ),
    ] = "tandem"
    log_level: Annotated[LogLevel, _doc("How much the server tells.", "Server")] = "warning"
    log_format: Annotated[
        LogFormat, _doc("How: as lines of text, or a JSON object a line.", "Server")
    ] = "text"
    seed: Annotated[int, _doc("Seed of dummy weights.", "Server", ge=0, le=(1 << 63) - 1)] = 0


OPTIONS = frozenset(option.encode_name for option in msgspec.structs.fields(ServeOptions))
# Those of the HTTP server: workers, and pools in a cluster file, have no use for them.
OF_GATEWAYS = tuple(
    option.encode_name
    for option in msgspec.structs.fields(ServeOptions)
    for rule in get_args(option.type)
    if isinstance(rule, Meta) and (rule.extra or {}).get("of") == "gateways"
)


def read_options(file: Path | None, flags: Mapping[str, object]) -> ServeOptions:
    """Defaults, then the YAML file, then the flags. Raises `InvalidConfiguration` in one line,
    which says where in the file a mistake of its is."""
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    values = {**(_read_yaml(file) if file is not None else {}), **given}
    try:
        for name in values:
            if name not in OPTIONS:
                hint = nearest(name, OPTIONS, lists=False)
                raise _Mistake(name, f"unknown option {name}{hint}")
        return _converted(values)
    except _Mistake as mistake:
        where = "" if file is None or mistake.option in given else _place(file, mistake.option)
        raise InvalidConfiguration(f"{where}{mistake}") from mistake


class _Mistake(ValueError):
    """In the value of an `option`, or in its name."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option


def _converted(values: Mapping[str, object]) -> ServeOptions:
    """msgspec says `Expected … - at `$.name`` (or `$.name[...]`); people say `name: expected …`."""
    try:
        return msgspec.convert(values, ServeOptions)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`").partition("[")[0]
        if not name:
            raise _Mistake("", problem) from error
        problem = problem[0].lower() + problem[1:].replace("`array`", "a list")
        shown = "" if name == "api-key" else f" (got {values.get(name)!r})"
        raise _Mistake(name, f"{name}: {problem}{shown}") from error


def option_lines(file: Path) -> dict[str, int]:
    """The line of each option that stands in a YAML file; none of one that cannot be read."""
    try:
        tree = yaml.compose(file.read_text(), yaml.SafeLoader)
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return {}
    entries = tree.value if isinstance(tree, yaml.MappingNode) else []
    return {str(key.value).replace("_", "-"): key.start_mark.line + 1 for key, _ in entries}


def _place(file: Path, option: str) -> str:
    line = option_lines(file).get(option)
    return f"{file}, line {line}: " if line else f"{file}: "


def _read_yaml(file: Path) -> dict[str, object]:
    try:
        content: Any = yaml.safe_load(file.read_text())
    except OSError as error:
        raise InvalidConfiguration(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = " ".join(str(error).split())
        raise InvalidConfiguration(f"{file} is not valid YAML: {line}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InvalidConfiguration(f"{file}: expected option names and values")
    values = {key.replace("_", "-"): value for key, value in content.items()}
    if len(values) < len(content):
        raise InvalidConfiguration(f"{file}: an option stands there twice, with - and with _")
    if isinstance(size := values.get("kv-cache-memory"), int):
        values["kv-cache-memory"] = str(size)
    return values


def parse_bytes(text: str, option: str) -> int:
    """`512MiB`, `4GiB`, `2GB` or a plain number of bytes. Raises `InvalidConfiguration`."""
    try:
        count_bytes = _MEMORY.read(text)
    except ValueError:
        count_bytes = 0.0
    if not 0 < count_bytes < MOST_BYTES:
        raise InvalidConfiguration(f"{option}: expected a size such as 512MiB or 4GiB, got {text}")
    return int(count_bytes)
