"""Random messages are accepted as a whole or refused with a reason; accepted ones round-trip."""

import inspect
import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from minicluster import wire
from minicluster.wire import Message
from minicluster.wire.base import MOST, parse_strict

MESSAGES = sorted(
    {item for _, item in inspect.getmembers(wire, inspect.isclass) if issubclass(item, Message)} - {Message},
    key=lambda model: model.__name__,
)
LONGEST = 4
SOME = settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
TEXT = st.text(max_size=40)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(width=64) | TEXT,
    lambda inner: st.lists(inner, max_size=LONGEST) | st.dictionaries(TEXT, inner, max_size=LONGEST),
    max_leaves=8,
)


def shaped(schema, definitions):
    """Draw values of a JSON schema, by the keywords supported here; sometimes other values."""
    return st.one_of(*[exact(schema, definitions)] * 12, ANY)


def exact(schema, definitions):
    if "$ref" in schema:
        return st.deferred(lambda: exact(definitions[schema["$ref"].rpartition("/")[2]], definitions))
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return st.one_of(*(exact(one, definitions) for one in schema[several]))
    return of_type(schema, definitions)


def of_type(schema, definitions):
    match schema.get("type"):
        case "object":
            return of_object(schema, definitions)
        case "array":
            items = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
            least = schema.get("minItems", 0)
            return st.lists(shaped(items, definitions), min_size=least, max_size=max(LONGEST, least))
        case "string":
            return st.from_regex(schema["pattern"]) if "pattern" in schema else TEXT
        case "integer":
            return st.integers(schema.get("minimum", -MOST), schema.get("maximum", MOST))
        case "number":
            return st.floats(width=64) | st.integers(-9, 9)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return ANY


def of_object(schema, definitions):
    fields = {name: shaped(field, definitions) for name, field in schema.get("properties", {}).items()}
    if not fields:
        return st.dictionaries(
            TEXT, shaped(schema.get("additionalProperties") or {}, definitions), max_size=LONGEST
        )
    required = {name: fields.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=fields)


@pytest.mark.parametrize("model", MESSAGES, ids=lambda model: model.__name__)
@SOME
@given(data=st.data())
def test_a_message_is_taken_whole_or_refused(model, data):
    schema = model.model_json_schema()
    sent = json.dumps(data.draw(exact(schema, schema.get("$defs", {}))))
    try:
        taken = parse_strict(model, sent)
    except ValidationError as refused:
        assert refused.errors()
        return
    again = parse_strict(model, taken.model_dump_json())
    assert again.model_dump_json() == taken.model_dump_json()


def is_taken(model):
    """Whether one of some random messages of this kind is accepted."""
    schema, taken = model.model_json_schema(), []

    @SOME
    @given(drawn=exact(schema, schema.get("$defs", {})))
    def one(drawn):
        with suppress(ValidationError):
            taken.append(parse_strict(model, json.dumps(drawn)))

    one()
    return bool(taken)


def test_of_most_kinds_some_are_taken():
    """Otherwise the test above would prove little."""
    taken = sum(is_taken(model) for model in MESSAGES)
    assert taken > 0.75 * len(MESSAGES)
