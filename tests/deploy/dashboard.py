"""The dashboard of deploy/grafana, and the expressions in it."""

import json
import re

from tests.deploy.manifests import DEPLOY

FOLDER = DEPLOY / "grafana"
DASHBOARD, SCRIPT = FOLDER / "tandem.json", FOLDER / "dashboard.py"
# What Grafana puts there when everything is chosen.
CHOSEN = re.compile(r"\$(job|instance|model_name|worker|tenant)\b")


def written() -> dict:
    return json.loads(DASHBOARD.read_text())


def panels() -> list[dict]:
    """Those of open rows, and of closed ones."""
    every = [each for panel in written()["panels"] for each in (panel, *panel.get("panels", ()))]
    return [panel for panel in every if panel["type"] != "row"]


def expressions() -> dict[str, str]:
    """By panel and place, as Grafana sends them when everything is chosen."""
    return {
        f"{panel['title']} {target['refId']}": asked(target["expr"])
        for panel in panels()
        for target in panel["targets"]
    }


def variable_series() -> dict[str, str]:
    """From which the values of each variable are taken, by its label."""
    found = {}
    for variable in written()["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
            found[label] = asked(series)
    return found


def asked(expression: str) -> str:
    return CHOSEN.sub(".*", expression).replace("$__rate_interval", "1m")
