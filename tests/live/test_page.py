"""What the page reads of a gateway and of a server alone, who sees what, and what operators do."""

import asyncio
import re
from contextlib import asynccontextmanager

import httpx2
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, KeyFile
from tandem.api.page import observed
from tandem.api.page.files import PAGE_PATHS
from tandem.facts.fleet import Role
from tandem.facts.serving import Caller
from tandem.facts.slo import Slo
from tandem.live.gateway.gateway import Gateway
from tests.api.every_endpoint import text_of
from tests.live.toy_cluster import (
    GatedLedger,
    ToyWorker,
    make_gateway,
    make_worker,
    read,
    request,
    serving,
    until,
    working,
)

OPERATOR, CLIENT, OTHER = "operators-key", "clients-key", "others-key"
SLO = Slo(ttft_s=1e-9)


@asynccontextmanager
async def client_of(app):
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def app_over(generator, folder, operated=None, *, keys: bool = True):
    observed = generator.observation if isinstance(generator, Gateway) else generator
    (folder / "operators").write_text(OPERATOR)
    config = ApiConfig(
        tenants={CLIENT: "acme", OTHER: "hobby"} if keys else {},
        operator_key_files=(KeyFile(str(folder / "operators")),),
    )
    text = text_of(folder)
    return build_app(generator, text, config, observed=observed, operated=operated)


@asynccontextmanager
async def observed_cluster(folder, *workers: ToyWorker, **terms):
    gateway = make_gateway(explain_bytes=1 << 20, **terms)
    async with serving(gateway) as endpoint, working(*workers, at=endpoint):
        await until(lambda: len(list(gateway.machine.members)) == len(workers))
        async with client_of(app_over(gateway, folder, gateway)) as client:
            yield gateway, client


def split() -> list[ToyWorker]:
    ledgers: dict = {}
    return [ToyWorker("p", Role.PREFILL, ledgers), ToyWorker("d", Role.DECODE, ledgers)]


async def overview_of(client, key: str = OPERATOR) -> dict:
    answer = await client.get("/tandem/overview", headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_overview_says_what_a_cluster_did(tmp_path):
    async with observed_cluster(tmp_path, *split(), slo=SLO) as (gateway, client):
        wanted = request("r-0", (1, 2, 3, 4, 5), max_tokens=7)
        await read(gateway, wanted, Caller(tenant="acme", session="talk"))
        seen = await overview_of(client)
        overview = seen["overview"]
        assert seen["is_operator"]
        workers = {each["worker"]: each for each in overview["workers"]}
        assert [workers[name]["role"] for name in "pd"] == ["prefill", "decode"]
        assert workers["d"]["read_from"] == {"p": workers["d"]["moved_bytes"]}
        assert workers["d"]["moved_bytes"] == workers["p"]["sent_bytes"] > 0
        assert workers["p"]["prompts"] == 1
        assert overview["slos"] == [{"service_class": "", "ttft_s": 1e-9, "tpot_s": None}]
        assert sum(each["finished"] for each in overview["bins"]) == 1
        # Nothing is so quick.
        assert sum(each["kept"] for each in overview["bins"]) == 0
        assert sum(each["output_tokens"] for each in overview["bins"]) == 7
        gaps = sum(each["itl"]["count"] for each in overview["bins"] if each["itl"])
        assert gaps == 6
        assert {each["text"] for each in overview["events"]} == {
            "p joined as prefill",
            "d joined as decode",
        }
        newest = overview["current_bin"] + 1
        later = (
            await client.get(f"/tandem/overview?since={newest}", headers=bearer(OPERATOR))
        ).json()
        assert all(each["number"] >= newest for each in later["overview"]["bins"])


async def test_what_waits_and_runs_is_told_by_class_and_tenant(tmp_path):
    worker = ToyWorker("w", Role.BOTH)
    async with observed_cluster(tmp_path, worker) as (gateway, client):
        stream = gateway.generate(request("r-0", max_tokens=150), Caller(tenant="acme"))
        await anext(stream)
        told = (await overview_of(client))["overview"]["queues"]
        assert told == [{"service_class": "", "tenant": "acme", "waiting": 0, "running": 1}]
        # Another tenant's queue is its own business, and nobody but an operator reads names.
        assert (await overview_of(client, OTHER))["overview"]["queues"] == []
        (own,) = (await overview_of(client, CLIENT))["overview"]["queues"]
        assert (own["tenant"], own["running"]) == ("", 1)
        await stream.aclose()
        await until(lambda: worker.drained)
        assert (await overview_of(client))["overview"]["queues"] == []


async def test_callers_see_their_own_requests_and_operators_all(tmp_path):
    async with observed_cluster(tmp_path, *split()) as (gateway, client):
        for name, tenant in (("a-0", "acme"), ("h-0", "hobby")):
            await read(gateway, request(name, max_tokens=3), Caller(tenant=tenant, call_id=name[0]))

        async def listed(key: str) -> list[str]:
            lines = (await client.get("/tandem/requests", headers=bearer(key))).json()["data"]
            return [each["request_id"].rpartition("/")[2] for each in lines]

        assert await listed(CLIENT) == ["a-0"]
        assert await listed(OTHER) == ["h-0"]
        assert await listed(OPERATOR) == ["h-0", "a-0"]
        path = "/tandem/requests/a"
        assert (await client.get(path, headers=bearer(OTHER))).status_code == 404
        (detail,) = (await client.get(path, headers=bearer(CLIENT))).json()["data"]
        assert detail["line"]["ending"] == "finished"
        assert detail["line"]["output_tokens"] == 3
        assert detail["line"]["tpot_s"] > 0
        kinds = [each["kind"] for each in detail["events"]]
        assert kinds[:2] == ["admission", "routing"]
        spans = [(each["name"], each["worker"]) for each in detail["spans"]]
        assert spans == [
            ("queue", ""),
            ("prefill", "p"),
            ("kv transfer", "d"),
            ("decode", "d"),
        ]
        assert all(0 <= each["from_s"] <= each["to_s"] for each in detail["spans"])
        # By its full id, which has a slash, as well.
        full = f"/tandem/requests/{detail['line']['request_id']}"
        assert (await client.get(full, headers=bearer(CLIENT))).json()["data"] == [
            detail
            | {"line": detail["line"] | {"ago_s": pytest.approx(detail["line"]["ago_s"], abs=60)}}
        ]


async def test_operators_drain_and_flip_workers(tmp_path):
    async with observed_cluster(tmp_path, *split()) as (gateway, client):
        members = gateway.machine.members

        async def order(path: str, body: dict | None, key: str = OPERATOR):
            return await client.post(f"/tandem/workers/{path}", json=body, headers=bearer(key))

        refused = await order("d/drain", {}, CLIENT)
        assert (refused.status_code, members.of_name("d").accepting) == (403, True)
        flipped = await order("p/drain", {"then_role": "both"})
        assert flipped.json() == {"status": "done"}
        assert members.of_name("p").role is Role.BOTH
        assert (await order("d/drain", {})).json() == {"status": "done"}
        assert not members.of_name("d").accepting
        assert (await order("d/undrain", None)).json() == {"status": "done"}
        assert members.of_name("d").accepting
        for path, body, problem in (
            ("d/drain", {"then_role": "king"}, "then_role"),
            ("d/drain", {"then_role": "both", "leave": True}, "leave"),
        ):
            answer = await order(path, body)
            assert answer.status_code == 400
            assert problem in answer.json()["error"]["message"]
        nobody = await order("nobody/undrain", None)
        assert nobody.status_code == 404
        assert "no worker is called 'nobody'; there are" in nobody.json()["error"]["message"]


async def test_a_call_does_not_wait_for_a_worker_that_has_much_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(observed, "PATIENCE_S", 0.0)
    async with observed_cluster(tmp_path, *split()) as (_, client):
        answer = await client.post("/tandem/workers/d/drain", json={}, headers=bearer(OPERATOR))
        assert answer.json() == {"status": "draining"}


async def test_what_keeps_a_drain_from_its_end_is_told_once_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr(observed, "PATIENCE_S", 0.0)
    gateway, stays, goes = make_gateway(), ToyWorker("stays"), ToyWorker("goes")
    app = app_over(gateway, tmp_path, gateway)
    async with serving(gateway) as endpoint, working(stays, at=endpoint), client_of(app) as client:
        goes.start(endpoint)
        await until(lambda: len(list(gateway.machine.members)) == 2)
        # It has an answer under way, which the drain waits for.
        for worker in (stays, goes):
            worker.engine.gate.clear()
        streams = [asyncio.create_task(read(gateway, request(f"r-{n}"))) for n in range(2)]
        await until(lambda: not goes.machine.idle)
        answer = await client.post("/tandem/workers/goes/drain", json={}, headers=bearer(OPERATOR))
        assert answer.json() == {"status": "draining"}
        assert "failed" not in {each["kind"] for each in await events_of(client)}
        await until(lambda: not gateway.machine.members.of_name("goes").accepting)
        stays.engine.gate.set()
        await goes.stop()
        # Nobody waits for this any more but who looks.
        await until(lambda: gateway.machine.members.of_name("goes") is None)
        (told,) = [each for each in await events_of(client) if each["kind"] == "failed"]
        assert told["text"].startswith("an operator's order was not carried out: goes is gone: ")
        assert await asyncio.gather(*streams)


async def events_of(client) -> list[dict]:
    return (await overview_of(client))["overview"]["events"]


async def test_a_server_alone_is_one_worker(tmp_path):
    engine = GatedLedger()
    engine.gate.set()
    worker = make_worker(engine)
    await worker.start()
    async with client_of(app_over(worker, tmp_path, keys=False)) as client:
        await read(worker, request("r-0", max_tokens=5), Caller(session="talk", call_id="call"))
        seen = (await client.get("/tandem/overview")).json()
        assert not seen["is_operator"]
        overview = seen["overview"]
        (only,) = overview["workers"]
        assert (only["role"], only["state"], only["output_tokens"]) == ("both", "ready", 5)
        assert (overview["finished"], overview["has_roles"]) == (1, False)
        assert sum(each["kept"] for each in overview["bins"]) == 1
        (detail,) = (await client.get("/tandem/requests/call")).json()["data"]
        assert [each["kind"] for each in detail["events"]] == ["schedule"]
        # Nobody is told apart here, so nobody reads what others call their sessions.
        (line,) = (await client.get("/tandem/requests")).json()["data"]
        assert line["session"] == detail["line"]["session"] == ""
        operators = bearer(OPERATOR)
        (line,) = (await client.get("/tandem/requests", headers=operators)).json()["data"]
        assert line["session"] == "talk"
        assert (await client.post("/tandem/workers/toy/drain", json={})).status_code == 404
    await worker.stop()


async def test_bad_queries_are_told(tmp_path):
    async with observed_cluster(tmp_path, *split()) as (_, client):
        for path in ("overview?since=-1", "requests?limit=many", "requests?limit=501"):
            answer = await client.get(f"/tandem/{path}", headers=bearer(CLIENT))
            assert answer.status_code == 400
            assert "must be a whole number" in answer.json()["error"]["message"]


async def test_the_page_is_whole_small_and_open_to_everybody(tmp_path):
    async with client_of(app_over(make_gateway(), tmp_path)) as client:
        index = await client.get("/")
        assert index.headers["Content-Type"].startswith("text/html")
        assert "default-src 'none'" in index.headers["Content-Security-Policy"]
        total_bytes = len(index.content)
        for path in PAGE_PATHS - {"/"}:
            file = await client.get(path)
            assert file.status_code == 200
            total_bytes += len(file.content)
            imported = re.findall(r'from "\./([\w.-]+)"|import "\./([\w.-]+)"', file.text)
            assert {f"/page/{a or b}" for a, b in imported} <= PAGE_PATHS, path
            again = await client.get(path, headers={"If-None-Match": file.headers["ETag"]})
            assert (again.status_code, again.content) == (304, b"")
        named = re.findall(r'(?:href|src)="(page/[^"]+)"', index.text)
        assert len(named) == 4
        assert {f"/{name}" for name in named} <= PAGE_PATHS
        assert total_bytes < 130_000
        assert (await client.get("/page/server.py")).status_code == 401
        assert (await client.get("/tandem/overview")).status_code == 401
