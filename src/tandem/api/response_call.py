"""One call of the Responses API: the chat that it is, and what of it is needed until its answer is
there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from msgspec import Raw
from msgspec.json import encode

from tandem.api.app_context import AppContext
from tandem.api.body_fields import ChatMessage, Tool
from tandem.api.call import Call, ResponseWriter
from tandem.api.chat import chat_spec
from tandem.api.generation import GenerationSpec
from tandem.api.logprobs import TokenJson
from tandem.api.prompts import Tokens, chat_prompt
from tandem.api.requests import ChatBody
from tandem.api.response_history import Past, past_of
from tandem.api.response_items import RESPONSE_PREFIX, ResponseObject
from tandem.api.response_messages import chat_messages, fitting_end
from tandem.api.response_translation import conversation_body, response_body
from tandem.api.response_writer import ResponsesWriter
from tandem.api.responses_body import (
    ConversationBody,
    InputItem,
    ReasoningConfig,
    ResponsesBody,
    ResponseTool,
    TextConfig,
    TextFormat,
)
from tandem.api.tool_choice import tool_use
from tandem.facts.errors import PromptTooLong

# Tools and instructions of more bytes are not kept beside a running call to be echoed.
_ECHO_BYTES = 64 << 10
# With truncation and without max_output_tokens, this share of the context stays for the answer.
_ANSWER_SHARE = 1 / 4
# Longer prompts are not counted.
_CONTEXTS_COUNTED = 4


def prompt_tokens(sent: ConversationBody, past: Past, context: AppContext) -> int:
    """How many a response to this would have. Pure work, off the loop where there is much."""
    body = conversation_body(sent)
    tools = tool_use(body, context.text)
    body.messages = chat_messages(sent.instructions, past.history(), _items(sent, past))
    prompts = _Prompts(body, tools.offered, context)
    return len(prompts.prompt(body.messages, _CONTEXTS_COUNTED))


class ResponseCall:
    """`spec` is the chat that the call is. Of `sent` is let go what its answer does not need."""

    def __init__(
        self, sent: ResponsesBody, owner: str, context: AppContext, token_json: TokenJson
    ) -> None:
        self._sent = sent
        self._owner = owner
        self._context = context
        self._past = past_of(sent, owner, context)
        self._body = response_body(sent)
        self._token_json = token_json if self._body.logprobs else None
        self._tools = tool_use(self._body, context.text).offered
        # What is stored, and echoed.
        self._input_items = b""
        self._instructions: str | None = None
        self._echoed_tools = b"[]"

    def spec(self) -> GenerationSpec:
        """Raises `InvalidRequest` and `Refused`."""
        spec = chat_spec(self._body, self._context, self._writer, id_prefix=RESPONSE_PREFIX)
        read = self._reading(spec.read)
        return replace(spec, read=read, history_bytes=self._past.size_bytes)

    def _reading(
        self, read_chat: Callable[[], tuple[Sequence[Tokens], Callable[[Call], ResponseWriter]]]
    ) -> Callable[[], tuple[Sequence[Tokens], Callable[[Call], ResponseWriter]]]:
        def read() -> tuple[Sequence[Tokens], Callable[[Call], ResponseWriter]]:
            sent, body = self._sent, self._body
            items = _items(sent, self._past)
            body.messages = chat_messages(sent.instructions, self._past.history(), items)
            if sent.truncation == "auto":
                prompts = _Prompts(body, self._tools, self._context)
                body.messages = fitting_end(body.messages, prompts.fits)
            self._keep_of_body(items)
            return read_chat()

        return read

    def _keep_of_body(self, items: Sequence[InputItem]) -> None:
        sent = self._sent
        if sent.store is not False:
            self._input_items = encode(items)
        tools = encode(sent.tools or [])
        if len(tools) <= _ECHO_BYTES:
            self._echoed_tools = tools
        if len(sent.instructions or "") <= _ECHO_BYTES:
            self._instructions = sent.instructions
        sent.input = sent.instructions = sent.tools = sent.chat_template_kwargs = None
        self._past, self._tools = Past((), {}), ()

    def _writer(self, call: Call) -> ResponseWriter:
        """Of the call that is ready to run: its input is stored from now on."""
        store, sent = self._context.response_store, self._sent
        is_kept = sent.store is not False and store.begin(
            self._owner, call.answer_id, sent.previous_response_id, self._input_items
        )
        self._input_items = b""

        def keep(pieces: Sequence[bytes]) -> None:
            if is_kept:
                store.complete(call.answer_id, b"".join(pieces))

        draft = self._draft(call, is_kept=is_kept)
        return ResponsesWriter(call, draft, keep, self._token_json)

    def _draft(self, call: Call, *, is_kept: bool) -> ResponseObject:
        sent, sampling = self._sent, call.lookups[0].request.sampling
        text = sent.text or TextConfig()
        return ResponseObject(
            id=call.answer_id,
            created_at=call.created_s,
            status="in_progress",
            output=[],
            model=call.model,
            previous_response_id=sent.previous_response_id,
            store=is_kept,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_output_tokens=sent.max_output_tokens,
            top_logprobs=sent.top_logprobs or 0,
            truncation=sent.truncation or "disabled",
            parallel_tool_calls=sent.parallel_tool_calls is not False,
            tool_choice=sent.tool_choice or "auto",
            tools=cast(list[ResponseTool], Raw(self._echoed_tools)),
            text=TextConfig(
                format=text.format or TextFormat(type="text"), verbosity=text.verbosity
            ),
            reasoning=sent.reasoning or ReasoningConfig(),
            instructions=self._instructions,
            metadata=sent.metadata or {},
            user=sent.user,
            safety_identifier=sent.safety_identifier,
            prompt_cache_key=sent.prompt_cache_key,
        )


class _Prompts:
    """The prompts of a conversation with these tools, for as much of it as somebody asks."""

    def __init__(self, body: ChatBody, tools: Sequence[Tool], context: AppContext) -> None:
        self._body = body
        self._tools = tools
        self._context = context
        self._context_tokens = context.generator.card.context_tokens
        answer_tokens = body.max_completion_tokens or int(self._context_tokens * _ANSWER_SHARE)
        self._room_tokens = max(1, self._context_tokens - answer_tokens)

    def prompt(self, messages: list[ChatMessage], contexts: int = 1) -> Tokens:
        """Raises `PromptTooLong` for what is certainly longer than so many contexts."""
        self._body.messages = messages
        text, config = self._context.text, self._context.config
        limit_tokens = contexts * self._context_tokens
        return chat_prompt(self._body, self._tools, text, limit_tokens, config)

    def fits(self, messages: list[ChatMessage]) -> bool:
        """Whether the context has room for them and for an answer."""
        try:
            return len(self.prompt(messages)) <= self._room_tokens
        except PromptTooLong:
            return False


def _items(sent: ConversationBody, past: Past) -> list[InputItem]:
    """The items of the call itself."""
    if isinstance(sent.input, str):
        return [InputItem(type="message", role="user", content=sent.input)]
    return past.resolved(sent.input or ())
