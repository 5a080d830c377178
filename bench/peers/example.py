"""vLLM's own ExampleConnector: one safetensors file a layer and prompt, written inside the pass."""

from __future__ import annotations

from bench.peers import Peer


class Example(Peer):
    name = "example"
    title = "vLLM ExampleConnector"
    tier = "files in the page cache, written"

    def start(self) -> None:
        (self.work / "kv").mkdir(parents=True, exist_ok=True)

    def connector(self) -> dict:
        return {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"shared_storage_path": str(self.work / "kv")}}
