"""The OpenAPI document tells all, its page works offline, and no request that it allows breaks anything."""

from __future__ import annotations

import os
import re

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import Case
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from polysem.server import Limits, Settings
from server.running import TOKEN, make_index, server

pytestmark = pytest.mark.slow

PATHS = {
    "/healthz": {"get"},
    "/metrics": {"get"},
    "/api/v1/search": {"get", "post"},
    "/api/v1/uploads": {"post"},
    "/api/v1/uploads/{token}/thumbnail": {"get"},
    "/api/v1/explain": {"post"},
    "/api/v1/stats": {"get"},
    "/api/v1/map": {"get"},
    "/api/v1/model": {"get"},
    "/api/v1/items": {"post"},
    "/api/v1/items/{id}": {"get", "delete"},
    "/api/v1/items/{id}/image": {"get"},
    "/api/v1/items/{id}/video": {"get"},
    "/api/v1/session": {"post"},
}


@pytest.fixture(scope="module")
def document(reader):
    return reader.get("/openapi.json").json()


def test_every_route_is_described_with_its_errors(document):
    assert {path: set(methods) for path, methods in document["paths"].items()} == PATHS
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            answers = operation["responses"]
            assert "422" not in answers
            assert any(status.startswith("2") for status in answers)
            for status in ("400", "403", "500", "503", "504"):
                assert status in answers, (method, path, status)
            for status, answer in answers.items():
                if status.startswith(("4", "5")) and path != "/healthz":
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema["$ref"] == "#/components/schemas/ErrorAnswer"
    assert document["paths"]["/api/v1/items"]["post"]["security"]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_no_reference_leads_nowhere(document):
    for name in re.findall(r"#/components/schemas/(\w+)", str(document)):
        assert name in document["components"]["schemas"]


def test_the_reference_page_is_served_from_here(reader):
    page = reader.get("/docs").text
    files = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert files
    assert all(file.startswith("/") for file in files)
    for file in files:
        assert reader.get(file).status_code in (200, 404 if file in ("/", "/favicon.ico") else 200)
    for name in ("reference.js", "reference.css"):
        text = reader.get(f"/docs/static/{name}").text
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text


# -------------------------------------------------------------------------------------------------------- fuzzing


@pytest.fixture(scope="module")
def target(tmp_path_factory, model, photos):
    """A real server that may be changed: the token is right half of the time."""
    place = make_index(tmp_path_factory.mktemp("fuzz") / "index", model, photos)
    with server(place, model, Settings(port=0, token=TOKEN, limits=Limits(rate=0, failures=10**6))) as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def schema(target):
    found = schemathesis.openapi.from_url(f"{target}/openapi.json")
    found.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    return found


CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("path", sorted(PATHS))
def test_no_request_is_answered_with_a_500(schema, path):
    """POLYSEM_FUZZ=300 looks harder."""
    for method in sorted(PATHS[path]):
        operation = schema[path][method.upper()]

        @hypothesis.settings(
            max_examples=int(os.environ.get("POLYSEM_FUZZ", "12")),
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(), rightly=hypothesis.strategies.booleans())
        def sent(case: Case, rightly: bool) -> None:
            headers = dict(case.headers or {})
            headers.pop("Authorization", None)
            if rightly:
                headers["Authorization"] = f"Bearer {TOKEN}"
            case.headers = headers
            try:
                answer = case.call()
            except requests.ConnectionError:  # a body that is refused before it has come meets a closed connection
                answer = case.call()
            assert answer.status_code in (*range(200, 500), 503)  # 503: too many maps at once, as it should be
            case.validate_response(answer, checks=CHECKS)

        sent()
