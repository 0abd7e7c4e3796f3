"""How the requests of `tandem bench` are asked of the server that was found."""

from tandem.bench.client import Client, RequestFailed
from tandem.bench.load import COMPLETION_PATH, Asking
from tandem.bench.responses import ServedModel
from tandem.bench.workload import Content, ContentSource, Segment
from tandem.commands.bench_options import PromptOptions
from tandem.facts.errors import InvalidConfiguration

# Enough different words that some of their ids lie high in any vocabulary.
_VOCABULARY_SAMPLE_WORDS = 2000


async def choose_asking(
    client: Client, model: ServedModel, prompts: PromptOptions, *, token_ids: bool = False
) -> Asking:
    """Raises `InvalidConfiguration` where token ids are to be sent and nobody knows which."""
    vocabulary_tokens = None
    if not prompts.text and prompts.endpoint == COMPLETION_PATH:
        vocabulary_tokens = prompts.vocabulary or await _ask_vocabulary(client, model)
    return Asking(
        model.id,
        prompts.endpoint,
        vocabulary_tokens,
        prompts.ignore_eos,
        prompts.temperature,
        token_ids,
    )


async def _ask_vocabulary(client: Client, model: ServedModel) -> int:
    """The vocabulary size if the server tells it, else one above the highest id that a sample of
    words gets: too small at worst, and every id below it is valid."""
    if model.vocabulary:
        return model.vocabulary
    sample = (Segment((Content.WARMUP, 0), _VOCABULARY_SAMPLE_WORDS),)
    words = ContentSource(0).text(sample)
    try:
        ids = await client.token_ids(model.id, words)
    except RequestFailed as failure:
        raise InvalidConfiguration(
            f"the server does not tell its vocabulary ({failure}); give --vocabulary or --text"
        ) from failure
    return max(ids, default=1) + 1
