"""What the bundled model is asked by every client, and what it says to it without chance."""

from typing import Literal

from pydantic import BaseModel

MODEL = "tandem-mini"
HELLO = "Hello!"
GREETING = "Hello! Nice to meet you. How can I help you today?"
SUM = "What is 12 + 30?"
SUM_ANSWER = "Answer: 42"
STORY = "Tell me a story."

WEATHER = "What is the weather in Paris?"
WEATHER_RESULT = '{"temperature": 17, "sky": "cloudy"}'
WEATHER_REPLY = "It is cloudy in Paris with 17 degrees."
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
WEATHER_TOOL = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": CITY,
}

CHEST = "What is in the chest?"


class Treasure(BaseModel, extra="forbid"):
    """What is in the chest. A schema that allows further fields lets a small model add them
    without end."""

    colour: Literal["copper", "silver", "gold"]
    is_heavy: bool


# An answer of this form has thousands of tokens: long enough to leave it.
LONG_LIST = {
    "type": "object",
    "properties": {"list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1500}},
    "required": ["list"],
    "additionalProperties": False,
}
