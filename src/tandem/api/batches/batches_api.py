"""/v1/batches: many requests in one file, answered in the background. A batch is its owner's alone,
as its files are."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.auth import KEY, TENANT
from tandem.api.batches.bodies import BatchBody, BatchList, BatchObject
from tandem.api.batches.records import NS_PER_S, BatchRecord
from tandem.api.batches.runner import BatchRunner
from tandem.api.batches.store import refused_if_disk_fails
from tandem.api.clock_and_entropy import fresh_id, unix_time_ns, unix_time_s
from tandem.api.errors import Refusal, Refused
from tandem.api.openapi import ApiEndpoint
from tandem.api.paging import page_of, page_query
from tandem.api.request_body import read_body
from tandem.api.responses_api import owner_of
from tandem.facts.errors import InvalidRequest
from tandem.policy.batches import BatchStatus

_TAG = "Batches"
_WINDOW_S = 24 * 3600
_DEFAULT_BATCHES, _MOST_BATCHES = 20, 100


def batch_endpoints(
    context: AppContext, runner: BatchRunner, endpoints: frozenset[str]
) -> list[ApiEndpoint]:
    """All endpoints of batches that `runner` runs, whose requests may go to these `endpoints`."""
    store = runner.store

    async def create_batch(request: Request) -> Response:
        """Answers all requests of a file, in the background."""
        with context.holding_body(request) as held:
            body = await read_body(request, BatchBody, context.config, held)
        if body.endpoint not in endpoints:
            raise InvalidRequest("endpoint", f"{body.endpoint} is not served here")
        file = store.find_file(owner_of(request.scope), body.input_file_id)
        if file.purpose != "batch":
            raise InvalidRequest("input_file_id", f"is a file with the purpose {file.purpose}")
        record = _record_of(body, request, store.config.lifetime_s)
        with refused_if_disk_fails():
            await store.add_batch(record)
        runner.wake()
        return shown(record)

    async def list_batches(request: Request) -> Response:
        """Batches, the newest first. `limit` and `after` page."""
        owner = owner_of(request.scope)
        names = [each.batch_id for each in store.batches.values() if each.owner == owner]
        page = page_of(request.query_params, names, default=_DEFAULT_BATCHES, most=_MOST_BATCHES)
        records = [store.batches[name] for name in page.names]
        data = [each.shown(runner.counts(each)) for each in records]
        return _json(BatchList(data=data, **page.frame))

    async def retrieve_batch(request: Request) -> Response:
        """How far a batch is."""
        return shown(found(request))

    async def cancel_batch(request: Request) -> Response:
        """Ends a batch; what was answered by then is in its output file."""
        batch_id = found(request).batch_id
        with refused_if_disk_fails():
            record = await store.change_batch(batch_id, _cancelling)
        runner.wake()
        return shown(record)

    def found(request: Request) -> BatchRecord:
        name: str = request.path_params["batch_id"]
        return store.find_batch(owner_of(request.scope), name)

    def shown(record: BatchRecord) -> Response:
        return _json(record.shown(runner.counts(record)))

    path, one = "/v1/batches", "/v1/batches/{batch_id}"
    return [
        ApiEndpoint("POST", path, create_batch, _TAG, body=BatchBody, answer=BatchObject),
        ApiEndpoint(
            "GET", path, list_batches, _TAG, answer=BatchList, query=page_query(_MOST_BATCHES)
        ),
        ApiEndpoint("GET", one, retrieve_batch, _TAG, answer=BatchObject),
        ApiEndpoint("POST", f"{one}/cancel", cancel_batch, _TAG, answer=BatchObject),
    ]


def _record_of(body: BatchBody, request: Request, longest_s: float) -> BatchRecord:
    now_ns, wanted = unix_time_ns(), body.output_expires_after
    return BatchRecord(
        batch_id=fresh_id("batch_"),
        tenant=request.scope.get(TENANT, ""),
        key=request.scope.get(KEY, ""),
        input_file_id=body.input_file_id,
        endpoint=body.endpoint,
        output_file_id=fresh_id("file-"),
        error_file_id=fresh_id("file-"),
        created_ns=now_ns,
        expires_s=now_ns // NS_PER_S + _WINDOW_S,
        output_lifetime_s=int(longest_s if wanted is None else min(longest_s, wanted.seconds)),
        metadata=body.metadata,
    )


def _cancelling(record: BatchRecord) -> BatchRecord:
    """Raises `Refused` for one that has ended, or is about to."""
    if record.status is BatchStatus.CANCELLING:
        return record
    if record.status.is_final or record.status is BatchStatus.FINALIZING:
        problem = f"a batch that is {record.status} cannot be cancelled"
        raise Refused(Refusal(400, problem, "batch_not_cancellable"))
    return record.entered(BatchStatus.CANCELLING, unix_time_s())


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
