"""Settings of the connector: `kv_connector_extra_config`, checked once at start. docs/vllm.md lists them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

ACK_LEVELS = ("pooled", "written", "synced")
LOAD_MODES = ("auto", "layerwise", "async")


class ConfigError(ValueError):
    """A setting that cannot work; its text says what is wrong and what to do."""


@dataclass(frozen=True)
class Settings:
    """All settings with their defaults; only `depot` has none."""

    depot: str                        # tcp:// or tls://HOST:PORT, unix:///PATH or file:///DIR?pool=1GiB&flash=10GiB
    tenant: str = "default"           # whose KV it is; tenants never see each other's
    ack: str = "pooled"               # when a store counts as done: pooled, written, synced
    deadline_share: float = 0.5       # a load may take this share of the compute that it saves
    progress_ms: int = 100            # give up after this long without a byte (docs/client.md)
    lookup_wait_us: int = 400         # the scheduler waits for a lookup at most this long, once a step
    lease_ms: int = 10_000            # how long a lookup keeps what it found in the depot's memory
    store_deadline_ms: int = 5_000    # blocks are held for a store at most this long after their last layer is computed
    linger_ms: float = 5.0            # a step without a pass waits this long for a load, instead of polling
    load: str = "auto"                # auto, layerwise or async: the choice, or one way always
    breaker_probe_ms: int = 1000      # how often a depot that failed is tried again
    warn_every_s: float = 30.0        # at most one warning about the depot in this time
    clients: int = 0                  # of a worker, side by side: client_group.py; 0 = by its cores
    prefault: bool = True             # touch the engine's KV memory once at start, so that no load pays for its pages
    shared_memory: bool = True        # of a depot on this host: copy from its memory instead of receiving bytes
    token_file: str = ""              # the token that the depot asks for is in this file, of mode 0600
    tls_ca: str = ""                  # of tls:// depots: PEM file of who has signed the depot's certificate
    tls_cert: str = ""                # this engine's own certificate, where the depot wants one, and
    tls_key: str = ""                 # its key, of mode 0600
    tls_server_name: str = ""         # what the depot's certificate is for, instead of the address's host
    verify: bool = True               # false only in tests that prove that verification matters
    weights_id: str = ""              # identity of weights that cannot be read from files
    shared_hash_seed: bool = False    # PYTHONHASHSEED is set, to the same value, for all engines of this depot
    digest_log: str = ""              # test hook: digests of KV before a store and after a load are appended here
    timeline_log: str = ""            # times of each layer's load, computation and store are appended here

    @property
    def embedded(self) -> bool:
        return self.depot.startswith("file:")


_AT_LEAST = {"progress_ms": 1, "lookup_wait_us": 0, "lease_ms": 0, "store_deadline_ms": 1, "linger_ms": 0,
             "breaker_probe_ms": 1, "warn_every_s": 0, "clients": 0}
_AT_MOST = {"progress_ms": 600_000, "lookup_wait_us": 5_000, "linger_ms": 100, "lease_ms": 600_000,
            "deadline_share": 100, "clients": 16}


def parse_settings(extra: Mapping[str, Any]) -> Settings:
    """Checks `kv_connector_extra_config` and fills in defaults. Raises ConfigError."""
    known = {f.name: f for f in fields(Settings)}
    for key in extra:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            raise ConfigError(f"kv_connector_extra_config has no setting {key!r}{hint}")
    values = {}
    for name, field in known.items():
        if name in extra:
            values[name] = _typed(name, str(field.type), extra[name])
        elif field.default is MISSING:
            raise ConfigError(f'kv_connector_extra_config needs {name!r}, for example "depot": "tcp://127.0.0.1:7070"')
    settings = Settings(**values)
    _check(settings)
    return settings


def _typed(name: str, kind: str, value: Any) -> Any:
    if kind == "bool":
        ok = isinstance(value, bool)
    elif kind == "int":
        ok = isinstance(value, int) and not isinstance(value, bool)
    elif kind == "float":
        ok = isinstance(value, (int, float)) and not isinstance(value, bool)
        value = float(value) if ok else value
    else:
        ok = isinstance(value, str)
    if not ok:
        raise ConfigError(f"kv_connector_extra_config: {name} must be {_KIND_NAMES[kind]}, not {value!r}")
    return value


_KIND_NAMES = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "a string"}


def _check(settings: Settings) -> None:
    if not settings.depot.startswith(("tcp://", "tls://", "unix://", "file://")):
        raise ConfigError(f"kv_connector_extra_config: depot {settings.depot!r} must start with tcp://, tls://, "
                          "unix:// or file://")
    if not 1 <= len(settings.tenant.encode()) <= 64:
        raise ConfigError("kv_connector_extra_config: tenant must have 1 to 64 bytes")
    if settings.ack not in ACK_LEVELS:
        raise ConfigError(f"kv_connector_extra_config: ack must be one of {', '.join(ACK_LEVELS)}, not "
                          f"{settings.ack!r}")
    if settings.load not in LOAD_MODES:
        raise ConfigError(f"kv_connector_extra_config: load must be one of {', '.join(LOAD_MODES)}, not "
                          f"{settings.load!r}")
    if not settings.deadline_share > 0:
        raise ConfigError("kv_connector_extra_config: deadline_share must be more than 0")
    for name, bound in _AT_LEAST.items():
        if not getattr(settings, name) >= bound:        # what is not a number is not
            raise ConfigError(f"kv_connector_extra_config: {name} must be at least {bound}")
    for name, bound in _AT_MOST.items():
        if not getattr(settings, name) <= bound:
            raise ConfigError(f"kv_connector_extra_config: {name} must be at most {bound}")
