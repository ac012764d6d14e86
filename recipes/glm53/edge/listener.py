"""The listener for clients: TLS, keys, limits, sessions and tries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glm53.edge.answers import access_log, own_answers
from glm53.edge.model import Edge
from glm53.edge.parts import API, CLIENT, CLIENT_HEADER, KEYS, RBAC, TLS, address, named, tls_socket, watched

__all__ = ["listener"]

#: "Not now" answers of Dynamo's frontend (503, and 529 when full) and of what lies between; nothing was streamed yet.
#: With its last worker a frontend loses the model and its routes, and answers 404 until a health check sees it.
_RETRIABLE = [404, 502, 503, 504, 529]


def listener(edge: Edge, paths: Mapping[str, str]) -> dict[str, Any]:
    chain: dict[str, Any] = {"filters": [named("http_connection_manager", _connections(edge, paths), "network")]}
    if edge.tls or edge.tls_secret:
        secret = {"name": "certificate", "sds_config": watched(TLS, paths)}
        context = {
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "tls_certificate_sds_secret_configs": [secret],
            }
        }
        chain["transport_socket"] = tls_socket("DownstreamTlsContext", context)
    return {
        "name": "clients",
        "address": address(edge.listen, edge.port),
        "filter_chains": [chain],
        # How much of a request is kept to be sent again is decided a route; a connection buffers no more than needed.
        "per_connection_buffer_limit_bytes": 1 << 20,
    }


def _connections(edge: Edge, paths: Mapping[str, str]) -> dict[str, Any]:
    return {
        "@type": f"{API}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
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
        "local_reply_config": own_answers(),
        "access_log": [access_log()],
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
                    "typed_config": {"@type": f"{API}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
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
        client = {"key": CLIENT_HEADER, "value": f"%DYNAMIC_METADATA({':'.join(CLIENT)})%"}
        host["request_headers_to_add"] = [{"header": client, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]
        host["request_headers_to_remove"] = ["authorization"]
    else:
        host["request_headers_to_remove"] = [CLIENT_HEADER]
    return host


def _filters(edge: Edge, paths: Mapping[str, str]) -> list[dict[str, Any]]:
    filters = [
        named(
            "health_check",
            {
                "@type": f"{API}.extensions.filters.http.health_check.v3.HealthCheck",
                "pass_through_mode": False,
                "headers": [{"name": ":path", "string_match": {"exact": "/health"}}],
                # Any member that is up is enough to serve.
                "cluster_min_healthy_percentages": {"members": {"value": 1}},
            },
        )
    ]
    if edge.keys or edge.keys_secret:
        discovery = {
            "config_source": watched(KEYS, paths),
            "type_urls": [RBAC],
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
            "metadata_key": {"key": CLIENT[0], "path": [{"key": CLIENT[1]}]},
            "source": "DYNAMIC",
        }
        filters.append(
            named(
                "local_ratelimit",
                {
                    "@type": f"{API}.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
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
    return [*filters, named("router", {"@type": f"{API}.extensions.filters.http.router.v3.Router"})]
