"""An edge as Envoy's configuration: a bootstrap, and beside it the parts that may change while it runs.

Source of names and meanings: Envoy's API reference, version 3, release 1.40; a test has that release itself read what
is rendered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml

from glm53.edge.model import Edge, Member

__all__ = ["CLIENT_HEADER", "CLUSTERS", "ENVOY", "KEYS", "TLS", "keys_file", "render"]

ENVOY, CLUSTERS, TLS, KEYS = "envoy.yaml", "clusters.yaml", "tls.yaml", "keys.yaml"

#: Tells a deployment whose request it is; what a client itself sends under this name is replaced.
CLIENT_HEADER = "x-edge-client"

#: "Not now" answers of Dynamo's frontend (503, and 529 when full) and of what lies between; nothing was streamed yet.
_RETRIABLE = [502, 503, 504, 529]
_API = "type.googleapis.com/envoy"
_RBAC = f"{_API}.extensions.filters.http.rbac.v3.RBAC"
#: Where Envoy's RBAC filter says whose key it was.
_CLIENT = ("envoy.filters.http.rbac", "shadow_effective_policy_id")


def render(edge: Edge, paths: Mapping[str, str]) -> dict[str, str]:
    """Path -> text: the bootstrap, the members, and the certificate's whereabouts where there is one.

    paths: name of each file that may change -> the folder in which Envoy finds it; "certificate" -> that of its files.
    """
    files: dict[str, Any] = {ENVOY: _bootstrap(edge, paths), CLUSTERS: {"resources": [_members(edge)]}}
    if edge.tls or edge.tls_secret:
        files[TLS] = {"resources": [_certificate(edge, paths)]}
    return {name: _yaml(content) for name, content in files.items()}


def keys_file(credentials: Mapping[str, str]) -> str:
    """client -> key as the file that Envoy reads; it holds the keys themselves.

    Envoy's RBAC filter, because its filter for API keys is outside its security promises in this release. The same
    rules once more as shadow rules, because those tell what follows which one matched: the name of the client.
    """
    rules = {
        "action": "ALLOW",
        "policies": {
            client: {
                "permissions": [{"any": True}],
                "principals": [{"header": {"name": "authorization", "string_match": {"exact": f"Bearer {key}"}}}],
            }
            for client, key in sorted(credentials.items())
        },
    }
    filter_ = {"@type": _RBAC, "rules": rules, "shadow_rules": rules}
    resource = {"@type": f"{_API}.config.core.v3.TypedExtensionConfig", "name": "keys", "typed_config": filter_}
    return _yaml({"resources": [resource]})


def _yaml(content: Any) -> str:
    return yaml.dump(content, Dumper=_Plain, sort_keys=True, width=120)


class _Plain(yaml.SafeDumper):
    """Writes equal parts out, because Envoy does not read references to them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _bootstrap(edge: Edge, paths: Mapping[str, str]) -> dict[str, Any]:
    return {
        "node": {"id": edge.name, "cluster": edge.name},
        "admin": {"address": _address("127.0.0.1", edge.admin_port)},
        "dynamic_resources": {"cds_config": _file(CLUSTERS, paths)},
        "static_resources": {"listeners": [_listener(edge, paths), _metrics(edge)], "clusters": [_admin(edge)]},
    }


def _listener(edge: Edge, paths: Mapping[str, str]) -> dict[str, Any]:
    chain: dict[str, Any] = {"filters": [_named("http_connection_manager", _connections(edge, paths), "network")]}
    if edge.tls or edge.tls_secret:
        secret = {"name": "certificate", "sds_config": _file(TLS, paths)}
        context = {
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "tls_certificate_sds_secret_configs": [secret],
            }
        }
        chain["transport_socket"] = _tls("DownstreamTlsContext", context)
    return {
        "name": "clients",
        "address": _address(edge.listen, edge.port),
        "filter_chains": [chain],
        # How much of a request is kept to be sent again is decided a route; a connection buffers no more than needed.
        "per_connection_buffer_limit_bytes": 1 << 20,
    }


def _connections(edge: Edge, paths: Mapping[str, str]) -> dict[str, Any]:
    return {
        "@type": f"{_API}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "codec_type": "AUTO",
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        # Clients name a failed request by this.
        "always_set_request_id_in_response": True,
        "common_http_protocol_options": {"idle_timeout": "3600s", "headers_with_underscores_action": "REJECT_REQUEST"},
        "request_headers_timeout": "10s",
        # A long prompt in a full deployment is silent for minutes.
        "stream_idle_timeout": "3600s",
        # The members come from a file of their own, which is read later than the routes.
        "route_config": {"name": "clients", "validate_clusters": False, "virtual_hosts": [_routes(edge)]},
        "http_filters": _filters(edge, paths),
        "local_reply_config": _own_answers(),
        "access_log": [_access_log()],
    }


def _routes(edge: Edge) -> dict[str, Any]:
    route: dict[str, Any] = {
        "cluster": "members",
        "timeout": "0s",
        "hash_policy": [{"header": {"header_name": name}, "terminal": True} for name in edge.sessions],
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
            "retriable_status_codes": _RETRIABLE,
            "num_retries": edge.retries,
            # The next try goes to a member that has not been tried.
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {"@type": f"{_API}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
                }
            ],
            "host_selection_retry_max_attempts": 16,
            "retry_back_off": {"base_interval": "0.1s", "max_interval": "2s"},
        },
    }
    host: dict[str, Any] = {
        "name": "api",
        "domains": ["*"],
        "request_body_buffer_limit": edge.limits.body_megabytes << 20,
        "routes": [{"match": {"prefix": "/v1/"}, "route": route}],
        "response_headers_to_remove": ["server"],
    }
    if edge.keys or edge.keys_secret:
        client = {"key": CLIENT_HEADER, "value": f"%DYNAMIC_METADATA({':'.join(_CLIENT)})%"}
        host["request_headers_to_add"] = [{"header": client, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]
        host["request_headers_to_remove"] = ["authorization"]
    else:
        host["request_headers_to_remove"] = [CLIENT_HEADER]
    return host


def _filters(edge: Edge, paths: Mapping[str, str]) -> list[dict[str, Any]]:
    filters = [
        _named(
            "health_check",
            {
                "@type": f"{_API}.extensions.filters.http.health_check.v3.HealthCheck",
                "pass_through_mode": False,
                "headers": [{"name": ":path", "string_match": {"exact": "/health"}}],
                # Any member that is up is enough to serve.
                "cluster_min_healthy_percentages": {"members": {"value": 1}},
            },
        )
    ]
    if edge.keys or edge.keys_secret:
        discovery = {
            "config_source": _file(KEYS, paths),
            "type_urls": [_RBAC],
        }
        filters.append({"name": "keys", "config_discovery": discovery})
    if per_minute := edge.limits.per_key_per_minute:
        a_second = max(1, round(per_minute / 60))
        bucket = {
            "max_tokens": per_minute,
            "tokens_per_fill": a_second,
            "fill_interval": f"{a_second * 60 / per_minute:.3f}s",
        }
        always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
        whose = {
            "descriptor_key": "client",
            "metadata_key": {"key": _CLIENT[0], "path": [{"key": _CLIENT[1]}]},
            "source": "DYNAMIC",
        }
        filters.append(
            _named(
                "local_ratelimit",
                {
                    "@type": f"{_API}.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
                    "stat_prefix": "keys",
                    "filter_enabled": always,
                    "filter_enforced": always,
                    "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
                    # A value that is not given stands for every client, each with a bucket of its own.
                    "descriptors": [{"entries": [{"key": "client"}], "token_bucket": bucket}],
                    "rate_limits": [{"actions": [{"metadata": whose}]}],
                    "always_consume_default_token_bucket": False,
                },
            )
        )
    return [*filters, _named("router", {"@type": f"{_API}.extensions.filters.http.router.v3.Router"})]


def _own_answers() -> dict[str, Any]:
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


def _access_log() -> dict[str, Any]:
    fields = {
        "time": "%START_TIME%",
        "id": "%REQ(X-REQUEST-ID)%",
        "client": f"%DYNAMIC_METADATA({':'.join(_CLIENT)})%",
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
            "@type": f"{_API}.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"json_format": fields},
        },
    }


def _members(edge: Edge) -> dict[str, Any]:
    listed = f'"id":"{edge.model}"'.encode().hex()
    check = {
        "interval": f"{edge.health.interval_seconds}s",
        # A member that is not healthy is asked just as often, so that it is used as soon as it can be.
        "no_traffic_interval": f"{edge.health.interval_seconds}s",
        "timeout": f"{edge.health.timeout_seconds}s",
        "unhealthy_threshold": edge.health.failures,
        "healthy_threshold": edge.health.successes,
        "http_health_check": {"path": "/v1/models", "receive": [{"text": listed}], "response_buffer_size": 0},
    }
    thresholds = {
        "max_requests": edge.limits.in_flight,
        "max_connections": 2 * edge.limits.in_flight,
        "max_pending_requests": 2 * edge.limits.in_flight,
        "max_retries": edge.limits.in_flight,
    }
    return {
        "@type": f"{_API}.config.cluster.v3.Cluster",
        "name": "members",
        "type": "STRICT_DNS",
        "connect_timeout": "2s",
        "lb_policy": "RING_HASH",
        # With no healthy member a request is refused, not sent to one that is known to be down.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [check],
        # Between two checks: two connections in a row that fail, and the member is left alone for a while. A full
        # member's refusals do not count.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 2,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "base_ejection_time": "2s",
            "max_ejection_time": "10s",
            "max_ejection_percent": 50,
        },
        "circuit_breakers": {"thresholds": [thresholds]},
        "load_assignment": {"cluster_name": "members", "endpoints": [_place(member) for member in edge.members]},
        "transport_socket_matches": [_towards(member) for member in edge.members if member.ca],
    }


def _place(member: Member) -> dict[str, Any]:
    endpoint: dict[str, Any] = {
        "endpoint": {"address": _address(member.host, member.port)},
        "health_status": "DRAINING" if member.drain else "UNKNOWN",
        "metadata": {"filter_metadata": {"envoy.transport_socket_match": {"member": member.name}}},
    }
    return {
        "locality": {"zone": member.name},
        "priority": 1 if member.standby else 0,
        "load_balancing_weight": 1,
        "lb_endpoints": [endpoint],
    }


def _towards(member: Member) -> dict[str, Any]:
    context = {
        "sni": member.host,
        "common_tls_context": {
            "validation_context": {
                "trusted_ca": {"filename": str(member.ca)},
                "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": member.host}}],
            }
        },
    }
    return {
        "name": member.name,
        "match": {"member": member.name},
        "transport_socket": _tls("UpstreamTlsContext", context),
    }


def _certificate(edge: Edge, paths: Mapping[str, str]) -> dict[str, Any]:
    chain, key = (edge.tls.certificate, edge.tls.key) if edge.tls else ("tls.crt", "tls.key")
    folder = paths["certificate"]
    names = {"certificate_chain": chain, "private_key": key}
    files = {name: {"filename": str(PurePath(folder) / value)} for name, value in names.items()}
    return {
        "@type": f"{_API}.extensions.transport_sockets.tls.v3.Secret",
        "name": "certificate",
        "tls_certificate": files
        | {"watched_directory": {"path": str(PurePath(files["private_key"]["filename"]).parent)}},
    }


def _metrics(edge: Edge) -> dict[str, Any]:
    """Envoy's own metrics, and nothing else of its admin interface, for Prometheus."""
    route = {"match": {"path": "/stats/prometheus"}, "route": {"cluster": "admin"}}
    manager = {
        "@type": f"{_API}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "metrics",
        "route_config": {"virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": [route]}]},
        "http_filters": [_named("router", {"@type": f"{_API}.extensions.filters.http.router.v3.Router"})],
    }
    return {
        "name": "metrics",
        "address": _address(edge.listen, edge.metrics_port),
        "filter_chains": [{"filters": [_named("http_connection_manager", manager, "network")]}],
    }


def _admin(edge: Edge) -> dict[str, Any]:
    endpoint = {"endpoint": {"address": _address("127.0.0.1", edge.admin_port)}}
    return {
        "name": "admin",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "admin", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _named(name: str, content: Mapping[str, Any], kind: str = "http") -> dict[str, Any]:
    return {"name": f"envoy.filters.{kind}.{name}", "typed_config": dict(content)}


def _tls(kind: str, context: Mapping[str, Any]) -> dict[str, Any]:
    typed = {"@type": f"{_API}.extensions.transport_sockets.tls.v3.{kind}", **context}
    return {"name": "envoy.transport_sockets.tls", "typed_config": typed}


def _file(name: str, paths: Mapping[str, str]) -> dict[str, Any]:
    folder = paths[name]
    source = {"path": str(PurePath(folder) / name), "watched_directory": {"path": folder}}
    return {"path_config_source": source, "resource_api_version": "V3"}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
