"""Grafana dashboards for what decides how a deployment feels: queues, tokens, caches, transfers, tool calls."""
