"""What `mooncake_tier.store_connector` is made of: blocks between vLLM's cache and the store, without a copy."""
