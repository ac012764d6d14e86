"""The edge: one address in front of two or more deployments, with Envoy's own means for all it does.

Health, failover, sessions, drain, keys, limits and TLS are Envoy's configuration, rendered from one small file.
"""
