"""What the edge says itself: answers in the shape of OpenAI's errors, and its access log."""

from __future__ import annotations

from typing import Any

from glm53.edge.parts import API, CLIENT

__all__ = ["access_log", "own_answers"]


def own_answers() -> dict[str, Any]:
    """Answers that the edge gives itself, in the shape of OpenAI's errors, with the time after which to try again."""

    mappers = [
        _mapper(401, 403, "unknown_key", "this key is not known; send a known one as Authorization: Bearer KEY"),
        _mapper(429, 429, "too_many_requests", "this key sends more requests than it may; slow down", again=5),
        _mapper(503, 503, "full_or_down", "%LOCAL_REPLY_BODY% (%RESPONSE_FLAGS%)", again=2),
    ]
    return {"mappers": mappers, "body_format": _body("edge", "%LOCAL_REPLY_BODY% (%RESPONSE_FLAGS%)")}


def _mapper(status: int, internal: int, kind: str, message: str, again: int | None = None) -> dict[str, Any]:
    """Answer `status` where Envoy has `internal`. again: seconds after which to try again."""
    equal = {"op": "EQ", "value": {"default_value": internal, "runtime_key": "edge.status"}}
    header = (
        {"key": "www-authenticate", "value": "Bearer"} if again is None else {"key": "retry-after", "value": str(again)}
    )
    return {
        "filter": {"status_code_filter": {"comparison": equal}},
        "status_code": status,
        "headers_to_add": [{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
        "body_format_override": _body(kind, message),
    }


def _body(kind: str, message: str) -> dict[str, Any]:
    return {"json_format": {"error": {"message": message, "type": kind, "code": "%RESPONSE_CODE%"}}}


def access_log() -> dict[str, Any]:
    fields = {
        "time": "%START_TIME%",
        "id": "%REQ(X-REQUEST-ID)%",
        "client": f"%DYNAMIC_METADATA({':'.join(CLIENT)})%",
        "path": "%PATH(NQ:PATH)%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "member": "%UPSTREAM_HOST%",
        "tries": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "milliseconds": "%DURATION%",
        "bytes_in": "%BYTES_RECEIVED%",
        "bytes_out": "%BYTES_SENT%",
    }
    return {
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": f"{API}.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"json_format": fields},
        },
    }
