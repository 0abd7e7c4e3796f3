"""Chat templates: renders messages with the checkpoint's own template, in a sandbox.

Templates come from the checkpoint only, never from a client.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from tandem.facts.errors import InvalidConfiguration, InvalidRequest

Message = Mapping[str, Any]

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_LARGE_VALUES = 4096
_CUTTING = frozenset({"replace", "split", "rsplit", "partition", "rpartition"})
_JSON_LAYOUT = frozenset({"indent", "separators", "sort_keys"})
# What a template can raise on odd messages: None + "x", a missing key, deep recursion.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
# The trailing space tells whether the template strips what it is given.
_CONTINUE_MARK = "<<<CONTINUE FROM HERE>>> "


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a chat is rendered. `arguments` are further variables of the template."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)


class GenerationBlock(jinja2.ext.Extension):
    """Accepts `{% generation %}`, which marks answers for training and means nothing here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateRefusal(jinja2.TemplateError):
    """What a template itself says of the messages; its author wrote that for clients."""


class ChatTemplate:
    """The chat templates of one checkpoint, compiled once.

    `cuts` are the strings that they look for in what clients wrote, to take them out or to cut
    there; `variables` are what they look at. Raises `InvalidConfiguration` when a template does not
    parse.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = _environment(now)
        self._special_tokens = dict(special_tokens)
        try:
            self._templates = {n: environment.from_string(text) for n, text in sources.items()}
            parsed = [environment.parse(source) for source in sources.values()]
            names = [jinja2.meta.find_undeclared_variables(each) for each in parsed]
        except jinja2.TemplateError as error:
            raise InvalidConfiguration(f"the chat template does not parse: {error}") from error
        if "default" not in self._templates:
            raise InvalidConfiguration("the checkpoint has no default chat template")
        self.cuts = frozenset(cut for each in parsed for cut in _cuts(each))
        self.variables: frozenset[str] = frozenset().union(*names)
        self.uses_tools = "tools" in self.variables

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message], options: ChatOptions
    ) -> str:
        """The prompt text. Raises `InvalidRequest` when the template refuses the messages."""
        reserved = sorted((_RESERVED | self._special_tokens.keys()) & options.arguments.keys())
        if reserved:
            raise InvalidRequest("chat_template_kwargs", f"must not set {reserved[0]!r}")
        if options.continue_final_message:
            return self._render_open(messages, tools, options)
        return self._render(messages, tools, options)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Message], options: ChatOptions
    ) -> str:
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        variables = {
            **self._special_tokens,
            **options.arguments,
            "messages": messages,
            # Templates ask `if tools`, some `is not none`: absence must satisfy both.
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": options.add_generation_prompt,
        }
        try:
            return self._templates[name].render(variables)
        except TemplateRefusal as error:
            raise InvalidRequest(
                "messages", f"were refused by the chat template: {error}"
            ) from error
        except _TEMPLATE_FAILURES as error:
            # Its words are Python's and jinja's, about the inside of the template.
            raise InvalidRequest(
                "messages", "do not suit the chat template of this model"
            ) from error

    def _render_open(
        self, messages: Sequence[Message], tools: Sequence[Message], options: ChatOptions
    ) -> str:
        """Ends the prompt inside the last message, so that the answer continues it."""
        if options.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message", "cannot be combined with add_generation_prompt"
            )
        content = messages[-1].get("content") if messages else None
        if not isinstance(content, str):
            raise InvalidRequest("continue_final_message", "needs text in the last message")
        marked = [*messages[:-1], {**messages[-1], "content": content + _CONTINUE_MARK}]
        text = self._render(marked, tools, options)
        place = text.rfind(_CONTINUE_MARK.rstrip(" "))
        if place < 0 or content.strip() not in text:
            raise InvalidRequest(
                "continue_final_message", "does not work with this template and last message"
            )
        keeps_spaces = text.startswith(_CONTINUE_MARK, place)
        return text[:place] if keeps_spaces else text[:place].rstrip()


def _cuts(parsed: jinja2.nodes.Template) -> Iterator[str]:
    """The first arguments of `replace`, as method and as filter, of `split` and the like."""
    called = [(call.node, call.args) for call in parsed.find_all(jinja2.nodes.Call)]
    named = [(node.attr, args) for node, args in called if isinstance(node, jinja2.nodes.Getattr)]
    named += [(each.name, each.args) for each in parsed.find_all(jinja2.nodes.Filter)]
    for name, args in named:
        cut = args[0] if name in _CUTTING and args else None
        if isinstance(cut, jinja2.nodes.Const) and isinstance(cut.value, str):
            yield cut.value


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationBlock, jinja2.ext.loopcontrols],
    )

    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _tojson(value: object, ensure_ascii: bool = False, **layout: Any) -> str:
    """Plain JSON: jinja2's own filter escapes HTML, which would end up in the prompt."""
    foreign = sorted(layout.keys() - _JSON_LAYOUT)
    if foreign:
        raise TypeError(f"tojson takes no {foreign[0]!r}")
    if _is_large(value):
        # In Python, which lets other threads run; one call into C would hold them until its end.
        return "".join(json.JSONEncoder(ensure_ascii=ensure_ascii, **layout).iterencode(value))
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _is_large(value: object) -> bool:
    stack, seen = [value], 0
    while stack and seen <= _LARGE_VALUES:
        each = stack.pop()
        if isinstance(each, dict):
            stack += each.values()
            seen += len(each)
        elif isinstance(each, list | tuple):
            stack += each
            seen += len(each)
    return seen > _LARGE_VALUES


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)
