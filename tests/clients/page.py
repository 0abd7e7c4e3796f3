"""docs/clients.md: what works, with which settings, and what does not, out of what was run."""

import re
from collections.abc import Iterable, Mapping

from tests.clients.catalog import CLIENTS, FEATURES, Client
from tests.clients.environments import HERE, SCRIPTS
from tests.clients.running import Outcome, Report

PAGE = HERE.parents[1] / "docs" / "clients.md"
# By client, then by kind of server.
Reports = Mapping[str, Mapping[str, Report]]
KINDS = {"server": "one process", "cluster": "a cluster"}

INTRODUCTION = """# Clients

Clients that others wrote, run as tests against the bundled model: served by one process, and by a
cluster whose prefill and decode run on different workers. `make clients` runs them all, each in an
environment of its own in `.clients`, and writes this page; `make clients ARGS="--only openai"` runs
one. Those of Node.js need `npm`.

"""
LEGEND = """
`yes`: all checks pass, with one process and with a cluster. `one process`: only there. `–`: the
client has nothing of the kind, for the reason below its settings. Tools are called, run, and their
results answered; what is asked for by a schema has that form; errors arrive as the client's own and
say what was wrong; what a client leaves the server gives up (cancellation).

## Settings

Each as its test has it. `URL` is where the server listens, such as `http://127.0.0.1:8000`; the key
is any text unless the server [has keys](api.md#keys).
"""
LONGEST_REASON = 200
COLUMNS = ("client", "version", *FEATURES, "also")
HEADS = f"| {' | '.join(COLUMNS)} |\n" + "|---" * len(COLUMNS) + "|\n"
SECTION = r"(?ms)(^\n### (.+?)\n.*?)(?=^\n### |\Z)"


def table(reports: Reports) -> str:
    """Of the clients that were run."""
    return HEADS + "".join(line(name, by_kind) for name, by_kind in reports.items())


def line(name: str, by_kind: Mapping[str, Report]) -> str:
    version = next(iter(by_kind.values())).version
    cells = [cell(by_kind, feature) for feature in FEATURES]
    return f"| {' | '.join([f'`{name}`', version, *cells, also(by_kind)])} |\n"


def cell(by_kind: Mapping[str, Report], feature: str) -> str:
    """What holds of a feature, over all its checks and all servers that were tried."""
    found = {kind: outcome_of(report.outcomes, feature) for kind, report in by_kind.items()}
    if "failed" in found.values():
        return "fails"
    good = [KINDS[kind] for kind, outcome in found.items() if outcome == "ok"]
    if len(good) == len(found):
        return "yes"
    return good[0] if good else "–"


def outcome_of(outcomes: Iterable[Outcome], feature: str) -> str:
    found = {each.outcome for each in outcomes if each.feature == feature}
    return next((each for each in ("failed", "ok") if each in found), "not offered")


def also(by_kind: Mapping[str, Report]) -> str:
    """What a client does beside the columns of the table."""
    features = dict.fromkeys(
        each.feature
        for report in by_kind.values()
        for each in report.outcomes
        if each.feature not in FEATURES
    )
    said = {feature: cell(by_kind, feature) for feature in features}
    return ", ".join(
        feature if of_it == "yes" else f"{feature} ({of_it})"
        for feature, of_it in said.items()
        if of_it != "–"
    )


def gaps(by_kind: Mapping[str, Report]) -> str:
    """What is not offered or fails, and why: a line for each reason."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for kind, report in by_kind.items():
        for each in report.outcomes:
            if each.outcome != "ok":
                why = (each.why.splitlines() or [""])[0][:LONGEST_REASON]
                features = found.setdefault((each.outcome, why), {})
                features.setdefault(each.feature or each.check, set()).add(kind)
    return "".join(
        gap(outcome, why, features, set(by_kind)) for (outcome, why), features in found.items()
    )


def gap(outcome: str, why: str, features: Mapping[str, set[str]], tried: set[str]) -> str:
    kinds = set().union(*features.values())
    where = "" if kinds == tried else f" with {' and '.join(KINDS[kind] for kind in sorted(kinds))}"
    said = "Fails" if outcome == "failed" else "Not offered"
    return f"* {said}{where}: {', '.join(features)} ({why}).\n"


def settings(client: Client) -> str:
    """The part of the script that makes the client."""
    text = (SCRIPTS / client.script).read_text()
    found = re.search(r"(?ms)^(?:#|//) settings(.*?)^(?:#|//) end of settings$", text)
    assert found, f"{client.script} has no settings"
    remark, _, code = found[1].partition("\n")
    remark = remark.lstrip(": ")
    language = "js" if client.script.endswith(".mjs") else "python"
    mark = "//" if language == "js" else "#"
    return f"```{language}\n{f'{mark} {remark}' + chr(10) if remark else ''}{code}```\n"


def section(client: Client, by_kind: Mapping[str, Report]) -> str:
    note = f"{client.note}\n" if client.note else ""
    parts = (f"### {client.name}\n", note, settings(client), gaps(by_kind))
    return "\n" + "\n".join(filter(None, parts))


def page(reports: Reports, earlier: str = "") -> str:
    """Of clients that were not run, it says what an earlier page says."""
    lines = {name: text for text, name in re.findall(r"(?m)^(\| `(.+?)` \|.*\n)", earlier)}
    sections = {name: text for text, name in re.findall(SECTION, earlier)}
    for client in CLIENTS:
        if client.name in reports:
            lines[client.name] = line(client.name, reports[client.name])
            sections[client.name] = section(client, reports[client.name])
    names = [client.name for client in CLIENTS if client.name in lines]
    table = HEADS + "".join(lines[name] for name in names)
    return INTRODUCTION + table + LEGEND + "".join(sections[name] for name in names)
