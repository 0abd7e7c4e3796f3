"""Where traces of calls go, and whether they can: endpoint, packages, what they are made of."""

import importlib.util
from urllib.parse import urlsplit

from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration

# A package comes before what is in it, which cannot be looked for else.
_MODULES = (
    "opentelemetry",
    "opentelemetry.sdk",
    "opentelemetry.exporter",
    "opentelemetry.exporter.otlp",
    "opentelemetry.exporter.otlp.proto",
    "opentelemetry.exporter.otlp.proto.http",
)
# Where OTLP receivers take traces.
_PATH = "/v1/traces"


def check_tracing(options: ServeOptions, explain_bytes: float | None = None) -> str | None:
    """The URL that traces go to; None where there are to be none. Raises `InvalidConfiguration`
    where it is no URL, packages are missing, or a gateway has no memory (`explain_bytes`) for what
    traces are made of."""
    if not options.otlp_traces_endpoint:
        return None
    url = _with_path(options.otlp_traces_endpoint)
    if not all(map(importlib.util.find_spec, _MODULES)):
        raise InvalidConfiguration(
            "--otlp-traces-endpoint needs the packages opentelemetry-sdk and "
            "opentelemetry-exporter-otlp-proto-http; pip install 'tandem[otel]'"
        )
    if explain_bytes == 0:
        raise InvalidConfiguration(
            "otlp-traces-endpoint: traces are made of what gateways remember of requests; give "
            "explain_memory more than 0"
        )
    return url


def _with_path(url: str) -> str:
    """With the usual path where there is none. Raises `InvalidConfiguration`."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise InvalidConfiguration(
            f"otlp-traces-endpoint: expected a URL such as http://localhost:4318{_PATH}, got {url}"
        )
    return parts._replace(path=_PATH).geturl() if parts.path in ("", "/") else url
