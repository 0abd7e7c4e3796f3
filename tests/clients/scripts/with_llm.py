"""llm, the command for a terminal, with models that a file of its own names."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from outcomes import URL, aborted, check, report
from questions import (
    CHEST,
    GREETING,
    HELLO,
    STORY,
    SUM,
    SUM_ANSWER,
    WEATHER,
    WEATHER_REPLY,
    Treasure,
)

# settings: extra-openai-models.yaml in the folder that `dirname "$(llm logs path)"` names
MODELS = f"""
- model_id: tandem
  model_name: tandem-mini
  api_base: {URL}/v1
  supports_tools: true
  supports_schema: true
"""
# end of settings

HOME = tempfile.TemporaryDirectory()
Path(HOME.name, "extra-openai-models.yaml").write_text(MODELS)
ENVIRONMENT = {**os.environ, "LLM_USER_PATH": HOME.name, "OPENAI_API_KEY": "none"}
SCHEMA = Treasure.model_json_schema()
WEATHER_FUNCTION = '''
def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return '{"temperature": 17, "sky": "cloudy"}'
'''


def llm(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "llm", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)


def said(*arguments: str) -> str:
    done = llm(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@check("text")
def text():
    assert said("-m", "tandem", "-o", "temperature", "0", "--no-stream", HELLO) == GREETING


@check("stream")
def stream():
    assert SUM_ANSWER in said("-m", "tandem", "-o", "temperature", "0", SUM)


@check("tools")
def tools():
    answer = said(
        "-m", "tandem", "-o", "temperature", "0", "--functions", WEATHER_FUNCTION, WEATHER
    )
    assert answer.endswith(WEATHER_REPLY), answer


@check("structured output")
def structured_output():
    answer = said("-m", "tandem", "-o", "temperature", "0", "--schema", json.dumps(SCHEMA), CHEST)
    assert set(json.loads(answer)) == set(SCHEMA["required"])


@check("errors")
def errors():
    done = llm("-m", "tandem", "-o", "temperature", "-1", HELLO)
    assert done.returncode == 1
    assert "temperature" in done.stderr


@check("cancellation")
def cancellation():
    command = [sys.executable, "-m", "llm", "-m", "tandem", "-o", "max_tokens", "3000", STORY]
    with aborted():
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
        process.stdout.read(1)
        process.terminate()
        process.communicate()


report("llm")
