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
_BATCH_ERRORS = {code: _ERRORS[code] for code in ("400", "401")}


def openapi(run: str, version: str) -> dict[str, Any]:
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
        "paths": {
            "/v1/score": {
                "post": _operation(
                    f"Score one id, or up to {ONCE_MOST}.", "Scores", _ERRORS, body=("application/json", "Question")
                )
            },
            "/v1/model": {"get": _operation("Which model answers, and what the caller has left today.", "Scores", {})},
            "/v1/batches": {
                "post": _operation(
                    "Send many ids, one a line; they are scored in the background.",
                    "Batch",
                    _ERRORS,
                    body=("text/plain", ""),
                )
            },
            "/v1/batches/{batch}": {
                "get": _operation("How far a batch is.", "Batch", _BATCH_ERRORS, batch=True),
                "delete": _operation("Delete a batch that has ended.", "", _BATCH_ERRORS, batch=True),
            },
            "/v1/batches/{batch}/rows": {
                "get": _operation(
                    "Its rows as CSV, sent as they are scored; ?from=N begins after N rows, to go on after a break.",
                    "",
                    _BATCH_ERRORS,
                    batch=True,
                )
            },
            "/healthz": {"get": _operation("Whether the service runs.", "", {}, public=True)},
            "/readyz": {"get": _operation("Whether it can score: its daemon answers and the run has a model.", "",
                                          {"503": "Not yet; the sentence says why."}, public=True)},
            "/metrics": {"get": _operation("Numbers for Prometheus, for this machine alone.", "", {}, public=True)},
        },
    }  # fmt: skip


def _operation(
    summary: str,
    schema: str,
    errors: dict[str, str],
    *,
    body: tuple[str, str] | None = None,
    batch: bool = False,
    public: bool = False,
) -> dict[str, Any]:
    content = {"application/json": {"schema": _reference(schema)}} if schema else {}
    told: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "As asked.", **({"content": content} if content else {})},
            **{code: {"description": text} for code, text in errors.items()},
        },
    }
    if body is not None:
        media, name = body
        shape = _reference(name) if name else {"type": "string"}
        told["requestBody"] = {"required": True, "content": {media: {"schema": shape}}}
    if batch:
        told["parameters"] = [{"name": "batch", "in": "path", "required": True, "schema": {"type": "string"}}]
    if public:
        told["security"] = []
    return told


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


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
        (tag("code", f"{method.upper()} {path}"), operation["summary"], _codes(operation))
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


def _codes(operation: dict[str, Any]) -> str:
    return ", ".join(operation["responses"])
