"""Makes the Grafana dashboard out of panels.yaml.

python deploy/grafana/dashboard.py > deploy/grafana/tandem.json
python deploy/grafana/dashboard.py --prefix vllm > vllm.json      # for `--metrics-prefix vllm`
"""

import argparse
import json
import re
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import yaml

PANELS = Path(__file__).with_name("panels.yaml")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MATCHERS = 'job=~"$job",instance=~"$instance",model_name=~"$model_name"'
# The name of a family of ours, and its matchers where it has some.
SERIES = re.compile(r"\btandem:(\w+)(?:\{(.*?)\})?")
QUANTILES = (0.5, 0.9, 0.99)
GRID_COLUMNS = 24
# Columns and rows of the grid that a panel takes.
FIGURE_SIZE, GRAPH_SIZE = (3, 4), (8, 8)
# A label, and the series from which its values are taken.
VARIABLES = (
    ("job", "tandem:generation_tokens_total"),
    ("instance", 'tandem:generation_tokens_total{job=~"$job"}'),
    ("model_name", 'tandem:generation_tokens_total{job=~"$job",instance=~"$instance"}'),
    ("worker", f"tandem:num_requests_running{{{MATCHERS}}}"),
    ("tenant", f"tandem:tenant_requests_total{{{MATCHERS}}}"),
)

Json = dict[str, Any]


def dashboard() -> Json:
    """As Grafana imports it, with a data source that is chosen when it is open."""
    return {
        "uid": "tandem",
        "title": "Tandem",
        "description": "Servers (tandem serve) and clusters of Tandem.",
        "tags": ["tandem", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), *starmap(_label_variable, VARIABLES)]},
        "panels": list(_laid_out(yaml.safe_load(PANELS.read_text()))),
    }


def _source_variable() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }


def _label_variable(label: str, series: str) -> Json:
    """All values are chosen at first, and what has no such label at all."""
    return {
        "name": label,
        "label": label.removesuffix("_name"),
        "type": "query",
        "datasource": SOURCE,
        "query": f"label_values({series}, {label})",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _laid_out(rows: list[Json]) -> Iterator[Json]:
    """Rows one below the other, their panels from left to right. A closed row holds its panels."""
    number = top = 0
    for row in rows:
        number, head_top = number + 1, top
        head: Json = {
            "id": number,
            "type": "row",
            "title": row["row"],
            "collapsed": not row.get("open", False),
            "gridPos": {"x": 0, "y": head_top, "w": GRID_COLUMNS, "h": 1},
            "panels": [],
        }
        panels: list[Json] = []
        left, top = 0, head_top + 1
        for panel in row["panels"]:
            number += 1
            width, height = FIGURE_SIZE if panel.get("figure") else GRAPH_SIZE
            if left + width > GRID_COLUMNS:
                left, top = 0, top + height
            place = {"x": left, "y": top, "w": width, "h": height}
            panels.append({"id": number, "gridPos": place, **_panel(panel)})
            left += width
        top += height
        if head["collapsed"]:
            head["panels"], panels, top = panels, [], head_top + 1
        yield head
        yield from panels


def _panel(panel: Json) -> Json:
    defaults: Json = {"unit": panel["unit"], "min": 0}
    if "most" in panel:
        defaults["max"] = panel["most"]
    made: Json = {
        "title": panel["title"],
        "description": panel["text"],
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": name,
            }
            for place, (name, expression) in enumerate(_queries(panel).items())
        ],
    }
    if panel.get("figure"):
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
        return {**made, "type": "stat", "options": options}
    stacking = {"mode": "normal" if panel.get("stacked") else "none", "group": "A"}
    defaults["custom"] = {"fillOpacity": 10, "showPoints": "never", "stacking": stacking}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return {**made, "type": "timeseries", "options": options}


def _queries(panel: Json) -> dict[str, str]:
    """Expressions by the names of their series."""
    if "queries" in panel:
        return {name: _selected(expression) for name, expression in panel["queries"].items()}
    labels = ["le", *([panel["by"]] if "by" in panel else ())]
    matchers = "".join(f'{{{label}=~"${label}"}}' for label in labels[1:])
    rate = f"rate(tandem:{panel['quantiles']}_bucket{matchers}[$__rate_interval])"
    name = "".join(f"{{{{{label}}}}} " for label in labels[1:])
    return {
        f"{name}p{100 * share:g}": _selected(
            f"histogram_quantile({share}, sum by ({', '.join(labels)}) ({rate}))"
        )
        for share in QUANTILES
    }


def _selected(expression: str) -> str:
    """Of the chosen servers and models alone."""

    def narrowed(series: re.Match[str]) -> str:
        name, matchers = series.groups()
        return f"tandem:{name}{{{','.join(filter(None, (MATCHERS, matchers)))}}}"

    return SERIES.sub(narrowed, expression)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the dashboard as JSON.")
    parser.add_argument("--prefix", default="tandem", help="of the names of metrics")
    text = json.dumps(dashboard(), indent=2)
    print(text.replace("tandem:", f"{parser.parse_args().prefix}:"))


if __name__ == "__main__":
    main()
