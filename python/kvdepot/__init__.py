"""kvdepot: a shared, deep KV-cache store for LLM serving.

The client: open it, register memory, declare a namespace, then match, load and store. See docs/client.md.
`kvdepot.vllm` holds the connector for vLLM, `python -m kvdepot.demo` shows the whole.
"""

from kvdepot._kvdepot import Client, Completion, KvdepotError, View, __version__

__all__ = ["Client", "Completion", "KvdepotError", "View", "__version__"]
