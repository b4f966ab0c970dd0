"""The wire messages: one golden JSON each, so that a change of format fails a test.

A change here breaks agents and notebooks of another version: raise WIRE_VERSION with it.
"""

import json

import pytest
from pydantic import ValidationError

from minicluster import wire

from . import wire_jobs, wire_people, wire_serving, wire_sessions, wire_sweeps
from .wire_jobs import SPEC

GOLDEN = {
    **wire_jobs.MESSAGES,
    **wire_people.MESSAGES,
    **wire_serving.MESSAGES,
    **wire_sessions.MESSAGES,
    **wire_sweeps.MESSAGES,
}


@pytest.mark.parametrize(
    ("model", "golden"), GOLDEN.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_each_message_keeps_its_form(model, golden):
    text = json.dumps(golden)
    message = wire.parse_strict(model, text)
    written = json.loads(message.model_dump_json())
    for chunk in (written, *written.get("chunks", ())):
        if isinstance(chunk.get("data"), str):
            chunk["data"] = chunk["data"].strip()
    assert written == golden


@pytest.mark.parametrize("model", GOLDEN, ids=lambda model: model.__name__)
def test_servers_refuse_unknown_fields_and_clients_pass_over_them(model):
    text = json.dumps({**GOLDEN[model], "from_a_newer_version": 1})
    with pytest.raises(ValidationError, match="from_a_newer_version"):
        wire.parse_strict(model, text)
    known = wire.parse_strict(model, json.dumps(GOLDEN[model]))
    assert model.model_validate_json(text).model_dump_json() == known.model_dump_json()


def test_unknown_fields_are_refused_inside_too():
    text = json.dumps({"idempotency_key": "key-00001", "spec": {**SPEC, "gpus": 3}})
    with pytest.raises(ValidationError, match="gpus"):
        wire.parse_strict(wire.JobSubmit, text)


def test_bytes_of_a_stream_come_back_to_the_last_one():
    data = bytes(range(256)) * 10
    sent = wire.StreamChunk.model_construct(stream="rank-0", offset=0, data=data).model_dump_json()
    assert wire.StreamChunk.model_validate_json(sent).data == data


def test_messages_cannot_be_changed():
    with pytest.raises(ValidationError):
        wire.CountRange(min=1, max=2).min = 5


@pytest.mark.parametrize("stream", ["../x", "rank-", "rank-0/..", "RECORDS", "agent-1.log"])
def test_a_streams_name_cannot_leave_its_folder(stream):
    with pytest.raises(ValidationError):
        wire.StreamChunk(stream=stream, offset=0, data=b"")


@pytest.mark.parametrize("option", [{"fault_tolerant": True}, {"comm": "bf16"}, {"balance": True}])
def test_what_torch_alone_does_is_refused_for_other_frameworks(option):
    with pytest.raises(ValidationError, match="are for torch, not for jax"):
        wire.JobSpec(payload_sha256="a" * 64, framework="jax", **option)
