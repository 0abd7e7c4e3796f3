"""How processes write their logs to standard error: as lines of text, or as a JSON object a line.
The HTTP server in a process writes its log the same way."""

import json
import logging
from datetime import UTC, datetime

from tandem.api.call_ids import CALL_IDS
from tandem.config.options import LogFormat, LogLevel

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Lines of the process of this name. Where the running task answers a call they have its
    `request_id`, and its `trace_id` if it is traced."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "pid": record.process,
            "message": record.getMessage(),
        }
        call = CALL_IDS.get()
        if call is not None:
            line["request_id"] = call.request_id
            if call.trace_id:
                line["trace_id"] = call.trace_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)


def begin_log(level: LogLevel, log_format: LogFormat, process: str, text: str = TEXT) -> None:
    """From now on what this process logs, from `level` on, goes to standard error, as `text` says
    where it is to be text."""
    handler = logging.StreamHandler()
    as_json = log_format == "json"
    handler.setFormatter(JsonFormatter(process) if as_json else logging.Formatter(text))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
