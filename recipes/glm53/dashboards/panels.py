"""What the dashboards show, as data. Every metric is one that Dynamo 1.6.1, vLLM 0.31 to 0.33, Envoy 1.40 or a plugin
of this repository exports; tests hold each name against the real ``/metrics``, or the table of the plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["EDGE", "SERVING", "Panel", "Query", "Row"]

Unit = Literal["s", "short", "percentunit", "reqps", "bytes", "Bps"]


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the name of its lines."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A chart. about: what a reader should conclude from it."""

    title: str
    about: str
    unit: Unit
    queries: tuple[Query, ...]


@dataclass(frozen=True)
class Row:
    """Charts under one heading."""

    title: str
    panels: tuple[Panel, ...]


_ALL = '{namespace="$namespace"}'
_WINDOW = "[$__rate_interval]"


def _rate(metric: str, by: str, legend: str | None = None, where: str = "") -> Query:
    selector = f'{{namespace="$namespace"{where}}}'
    return Query(f"sum by ({by}) (rate({metric}{selector}{_WINDOW}))", legend or f"{{{{{by}}}}}")


def _now(metric: str, by: str, how: str = "sum") -> Query:
    return Query(f"{how} by ({by}) ({metric}{_ALL})", f"{{{{{by}}}}}")


def _quantiles(metric: str, prefix: str = "") -> tuple[Query, ...]:
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{_ALL}{_WINDOW})))",
            f"{prefix}p{round(share * 100)}",
        )
        for share in (0.5, 0.9, 0.99)
    )


def _mean(metric: str, legend: str) -> Query:
    return Query(f"sum(rate({metric}_sum{_ALL}{_WINDOW})) / sum(rate({metric}_count{_ALL}{_WINDOW}))", legend)


def _share(part: str, whole: str, legend: str, where: str = "") -> Query:
    selector = f'{{namespace="$namespace"{where}}}'
    return Query(f"sum(rate({part}{selector}{_WINDOW})) / sum(rate({whole}{_ALL}{_WINDOW}))", legend)


SERVING = (
    Row(
        "Clients",
        (
            Panel(
                "Requests",
                "How they ended. Errors by type: overload is a refusal, unavailable a lost worker.",
                "reqps",
                (_rate("dynamo_frontend_requests_total", "status, error_type", "{{status}} {{error_type}}"),),
            ),
            Panel(
                "Refused and waiting",
                "Refusals mean that the thresholds of frontend.busy_blocks and busy_prefill_tokens were reached.",
                "short",
                (
                    _rate("dynamo_frontend_model_rejection_total", "model", "refused a second"),
                    Query(f"sum(dynamo_frontend_queued_requests{_ALL})", "before their first token"),
                    Query(f"sum(dynamo_frontend_inflight_requests{_ALL})", "under way"),
                ),
            ),
            Panel(
                "Time to first token",
                "What a user waits for at each turn.",
                "s",
                _quantiles("dynamo_frontend_time_to_first_token_seconds"),
            ),
            Panel(
                "Inter-token latency",
                "Between two tokens of an answer, as the frontend sends them.",
                "s",
                _quantiles("dynamo_frontend_inter_token_latency_seconds"),
            ),
        ),
    ),
    Row(
        "Queues",
        (
            Panel(
                "Wait in the engine's queue",
                "Rises first when prefill groups are too few, or a long prompt blocks short ones.",
                "s",
                _quantiles("vllm:request_queue_time_seconds"),
            ),
            Panel(
                "Wait between frontend and worker",
                "Not the engine's: work that no worker has taken yet.",
                "s",
                _quantiles("dynamo_request_plane_queue_seconds"),
            ),
            Panel(
                "Requests in engines",
                "Running and waiting, by role.",
                "short",
                (
                    Query(f"sum by (job) (vllm:num_requests_running{_ALL})", "{{job}} running"),
                    Query(f"sum by (job) (vllm:num_requests_waiting{_ALL})", "{{job}} waiting"),
                ),
            ),
            Panel(
                "Blocks in use",
                "At 1 a request waits for blocks, and cached prompts are lost.",
                "percentunit",
                (_now("vllm:kv_cache_usage_perc", "job", "max"),),
            ),
        ),
    ),
    Row(
        "Cached prompts",
        (
            Panel(
                "Prompt tokens by where they came from",
                "Computed here, cached on the GPU, from the DRAM tier, or from a prefill worker.",
                "short",
                (_rate("vllm:prompt_tokens_by_source_total", "source"),),
            ),
            Panel(
                "Hit rates",
                "Share of prompt tokens found in the GPU's cache, and of the rest in the tier.",
                "percentunit",
                (
                    _share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "GPU"),
                    _share(
                        "vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total", "DRAM tier"
                    ),
                ),
            ),
            Panel(
                "Router's choice",
                "Tokens cached on the worker that was chosen, and on the best one that could have been.",
                "short",
                (
                    Query(
                        "sum(rate(dynamo_component_router_kv_selected_cached_prefix_tokens_total"
                        + f"{_ALL}{_WINDOW}))",
                        "chosen",
                    ),
                    Query(
                        "sum(rate(dynamo_component_router_kv_best_eligible_cached_prefix_tokens_total"
                        f"{_ALL}{_WINDOW}))",
                        "best",
                    ),
                ),
            ),
            Panel(
                "DRAM tier",
                "Keys by operation of vLLM's store connector, or loads by outcome of the plugin's: what is not ok is "
                "computed again. Failed keys and corrupt objects should be none.",
                "short",
                (
                    _rate("vllm:mooncake_store_operation_keys_total", "operation"),
                    Query(f"sum(rate(vllm:mooncake_store_operation_failed_keys_total{_ALL}{_WINDOW}))", "failed keys"),
                    _rate("vllm:mooncake_tier_loads_total", "outcome", "plugin: {{outcome}}"),
                    Query(f"sum(rate(vllm:mooncake_tier_corrupt_total{_ALL}{_WINDOW}))", "plugin: corrupt"),
                ),
            ),
        ),
    ),
    Row(
        "Transfers from prefill to decode",
        (
            Panel(
                "Descriptors",
                "A transfer's, as NIXL posts them; with block rows one for each run of blocks.",
                "short",
                (
                    _mean("vllm:nixl_num_descriptors", "descriptors"),
                    _mean("vllm:blhnc_runs", "runs of blocks"),
                    _mean("vllm:blhnc_blocks", "blocks"),
                ),
            ),
            Panel("Bytes", "Of a transfer.", "bytes", (_mean("vllm:nixl_bytes_transferred", "bytes"),)),
            Panel(
                "Time",
                "Of a transfer, and the part of it that went into posting descriptors.",
                "s",
                (*_quantiles("vllm:nixl_xfer_time_seconds"), _mean("vllm:nixl_post_time_seconds", "posting, mean")),
            ),
            Panel(
                "Failures",
                "Transfers that failed, blocks that nobody fetched in time, refused peers: all should be none.",
                "short",
                (
                    Query(f"sum(rate(vllm:nixl_num_failed_transfers_total{_ALL}{_WINDOW}))", "failed"),
                    Query(f"sum(rate(vllm:nixl_num_kv_expired_reqs_total{_ALL}{_WINDOW}))", "expired"),
                    Query(f"sum(rate(vllm:blhnc_refused_peers_total{_ALL}{_WINDOW}))", "refused peers"),
                ),
            ),
        ),
    ),
    Row(
        "Tool calls",
        (
            Panel(
                "Valid calls",
                "Share of calls whose arguments satisfy their schema as far as a grammar enforces it.",
                "percentunit",
                (
                    _share(
                        "dynamo_structural_tags_calls_total",
                        "dynamo_structural_tags_calls_total",
                        "valid",
                        ',outcome=~"valid|relaxed"',
                    ),
                ),
            ),
            Panel("Calls", "By outcome.", "reqps", (_rate("dynamo_structural_tags_calls_total", "outcome"),)),
            Panel(
                "Structural tags",
                "Failed and unrecognised tags leave a request to the model's good will.",
                "reqps",
                (_rate("dynamo_structural_tags_tags_total", "result"),),
            ),
            Panel(
                "Grammars",
                "Time from a request's tools to a grammar.",
                "s",
                _quantiles("dynamo_structural_tags_compile_seconds"),
            ),
        ),
    ),
)

EDGE = (
    Row(
        "Edge",
        (
            Panel(
                "Healthy members",
                "Deployments that take requests.",
                "short",
                (
                    Query(
                        'max(envoy_cluster_membership_healthy{namespace="$namespace",envoy_cluster_name="members"})',
                        "healthy",
                    ),
                ),
            ),
            Panel(
                "Answers",
                "To clients, by class of status.",
                "reqps",
                (
                    _rate(
                        "envoy_http_downstream_rq_xx",
                        "envoy_response_code_class",
                        "{{envoy_response_code_class}}xx",
                        ',envoy_http_conn_manager_prefix="clients"',
                    ),
                ),
            ),
            Panel(
                "Tries",
                "Requests sent again because nothing was answered, and those that then succeeded.",
                "reqps",
                (
                    Query(f"sum(rate(envoy_cluster_upstream_rq_retry{_ALL}{_WINDOW}))", "again"),
                    Query(f"sum(rate(envoy_cluster_upstream_rq_retry_success{_ALL}{_WINDOW}))", "with success"),
                ),
            ),
            Panel(
                "Refused here",
                "Unknown keys, keys above their limit, and requests above limits.in_flight.",
                "reqps",
                (
                    Query(f"sum(rate(envoy_http_rbac_denied{_ALL}{_WINDOW}))", "unknown key"),
                    Query(f"sum(rate(envoy_http_local_rate_limit_enforced{_ALL}{_WINDOW}))", "above a key's limit"),
                    Query(
                        f"sum(rate(envoy_cluster_upstream_rq_pending_overflow{_ALL}{_WINDOW}))",
                        "above limits.in_flight",
                    ),
                ),
            ),
        ),
    ),
)
