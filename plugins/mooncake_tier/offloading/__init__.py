"""What `mooncake_tier.offload` and `mooncake_tier.tier` are made of: chunks of host memory behind vLLM's offload."""
