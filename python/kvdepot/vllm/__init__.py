"""vLLM keeps its KV cache in a kvdepot. Named in vLLM's --kv-transfer-config as

    "kv_connector": "KvDepotConnector", "kv_connector_module_path": "kvdepot.vllm"

docs/vllm.md is the manual. Importing this package needs vLLM only for the class itself; all else is plain Python.
"""

from __future__ import annotations

from typing import Any

__all__ = ["KvDepotConnector"]


def __getattr__(name: str) -> Any:
    if name == "KvDepotConnector":
        from kvdepot.vllm.connector import KvDepotConnector

        return KvDepotConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
