"""The members as one of Envoy's clusters: health, failover, sessions, drain, and the way to each."""

from __future__ import annotations

import ipaddress
from typing import Any

from glm53.edge.model import Edge, Member
from glm53.edge.parts import API, address, tls_socket

__all__ = ["members"]


def members(edge: Edge) -> dict[str, Any]:
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
        "@type": f"{API}.config.cluster.v3.Cluster",
        "name": "members",
        "type": "STRICT_DNS",
        "connect_timeout": "2s",
        "lb_policy": "RING_HASH",
        "common_lb_config": {
            # With no healthy member a request is refused, not sent to one that is known to be down.
            "healthy_panic_threshold": {"value": 0},
            # Otherwise Envoy's threads learn of a change up to a second apart, and send a session to two members.
            "update_merge_window": "0s",
        },
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
        "endpoint": {"address": address(member.host, member.port)},
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
    # The certificate must be of the member's own host; only names are asked for by name.
    kind = "IP_ADDRESS" if _is_address(member.host) else "DNS"
    validation = {
        "trusted_ca": {"filename": str(member.ca)},
        "match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": member.host}}],
    }
    context: dict[str, Any] = {"common_tls_context": {"validation_context": validation}}
    if kind == "DNS":
        context["sni"] = member.host
    return {
        "name": member.name,
        "match": {"member": member.name},
        "transport_socket": tls_socket("UpstreamTlsContext", context),
    }


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
