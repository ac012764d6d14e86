"""BLHNC KV cache over NIXL: one region per engine, one descriptor per run of consecutive blocks.

Installed but idle. A deployment switches it on in its KV transfer configuration, keeping the connector's name
because vLLM and Dynamo dispatch on it::

    {"kv_connector": "NixlConnector", "kv_connector_module_path": "vllm_blhnc.connector",
     "kv_role": "kv_producer", "kv_connector_extra_config": {"blhnc": {"layout": "BLHNC"}}}
"""
