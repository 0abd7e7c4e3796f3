"""POST /v1/chat/completions: messages in, an assistant's message out."""

from collections.abc import Callable, Sequence
from typing import cast

from msgspec import UNSET, Raw
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.call import Call, ResponseWriter, Scaled, StreamUsage
from tandem.api.choice import ChoiceDelta
from tandem.api.errors import Refusal
from tandem.api.generation import GenerationSpec, create_answer
from tandem.api.logprobs import CHAT_LISTS, Shown, TokenJson, chat_items, chat_logprobs
from tandem.api.openapi import ApiEndpoint
from tandem.api.prompt_scores import prompt_alternatives, prompt_logprobs_json
from tandem.api.prompts import (
    Tokens,
    chat_follow_up,
    chat_prompt,
    content_text,
    kept_end,
    read_limit,
)
from tandem.api.requests import ChatBody
from tandem.api.responses import (
    AnswerMessage,
    AnswerToolCall,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    FunctionCall,
    FunctionCallDelta,
    PromptLogprobs,
    ToolCallDelta,
    Usage,
)
from tandem.api.sampling_request import check_choices
from tandem.api.scaling_request import asks_again, check_scaling
from tandem.api.search_request import sequences_of
from tandem.api.streaming import DONE, encoded_event, error_event
from tandem.api.tool_choice import tool_use
from tandem.api.whole_response import (
    ID_BYTES,
    AnswerFrame,
    Transcript,
    filled_choice,
    split_at_choices,
)
from tandem.facts.errors import InvalidRequest
from tandem.text.detokenize import TokenBytes
from tandem.text.model import TextModel
from tandem.text.reasoning import ReasoningStart
from tandem.text.tool_calls import MoreArguments, ToolCall


def chat_endpoints(context: AppContext) -> list[ApiEndpoint]:
    """The chat endpoint over `context`."""
    token_json = TokenJson(context.text.token_bytes)
    ids_json = TokenJson(context.text.token_bytes, by_id=True)

    def spec_of(body: ChatBody) -> GenerationSpec:
        names = ids_json if body.return_tokens_as_token_ids else token_json
        token_bytes, shows = context.text.token_bytes, bool(body.logprobs)
        return chat_spec(
            body,
            context,
            lambda call: ChatWriter(call, names, token_bytes, with_logprobs=shows),
            id_prefix="chatcmpl-",
        )

    async def create_chat_completion(request: Request) -> Response:
        """Continues a conversation: messages in, the assistant's message or tool calls out."""
        return await create_answer(request, context, ChatBody, spec_of)

    return [
        ApiEndpoint(
            "POST",
            "/v1/chat/completions",
            create_chat_completion,
            "Generating",
            body=ChatBody,
            answer=ChatAnswer,
            events=(ChatChunk,),
        )
    ]


def chat_spec(
    body: ChatBody,
    context: AppContext,
    writer_of: Callable[[Call], ResponseWriter],
    *,
    id_prefix: str,
) -> GenerationSpec:
    """How a conversation goes on, whichever API it came through: `writer_of` makes who puts the
    answer into the words of that API. Raises `InvalidRequest` for what cannot be."""
    check_choices(body, 1, context)
    check_scaling(body, 1, context)
    tools = tool_use(body, context.text)
    longest_tokens, top_logprobs = _limits(body)
    context_tokens = context.generator.card.context_tokens
    follow_up = None
    if asks_again(body):
        # A copy: what was read is not kept in the body itself.
        follow_up = chat_follow_up(replace(body), context.text, context_tokens, context.config)

    def read() -> tuple[list[Tokens], Callable[[Call], ResponseWriter]]:
        limit_tokens = read_limit(body, context_tokens)
        prompt = chat_prompt(body, tools.offered, context.text, limit_tokens, context.config)
        prompt = kept_end(prompt, body, longest_tokens or 1, context_tokens)
        # What was read is not kept beside the prompt while the answer is written.
        body.messages, body.tools, body.chat_template_kwargs, body.stop = [], None, None, None
        return [prompt], writer_of

    return GenerationSpec(
        body,
        id_prefix,
        read,
        max_tokens=longest_tokens or context_tokens,
        named_tokens=longest_tokens,
        top_logprobs=top_logprobs,
        choices=sequences_of(body),
        tool_format=context.text.tool_format if tools.offered else None,
        text_parameters=tools.text_parameters,
        calls=tools.calls_in_answer(body, context.text),
        tool_grammar=(lambda: tools.grammar(body, context.text)) if tools.called else None,
        reasoning_start=_reasoning_start(body, context.text),
        follow_up=follow_up,
        prompt_logprobs=prompt_alternatives(body),
        scores_once=True,
    )


class ChatWriter:
    """Writes deltas and answers in the chat form."""

    def __init__(
        self, call: Call, token_json: TokenJson, token_bytes: TokenBytes, *, with_logprobs: bool
    ) -> None:
        self._call = call
        self._token_bytes = token_bytes
        self._head = call.head_fields
        self._token_json = token_json
        self._with_logprobs = with_logprobs
        self._begun: set[int] = set()
        self._called_tools = [0] * len(call.lookups)
        # As JSON.
        self._prompt_logprobs = b""

    def delta_event(
        self, delta: ChoiceDelta, usage: StreamUsage, scaling: Scaled = UNSET
    ) -> bytes | None:
        call = self._call
        if call.is_silent(delta):
            return None
        is_first = delta.choice not in self._begun
        self._begun.add(delta.choice)
        choice = ChatChunkChoice(
            index=delta.choice,
            delta=self._delta(delta, is_first),
            logprobs=self._logprobs(delta.shown),
            finish_reason=delta.finish_reason,
            stop_reason=UNSET if delta.stop_reason is None else delta.stop_reason,
            token_ids=call.token_ids(delta.tokens),
            token_sources=call.token_sources(delta),
        )
        chunk = ChatChunk(**self._head, choices=[choice], usage=usage, scaling=scaling)
        if is_first and delta.choice == 0:
            chunk.prompt_token_ids = call.token_ids(call.prompts[0])
        return encoded_event(chunk)

    def stream_end(self, usage: Usage, *, includes_usage: bool) -> bytes:
        if not includes_usage:
            return DONE
        return encoded_event(ChatChunk(**self._head, choices=[], usage=usage)) + DONE

    def error_event(self, refusal: Refusal) -> bytes:
        return error_event(refusal)

    @property
    def logprobs_lists(self) -> Sequence[str]:
        return CHAT_LISTS

    @property
    def shared_bytes(self) -> int:
        return ID_BYTES * len(self._call.prompts[0]) if self._call.returns_token_ids else 0

    def logprobs_items(self, delta: ChoiceDelta) -> Sequence[bytes]:
        wanted = self._with_logprobs and bool(delta.shown)
        return chat_items(delta.shown, self._token_json) if wanted else ()

    def keep_prompt_scores(self, delta: ChoiceDelta) -> int:
        """All choices have the same prompt, which the first one scores."""
        alternatives = self._call.body.prompt_logprobs
        assert delta.choice == 0
        if delta.prompt_scores is None or alternatives is None:
            return 0
        (prompt,) = self._call.prompts
        self._prompt_logprobs = prompt_logprobs_json(
            prompt, delta.prompt_scores, self._token_bytes, alternatives
        )
        return len(self._prompt_logprobs)

    def choice_pieces(self, transcript: Transcript) -> list[bytes]:
        choice = ChatChoice(
            index=transcript.index,
            message=self._message(transcript),
            logprobs=None,
            finish_reason=transcript.finish_reason,
            stop_reason=transcript.stop_reason,
            token_ids=self._call.token_ids(transcript.tokens),
        )
        logprobs = transcript.logprobs if self._with_logprobs else None
        reasoning = transcript.reasoning.pieces()
        texts = {
            b"content": transcript.text.pieces(),
            b"reasoning_content": reasoning,
            b"reasoning": reasoning,
        }
        return filled_choice(choice, texts, logprobs)

    def answer_frame(self, usage: Usage, scaling: Scaled = UNSET) -> AnswerFrame:
        call = self._call
        answer = ChatAnswer(
            **self._head,
            choices=[],
            usage=usage,
            prompt_token_ids=call.token_ids(call.prompts[0]),
            scaling=scaling,
        )
        if self._prompt_logprobs:
            answer.prompt_logprobs = cast(PromptLogprobs, Raw(self._prompt_logprobs))
        return split_at_choices(answer)

    def _delta(self, delta: ChoiceDelta, is_first: bool) -> ChatDelta:
        result = ChatDelta()
        if is_first:
            result.role = "assistant"
        if delta.reasoning:
            result.reasoning_content = result.reasoning = delta.reasoning
        if delta.text or (is_first and not (delta.tool_calls or delta.reasoning)):
            result.content = delta.text
        if delta.tool_calls:
            result.tool_calls = self._call_deltas(delta)
        return result

    def _call_deltas(self, delta: ChoiceDelta) -> list[ToolCallDelta]:
        """Neighbouring parts of one call are one."""
        deltas: list[ToolCallDelta] = []
        for part in delta.tool_calls:
            if isinstance(part, MoreArguments):
                last = self._called_tools[delta.choice] - 1
                if not deltas:
                    deltas.append(
                        ToolCallDelta(index=last, function=FunctionCallDelta(arguments=""))
                    )
                deltas[-1].function.arguments += part.text
                continue
            number = self._called_tools[delta.choice]
            self._called_tools[delta.choice] += 1
            function = FunctionCallDelta(name=part.name, arguments=part.arguments)
            call_id = self._call.fresh_call_id()
            deltas.append(
                ToolCallDelta(index=number, id=call_id, type="function", function=function)
            )
        return deltas

    def _message(self, transcript: Transcript) -> AnswerMessage:
        """Without its texts, which are JSON already."""
        calls = [
            AnswerToolCall(id=self._call.fresh_call_id(), function=_function(call))
            for call in transcript.tool_calls.calls()
        ]
        # Beside calls, no content is null; an empty answer is an empty text.
        content = "" if transcript.text.pieces() or not calls else None
        reasoning = "" if transcript.reasoning.pieces() else UNSET
        return AnswerMessage(
            content=content,
            tool_calls=calls or UNSET,
            reasoning_content=reasoning,
            reasoning=reasoning,
        )

    def _logprobs(self, shown: Shown) -> ChatLogprobs | None:
        wanted = self._with_logprobs and bool(shown)
        return chat_logprobs(shown, self._token_json) if wanted else None


def _reasoning_start(body: ChatBody, text: TextModel) -> Callable[[Tokens], ReasoningStart]:
    """Says how the answer to a prompt begins."""
    continues = bool(body.continue_final_message)
    continued = content_text(body.messages[-1].content) if continues else None
    return lambda prompt: text.reasoning_start(prompt, continued)


def _function(call: ToolCall) -> FunctionCall:
    return FunctionCall(name=call.name, arguments=call.arguments)


def _limits(body: ChatBody) -> tuple[int | None, int | None]:
    """The longest answer that the client names, and how many alternatives it wants to each token
    (None: no log-probabilities)."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs", "needs logprobs to be true")
    asked = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(asked) > 1:
        raise InvalidRequest("max_tokens", "contradicts max_completion_tokens; send one of them")
    longest_tokens = body.max_completion_tokens or body.max_tokens
    return longest_tokens, (body.top_logprobs or 0) if body.logprobs else None
