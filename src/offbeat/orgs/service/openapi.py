"""What the scoring service takes and gives, as an OpenAPI document and as a page made from it."""

from typing import Any

from offbeat.report.html import Markup, document, section, table, tag

ONCE_MOST = 1000

_ERRORS = {
    "400": "The request is not as it should be; the sentence says how.",
    "401": "The token is missing or unknown.",
    "403": "A party refuses, by its policy; the sentence says which and why.",
    "429": "The caller's quota is used up, or it calls too fast; Retry-After says when to come again.",
    "503": "A party cannot be reached, or too much waits.",
}
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/score": {"application/json": {"schema": {"$ref": "#/components/schemas/Question"}}},
    "/v1/batches": {"text/plain": {"schema": {"type": "string"}}},
}
_BATCH_ERRORS = {code: _ERRORS[code] for code in ("400", "401")}


_SCORE = f"Score one id, or up to {ONCE_MOST}."
_SEND = "Send many ids, one a line; they are scored in the background."
_ROWS = "Its rows as CSV, sent as they are scored; ?from=N begins after N rows, to go on after a break."
_READY = "Whether it can score: its daemon answers and the run has a model."
OPERATIONS: tuple[tuple[str, str, str, str, dict[str, str]], ...] = (
    ("/v1/score", "post", _SCORE, "Scores", _ERRORS),
    ("/v1/model", "get", "Which model answers, and what the caller has left today.", "Scores", {}),
    ("/v1/batches", "post", _SEND, "Batch", _ERRORS),
    ("/v1/batches/{batch}", "get", "How far a batch is.", "Batch", _BATCH_ERRORS),
    ("/v1/batches/{batch}", "delete", "Delete a batch that has ended.", "", _BATCH_ERRORS),
    ("/v1/batches/{batch}/rows", "get", _ROWS, "", _BATCH_ERRORS),
    ("/healthz", "get", "Whether the service runs.", "", {}),
    ("/readyz", "get", _READY, "", {"503": "Not yet; the sentence says why."}),
    ("/metrics", "get", "Numbers for Prometheus, for this machine alone.", "", {}),
)
"""Path, method, what it does, what it answers, and the errors it may answer."""


def openapi(run: str, version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for path, method, summary, schema, errors in OPERATIONS:
        paths.setdefault(path, {})[method] = _operation(path, summary, schema, errors)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Scores of run {run}",
            "version": version,
            "description": "Rows are scored by several organisations together. Each gives its part under a mask; "
            "this service learns the sums and nothing else. Every row asked for is counted by every organisation.",
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Question": _QUESTION, "Scores": _SCORES, "Batch": _BATCH, "Error": _ERROR},
        },
        "security": [{"token": []}],
        "paths": paths,
    }


def _operation(path: str, summary: str, schema: str, errors: dict[str, str]) -> dict[str, Any]:
    answer = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    content = {"content": answer} if schema else {}
    responses: dict[str, Any] = {code: {"description": text} for code, text in errors.items()}
    responses = {"200": {"description": "As asked.", **content}, **responses}
    told: dict[str, Any] = {"summary": summary, "responses": responses}
    if (body := _BODIES.get(path)) is not None:
        told["requestBody"] = {"required": True, "content": body}
    if "{batch}" in path:
        told["parameters"] = [{"name": "batch", "in": "path", "required": True, "schema": {"type": "string"}}]
    if not path.startswith("/v1/"):
        told["security"] = []
    return told


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


_TEXT, _WHOLE = {"type": "string"}, {"type": "integer"}
_NUMBER_OR_NOTHING = {"type": ["number", "null"]}
_QUESTION = {
    "description": "Either id or ids.",
    **_object([], id=_TEXT, ids={"type": "array", "items": _TEXT, "maxItems": ONCE_MOST}),
}
_ROW = _object(["id", "score"], id=_TEXT, score=_NUMBER_OR_NOTHING, probability=_NUMBER_OR_NOTHING)
_SCORES = _object(
    ["model", "rows", "rows_left_today"],
    model=_object(["run"], run=_TEXT, classes={"type": ["array", "null"]}),
    rows={"type": "array", "items": _ROW, "description": "A row that not all organisations know has no score."},
    rows_left_today=_WHOLE,
)
_BATCH = _object(
    ["batch", "standing", "rows", "done"], batch=_TEXT, standing=_TEXT, rows=_WHOLE, done=_WHOLE, reason=_TEXT
)
_ERROR = _object(["error"], error=_TEXT)


def page(described: dict[str, Any]) -> Markup:
    """The same for people."""
    rows = [
        (tag("code", f"{method.upper()} {path}"), operation["summary"], ", ".join(operation["responses"]))
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    ]
    example = (
        "curl -H 'Authorization: Bearer TOKEN' -H 'Content-Type: application/json' "
        '-d \'{"id": "P100000"}\' http://HOST:PORT/v1/score'
    )
    return document(
        described["info"]["title"],
        tag("header", tag("h1", described["info"]["title"]), tag("p", described["info"]["description"], class_="lead")),
        tag(
            "main",
            section("routes", "Routes", table(("Route", "What it does", "Answers"), rows, "All routes")),
            section("try", "Try it", tag("pre", tag("code", example), tabindex="0")),
            section(
                "tokens",
                "Tokens",
                tag("p", "Every call under /v1 carries a token, which the owner makes: ",
                    tag("code", "offbeat caller new NAME"), ". The document for programs: ",
                    tag("a", "openapi.json", href="openapi.json"), "."),
            ),
        ),
    )  # fmt: skip
