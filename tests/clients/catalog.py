"""The clients that are run, in the order of the table. Another one is a script in `scripts`, what
it needs in `requirements` (or `node/package.json`), and an entry here. One that comes with an extra
of Tandem needs no requirements: its environment is `PROJECT`."""

from dataclasses import dataclass

# The columns of the table; what else a client can do stands in its last one.
FEATURES = ("text", "stream", "tools", "structured output", "errors", "cancellation")


@dataclass(frozen=True)
class Client:
    """`environment` is the name of its file in `requirements`, `NODE` or `PROJECT`, `note` what its
    settings do not say."""

    name: str
    script: str
    environment: str
    note: str = ""


CLIENTS = (
    Client("openai", "with_openai.py", "sdk"),
    Client(
        "anthropic",
        "with_anthropic.py",
        "sdk",
        "The base URL is without `/v1`. Its tool runner asks for a thread first, is refused, and "
        "goes on without: `thread=False` saves that call.",
    ),
    Client("openai-agents", "with_openai_agents.py", "sdk"),
    Client(
        "litellm",
        "with_litellm.py",
        "sdk",
        "`hosted_vllm/` lets vLLM's fields pass by themselves. Without a way to GitHub set "
        "`LITELLM_LOCAL_MODEL_COST_MAP=True`.",
    ),
    Client(
        "langchain-openai",
        "with_langchain_openai.py",
        "sdk",
        "With `use_responses_api=True` it calls `/v1/responses`. Other fields go into "
        "`extra_body`.",
    ),
    Client(
        "pydantic-ai",
        "with_pydantic_ai.py",
        "sdk",
        "Also `OpenAIResponsesModel`, and `AnthropicModel` with a base URL without `/v1`. "
        "`NativeOutput` asks for a schema, a plain `output_type` for a tool.",
    ),
    Client(
        "dspy",
        "with_dspy.py",
        "sdk",
        "Without `register_model` it asks for no schemas, which small models need.",
    ),
    Client("llm", "with_llm.py", "sdk"),
    Client("llama-index", "with_llama_index.py", "openai-2"),
    Client("instructor", "with_instructor.py", "openai-2"),
    Client(
        "lm-eval",
        "with_lm_eval.py",
        "lm-eval",
        "The likelihood of given texts needs completions, and asks the server for its tokenizer; "
        "[more](api.md#log-probabilities).",
    ),
    Client(
        "guidellm",
        "with_guidellm.py",
        "guidellm",
        "Also with the formats `/v1/completions` and `/v1/responses`.",
    ),
    Client(
        "aiperf",
        "with_aiperf.py",
        "aiperf",
        "Also with the endpoint types `completions`, `responses`, `messages` (without "
        "`ignore_eos`) and `embeddings`. Of responses that end at a limit it reads no usage: there "
        "without `--use-server-token-count`. With `HF_HUB_OFFLINE` it takes no tokenizer from a "
        "folder.",
    ),
    Client(
        "LoadGen",
        "with_loadgen.py",
        "project",
        "Through `tandem bench` of the extra `loadgen` ([more](measuring.md)).",
    ),
    Client("openai (Node.js)", "with_openai_node.mjs", "node"),
    Client("anthropic (Node.js)", "with_anthropic_node.mjs", "node"),
    Client(
        "AI SDK",
        "with_ai_sdk.mjs",
        "node",
        "The package `ai`. Anthropic's provider wants `/v1` in its base URL. Without "
        "`supportsStructuredOutputs` the compatible provider asks for any JSON. Its other fields "
        "go into `providerOptions`, under the provider's name.",
    ),
)
