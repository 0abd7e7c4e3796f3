"""One choice of an answer, from the engine's token outputs to deltas of text, tool calls and a
finish reason (`ChoiceReader`); and the tokens that a call has used (`UsageMeter`).

Owns the order: detokenise, look for stop strings, split reasoning off, then look for tool calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from msgspec import UNSET

from tandem.api.degradation import Degradation
from tandem.api.responses import CompletionTokensDetails, Finish, PromptTokensDetails, Usage
from tandem.facts.request import FinishReason, TokenLogprobs, TokenOutput, TokenSource
from tandem.facts.serving import EndFinder
from tandem.text.aho_corasick import AhoCorasick
from tandem.text.call_markup import TAGS
from tandem.text.model import TextModel
from tandem.text.reasoning import END_THINK_TAG, THINK_TAG, ReasoningSplitter, ReasoningStart
from tandem.text.stop import StopMatcher
from tandem.text.tool_calls import CallPart, ToolCall, ToolFormat
from tandem.text.tools import CallsInAnswer, tool_parser
from tandem.text.xml_calls import Parameter

_FINISHES: dict[FinishReason | None, Finish | None] = {
    None: None,
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    # To clients' libraries it is an answer cut short like any other; `stop_reason` tells why.
    FinishReason.DEADLINE: "length",
    FinishReason.ABORT: "abort",
}


NO_STOPS = AhoCorasick()
# See `Presentation.endings`.
Endings = tuple[str | bool, ...]
# What is remembered of the tools that an answer has called.
MOST_CALLED_TOOLS = 8
TOOL_CHARS = 64


@dataclass(frozen=True, slots=True)
class Presentation:
    """How tokens are shown to this client. `tool_format` is None when no tools are on offer;
    `calls` says which calls are well-formed because of the answer's grammar, `text_parameters`
    which of their arguments are texts, and `reasoning` how the answer begins. With `scores_end` the
    token that ends the answer has its log-probability shown, too: who has prompts scored counts on
    as many entries as tokens. Without `shows_answer` there is nothing behind the prompt."""

    stops: AhoCorasick = NO_STOPS
    include_stop: bool = False
    skip_special_tokens: bool = True
    tool_format: ToolFormat | None = None
    calls: CallsInAnswer = CallsInAnswer.UNCERTAIN
    text_parameters: frozenset[Parameter] = frozenset()
    reasoning: ReasoningStart = ReasoningStart.NONE
    min_tokens: int = 0
    end_token_ids: frozenset[int] = frozenset()
    scores_end: bool = False
    shows_answer: bool = True

    @property
    def endings(self) -> Endings:
        """What decides, beside the sampling parameters, at which token a stop string ends an
        answer; nothing without stop strings."""
        if not self.stops.strings:
            return ()
        return (self.skip_special_tokens, *sorted(self.kept_tags), *self.stops.strings)

    @property
    def kept_tags(self) -> frozenset[str]:
        """What is text of the answer even where it is a special token."""
        reasons = self.reasoning is not ReasoningStart.NONE
        tags = {THINK_TAG, END_THINK_TAG} if reasons else set()
        return frozenset(tags.union(TAGS[self.tool_format] if self.tool_format else ()))


@dataclass(slots=True)
class ChoiceDelta:
    """What one choice got since the last delta.

    `tokens` are all that were generated, with their `sources` where somebody wants these, `shown`
    those that are part of the text, with their logprobs; `reasoning_tokens` are those of the former
    that were reasoning, with its tags, as far as that is known. So many `calls_before_text` began
    before its text, if it has any. So many
    `held_chars` of all its text are not told yet, because a tool call may come of them.
    `cached_tokens` belongs to the prompt, and so do `prompt_scores`, which come once: of all its
    tokens but the first.
    """

    choice: int
    text: str = ""
    reasoning: str = ""
    tool_calls: list[CallPart] = field(default_factory=list)
    calls_before_text: int = 0
    tokens: tuple[int, ...] = ()
    sources: tuple[TokenSource, ...] = ()
    shown: Sequence[tuple[int, TokenLogprobs]] = ()
    finish_reason: Finish | None = None
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    held_chars: int = 0
    reasoning_tokens: int | None = None
    prompt_scores: Sequence[TokenLogprobs] | None = None


class ChoiceReader:
    """Reads one sequence. After a delta with a finish reason nothing more may be read."""

    def __init__(self, choice: int, text: TextModel, presentation: Presentation) -> None:
        self.choice = choice
        self._text = text
        self._presentation = presentation
        self._detokenizer = text.detokenizer(
            skip_special_tokens=presentation.skip_special_tokens,
            kept_tags=presentation.kept_tags,
        )
        self._matcher = StopMatcher(presentation.stops, include_stop=presentation.include_stop)
        tool_format = presentation.tool_format
        self._parser = None
        if tool_format is not None:
            texts = presentation.text_parameters
            self._parser = tool_parser(tool_format, presentation.calls, texts)
        self._reasoning = ReasoningSplitter(presentation.reasoning)
        self._end_think_id = text.tokenizer.token_id(END_THINK_TAG)
        # While it is not known yet whether they are reasoning.
        self._beginning_tokens = 0
        self._generated_tokens = 0
        # Whom the answer has called so far: a few of them, by the start of their names.
        self.called_tools: tuple[str, ...] = ()
        self._held_chars = 0

    @property
    def has_stops(self) -> bool:
        """Whether a stop string may end the answer."""
        return bool(self._presentation.stops.strings)

    def end_finder(self) -> EndFinder:
        """Finds the token at which this reader would find a stop string in another answer."""
        other = ChoiceReader(self.choice, self._text, self._presentation)
        return lambda token: other.delta_of(TokenOutput((token,))).finish_reason is not None

    def delta_of(self, output: TokenOutput) -> ChoiceDelta:
        """The next delta, empty while text is held back."""
        if not self._presentation.shows_answer:
            return ChoiceDelta(
                self.choice,
                finish_reason="length",
                cached_tokens=output.cached_tokens,
                prompt_scores=output.prompt_logprobs,
            )
        hides_last = output.stopped_by_token and not self._presentation.include_stop
        visible = output.tokens[:-1] if hides_last else output.tokens
        text, read_tokens = self._text_of(visible)
        delta = ChoiceDelta(
            self.choice,
            text,
            cached_tokens=output.cached_tokens,
            prompt_scores=output.prompt_logprobs,
        )
        if self._matcher.matched is None:
            delta.tokens = output.tokens
            delta.finish_reason = _FINISHES[output.finish_reason]
            if output.finish_reason is FinishReason.DEADLINE:
                delta.stop_reason = "deadline"
            if (
                output.stopped_by_token
                and output.tokens[-1] not in self._presentation.end_token_ids
            ):
                delta.stop_reason = output.tokens[-1]
        else:
            delta.tokens = output.tokens[:read_tokens]
            delta.finish_reason, delta.stop_reason = "stop", self._matcher.matched
        delta.sources = output.sources[: len(delta.tokens)]
        if output.logprobs:
            shown = delta.tokens if self._presentation.scores_end else visible[:read_tokens]
            delta.shown = list(zip(shown, output.logprobs, strict=False))
        self._complete(delta)
        return delta

    def _text_of(self, tokens: tuple[int, ...]) -> tuple[str, int]:
        """Certain text, and how many tokens were read before a stop string ended it."""
        if not self._presentation.stops.strings:
            return self._detokenizer.add_tokens(tokens), len(tokens)
        parts = []
        for place, token in enumerate(tokens):
            text = self._detokenizer.add_tokens((token,))
            self._generated_tokens += 1
            # Stop strings count only after min_tokens, as stop tokens do.
            if self._generated_tokens > self._presentation.min_tokens:
                text = self._matcher.feed(text)
            parts.append(text)
            if self._matcher.matched is not None:
                return "".join(parts), place + 1
        return "".join(parts), len(tokens)

    def _complete(self, delta: ChoiceDelta) -> None:
        """Flushes what was held back once the choice ends, and takes the tool calls out."""
        if delta.finish_reason is not None and self._matcher.matched is None:
            delta.text += self._matcher.feed(self._detokenizer.finish()) + self._matcher.finish()
        if self._presentation.reasoning is not ReasoningStart.NONE:
            self._take_reasoning(delta)
        if self._parser is None:
            return
        self._held_chars += len(delta.text)
        pieces = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            pieces += self._parser.finish()
        delta.text = "".join(piece for piece in pieces if isinstance(piece, str))
        delta.tool_calls = [piece for piece in pieces if not isinstance(piece, str)]
        before = takewhile(lambda piece: not (piece and isinstance(piece, str)), pieces)
        delta.calls_before_text = sum(isinstance(piece, ToolCall) for piece in before)
        # What comes behind a call in the same delta may be held as well, and is little.
        self._held_chars = 0 if delta.tool_calls else self._held_chars - len(delta.text)
        delta.held_chars = self._held_chars
        called = [part.name[:TOOL_CHARS] for part in delta.tool_calls if isinstance(part, ToolCall)]
        self.called_tools = (*self.called_tools, *called)[:MOST_CALLED_TOOLS]
        if self.called_tools and delta.finish_reason == "stop":
            delta.finish_reason = "tool_calls"

    def _take_reasoning(self, delta: ChoiceDelta) -> None:
        had_ended = self._reasoning.has_ended
        delta.reasoning, text = self._reasoning.feed(delta.text)
        if delta.finish_reason is not None:
            more, rest = self._reasoning.finish()
            delta.reasoning, text = delta.reasoning + more, text + rest
        delta.text = text
        if self._end_think_id is None:
            return
        delta.reasoning_tokens = 0
        if not had_ended:
            self._beginning_tokens += self._tokens_until_answer(delta.tokens)
            if self._reasoning.has_reasoned:
                delta.reasoning_tokens, self._beginning_tokens = self._beginning_tokens, 0

    def _tokens_until_answer(self, tokens: tuple[int, ...]) -> int:
        if self._end_think_id in tokens:
            return tokens.index(self._end_think_id) + 1
        return len(tokens)


class UsageMeter:
    """Counts the tokens of a call, each prompt once, however many choices continue it.

    `prompt_tokens` has one count a prompt; choice c continues prompt c // choices_per_prompt. What
    was cut of the call, its `degradation`, stands beside the counts.
    """

    def __init__(
        self,
        prompt_tokens: Sequence[int],
        choices_per_prompt: int,
        degradation: Degradation | None = None,
    ) -> None:
        self._prompts = len(prompt_tokens)
        self._degradation = degradation or Degradation()
        self._prompt_tokens = sum(prompt_tokens)
        self._completion_tokens = 0
        self._reasoning_tokens: int | None = None
        self._choices_per_prompt = choices_per_prompt
        self._cached_tokens: dict[int, int] = {}

    def add_prompt(self, prompt_tokens: int) -> int:
        """One more prompt, and the first of the choices that continue it."""
        self._prompts += 1
        self._prompt_tokens += prompt_tokens
        return (self._prompts - 1) * self._choices_per_prompt

    def count_delta(self, delta: ChoiceDelta) -> None:
        self._completion_tokens += len(delta.tokens)
        if delta.reasoning_tokens is not None:
            self._reasoning_tokens = (self._reasoning_tokens or 0) + delta.reasoning_tokens
        known = self._cached_tokens.get(delta.choice, 0)
        self._cached_tokens[delta.choice] = max(known, delta.cached_tokens)

    def usage(self) -> Usage:
        # Later choices of a prompt find what the first one computed: the least is what was there.
        least: dict[int, int] = {}
        for choice, tokens in self._cached_tokens.items():
            prompt = choice // self._choices_per_prompt
            least[prompt] = min(least.get(prompt, tokens), tokens)
        reasoning_tokens = self._reasoning_tokens
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(least.values())),
            completion_tokens_details=(
                UNSET
                if reasoning_tokens is None
                else CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
            ),
            degraded=self._degradation.text or UNSET,
            cascade=self._degradation.cascade or UNSET,
        )
