"""Every message survives the wire, and nothing else gets through it."""

from array import array
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tandem.facts.errors import InvalidRequest
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat, MoveReport, TierFigures
from tandem.facts.request import Request
from tandem.messages.checks import BadMessage, OtherProtocol
from tandem.messages.cluster import (
    PROTOCOL,
    Audit,
    FetchKv,
    MoveEnded,
    PinBlocks,
    RegisterPoolNode,
    RegistrationRefused,
    TiersReported,
)
from tandem.messages.codec import (
    MESSAGE_LIMIT_BYTES,
    OBSERVATION,
    OPERATOR,
    TO_GATEWAY,
    TO_WORKER,
    Codec,
    EncodedRequest,
    EncodedRequests,
)
from tandem.messages.router import BlocksListed, KvReported, TokensReported
from tandem.messages.worker import (
    EmitTokens,
    ImportsArrived,
    KvComputed,
    PrefillsArrived,
    RequestsArrived,
)
from tests.messages.instances import TYPES, of_type

CODECS = {
    "to_gateway": TO_GATEWAY,
    "to_worker": TO_WORKER,
    "operator": OPERATOR,
    "observation": OBSERVATION,
}
EVERY = [(way, kind) for way, kinds in TYPES.items() for kind in kinds]
every_type = pytest.mark.parametrize(("way", "kind"), EVERY, ids=lambda each: str(each))


def comparable(message):
    """Prompts come back as arrays; they are compared by their content."""
    if isinstance(message, (RequestsArrived, PrefillsArrived, ImportsArrived)):
        return structs.replace(
            message,
            requests=tuple(
                replace(each, prompt_tokens=tuple(each.prompt_tokens)) for each in message.requests
            ),
        )
    return message


@every_type
def test_every_message_comes_back_as_it_went(way, kind):
    codec = CODECS[way]

    @settings(max_examples=30)
    @given(of_type(kind))
    def returns(message):
        assert comparable(codec.decode(codec.encode(message))) == message

    returns()


@every_type
def test_cut_or_corrupt_messages_are_refused_or_well_formed(way, kind):
    codec = CODECS[way]

    @settings(max_examples=30)
    @given(of_type(kind), st.data())
    def only_bad_messages(message, data):
        whole = codec.encode(message)
        cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
        with pytest.raises(BadMessage):
            codec.decode(cut)
        with pytest.raises(BadMessage):
            codec.decode(whole + b"\0")
        corrupt = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 3))):
            corrupt[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        try:
            read = codec.decode(bytes(corrupt))
        except BadMessage:
            return
        # What is accepted is a message like any other: it goes out again and comes back.
        assert comparable(codec.decode(codec.encode(read))) == comparable(read)

    only_bad_messages()


@pytest.mark.parametrize("way", CODECS)
@given(data=st.binary(max_size=200), number=st.integers(0, 40))
def test_noise_is_refused_or_well_formed(way, data, number):
    for noise in (data, bytes((PROTOCOL, number)) + data):
        try:
            CODECS[way].decode(noise)
        except BadMessage as error:
            assert str(error)


@pytest.mark.parametrize(
    "body",
    [
        b"\x81\xa1z" + b"\x91" * 100_000 + b"\x01",
        b"\x81\xabrequest_ids\xdd\xff\xff\xff\xff\x01",
    ],
)
def test_bombs_are_refused(body):
    for codec in CODECS.values():
        for number in range(20):
            with pytest.raises(BadMessage):
                codec.decode(bytes((PROTOCOL, number)) + body)


def test_a_text_that_is_no_text_is_refused():
    good = TO_WORKER.encode(RegistrationRefused("ab"))
    with pytest.raises(BadMessage):
        TO_WORKER.decode(good.replace(b"ab", b"\xff\xfe"))


def test_too_much_is_refused_unread():
    with pytest.raises(BadMessage, match="bytes"):
        TO_WORKER.decode(bytes(MESSAGE_LIMIT_BYTES + 1))


def test_a_process_of_another_protocol_can_be_refused():
    newer = Codec(Audit, RegistrationRefused, protocol=PROTOCOL + 1)
    with pytest.raises(OtherProtocol) as refusal:
        Codec(Audit, RegistrationRefused).decode(newer.encode(Audit()))
    assert refusal.value.protocol == PROTOCOL + 1
    farewell = Codec(Audit, RegistrationRefused).encode(
        RegistrationRefused("old"), protocol=refusal.value.protocol
    )
    assert newer.decode(farewell) == RegistrationRefused("old")


EMISSION = EmitTokens(("a", "b"), (1, 2), (None, None), (False, False), (0, 0))


@pytest.mark.parametrize(
    "message",
    [
        TokensReported("w", structs.replace(EMISSION, tokens=(1,))),
        TokensReported("w", structs.replace(EMISSION, tokens=(1, -2))),
        TokensReported("w", structs.replace(EMISSION, tokens=(1, 1 << 32))),
        TokensReported("w", structs.replace(EMISSION, logprobs=(None,))),
        TokensReported("w", EMISSION, repeats=0),
        TokensReported("w", EMISSION, repeats=1 << 40),
        BlocksListed("w", Tier.DEVICE, (b"short",), 3),
        BlocksListed("w", Tier.DEVICE, (), -1),
        KvReported("w", KvComputed(("a",), (8,), ((3, 4),), (True,), ((1,),))),
        KvReported("w", KvComputed(("a",), (8,), ((3, 4),), (True,), ((1, -1),))),
        KvReported("w", KvComputed(("a",), (8,), ((3, -4),), (True,), ((1, 1),))),
        RegisterPoolNode(PROTOCOL, "1", "pool-0", "1", "", BlockFormat(bytes(16), 64), 3),
        RegisterPoolNode(PROTOCOL, "1", "pool-0", "1", "host:1", BlockFormat(bytes(3), 64), 3),
        RegisterPoolNode(PROTOCOL, "1", "pool-0", "1", "host:1", BlockFormat(bytes(16), 0), 3),
        TiersReported("w", (TierFigures(Tier.HOST, True, -1, 5),)),
        TiersReported("w", (TierFigures(Tier.DEVICE, True, 1, 5),)),
        TiersReported("w", (TierFigures(Tier.HOST, True, 1, 5),) * 2),
        TiersReported("w", (TierFigures(Tier.HOST, True, 1, 5, fetch_s_per_token=nan),)),
        TiersReported("w", (TierFigures(Tier.HOST, True, 1, 5, compute_s_per_token=inf),)),
        TiersReported("w", (TierFigures(Tier.HOST, True, 1, 5, tenant_blocks=(("t", -1),)),)),
        TiersReported("w", (TierFigures(Tier.HOST, True, 1, 5, tenant_blocks=(("t", 1),) * 2),)),
        MoveEnded("w", 1, MoveReport(arrived=False, tokens=-1)),
        MoveEnded("w", 1, MoveReport(arrived=True, seconds=-1.0)),
    ],
)
def test_what_cannot_be_meant_is_refused(message):
    with pytest.raises(BadMessage):
        TO_GATEWAY.decode(TO_GATEWAY.encode(message))


@pytest.mark.parametrize(
    "message",
    [
        FetchKv(1, "r", Tier.DEVICE, 0, 16),
        FetchKv(1, "r", Tier.DISK, 32, 16),
        PinBlocks((b"short",), 1),
        PinBlocks((), -1),
    ],
)
def test_what_no_gateway_can_mean_is_refused(message):
    with pytest.raises(BadMessage):
        TO_WORKER.decode(TO_WORKER.encode(message))


def test_a_prompt_travels_packed_whatever_holds_it():
    prompt = tuple(range(70_000, 80_000))
    for tokens in (prompt, array("I", prompt)):
        data = TO_WORKER.encode(RequestsArrived((Request("a", tokens),)))
        assert len(data) < 4 * len(prompt) + 600
        assert TO_WORKER.decode(data).requests[0].prompt_tokens == array("I", prompt)


def test_what_the_dataclass_refuses_is_a_bad_message():
    """Sampling parameters check themselves, with an error of their own."""
    good = TO_WORKER.encode(RequestsArrived((Request("a", (1, 2)),)))
    corrupt = good.replace(b"\xa5top_p\xcb?\xf0", b"\xa5top_p\xcb@\xf0")
    assert corrupt != good
    with pytest.raises(BadMessage, match="top_p") as refusal:
        TO_WORKER.decode(corrupt)
    assert isinstance(refusal.value.__cause__, InvalidRequest)


def test_each_distinct_prompt_travels_once_and_is_shared_once_read():
    first, second = array("I", range(10_000)), tuple(range(20_000, 30_000))
    prompts = [first] * 20 + [second] * 20 + [array("I", first), first]
    requests = tuple(Request(f"r{i}", prompt) for i, prompt in enumerate(prompts))
    counts = (0,) * len(prompts)
    for message in (
        RequestsArrived(requests),
        PrefillsArrived(requests, counts),
        ImportsArrived(requests, counts),
    ):
        data = TO_WORKER.encode(message)
        assert len(data) < 4 * (len(first) + len(second)) + 500 * len(prompts)
        read = TO_WORKER.decode(data)
        assert comparable(read) == comparable(message)
        assert len({id(each.prompt_tokens) for each in read.requests}) == 2


def plain(message: EncodedRequests) -> bytes:
    """As a message of requests."""
    number = TO_WORKER.encode(RequestsArrived(()))[1]
    return Codec(*([type(None)] * number), EncodedRequests).encode(message)


def encoded(prompts: tuple[bytes, ...], *named: int) -> EncodedRequests:
    def request_of(index: int, number: int) -> EncodedRequest:
        request = Request(f"r{index}", ())
        values = {name: getattr(request, name) for name in EncodedRequest.__struct_fields__}
        return EncodedRequest(*(values | {"prompt_tokens": number, "output_tokens": b""}).values())

    return EncodedRequests(prompts, tuple(request_of(*each) for each in enumerate(named)))


def test_a_form_with_half_a_token_is_refused():
    with pytest.raises(BadMessage):
        TO_WORKER.decode(plain(encoded((b"\1\2\3",), 0)))


@pytest.mark.parametrize(
    ("prompts", "named"),
    [
        (1, (1,)),
        (1, (-1,)),
        (2, (0, -1)),
        (0, (0,)),
        (0, (1 << 62,)),
        # Not in the order in which they are named, and one that nobody names.
        (2, (1, 0)),
        (2, (0, 0)),
        (1, ()),
    ],
)
def test_requests_that_name_prompts_that_are_not_there_are_refused(prompts, named):
    table = tuple(bytes((number, 0, 0, 0)) for number in range(prompts))
    with pytest.raises(BadMessage, match="prompt"):
        TO_WORKER.decode(plain(encoded(table, *named)))
    assert TO_WORKER.decode(plain(encoded((bytes(4), bytes(8)), 0, 0, 1, 0)))
