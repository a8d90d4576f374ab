"""The OpenAPI 3.1 description of the table, from the types of its routes."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from penstock import __version__
from penstock.gateway.route import JSON, Route
from penstock.gateway.scopes import Scope
from penstock.http.problems import MEDIA, Problem

_REF = "#/components/schemas/{name}"
_STATUS = {200: "Done", 201: "Stored", 202: "Begun", 204: "Nothing to return", 207: "Done in part"}


@cache
def description_of_table() -> dict[str, Any]:
    """Return the description of the gateway's own table."""
    from penstock.gateway.table import TABLE

    return describe(TABLE)


def describe(table: Sequence[Route]) -> dict[str, Any]:
    """Return the description of a table."""
    routes = [route for route in table if route.described]
    kinds = [kind for route in routes for kind in (route.body, route.query, *route.replies.values()) if kind]
    schemas, components = _schemas([*kinds, Problem])
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "penstock",
            "version": __version__,
            "description": "A message log and work queue that lives inside PostgreSQL.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key, or a JWT."}},
        },
    }


def _schemas(kinds: Sequence[Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return the schema of each type, and the components that they refer to."""
    unique = list({_key(kind): kind for kind in kinds}.values())
    found, components = msgspec.json.schema_components(unique, ref_template=_REF)
    return {_key(kind): schema for kind, schema in zip(unique, found, strict=True)}, components


def _key(kind: Any) -> Any:
    return str(kind) if not isinstance(kind, type) else kind


def _operation(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.handler.__module__.rpartition('.')[2]}_{route.handler.__name__}",
        "summary": route.summary,
        "tags": [route.room],
        "parameters": [*map(_path_parameter, route.names), *_query_parameters(route)],
        "responses": _responses(route, schemas),
        "x-penstock-scope": str(route.scope),
    }
    if route.handler.__doc__:
        operation["description"] = " ".join(route.handler.__doc__.split())
    if route.scope is not Scope.NONE:
        operation["security"] = [{"key": []}]
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {media: {"schema": _body_schema(route, media, schemas)} for media in route.media},
        }
    return operation


def _body_schema(route: Route, media: str, schemas: Mapping[Any, Any]) -> Any:
    return schemas[_key(route.body)] if media == JSON else {"type": "string", "format": "binary"}


def _responses(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in route.replies.items():
        responses[str(status)] = {"description": _STATUS.get(status, "Done")}
        if kind is not None:
            responses[str(status)]["content"] = {route.reply_media: {"schema": schemas[_key(kind)]}}
    problem = {"description": "A problem", "content": {MEDIA: {"schema": schemas[Problem]}}}
    responses["default"] = problem
    return responses


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    (schema,), components = msgspec.json.schema_components([route.query], ref_template=_REF)
    found = components[schema["$ref"].rpartition("/")[2]]
    required = found.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(of)}
        for name, of in found["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter, which is left out and never null."""
    if "anyOf" not in schema:
        return schema
    options = [option for option in schema["anyOf"] if option != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return {**rest, **options[0]} if len(options) == 1 else {**rest, "anyOf": options}
