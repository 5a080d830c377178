"""What the connector refuses at start: one line that says what to do. No engine. Of vLLM's configuration the cache is
its own object; the names of the others are compared with its classes.

    python -m unittest -v tests.e2e.vllm_refusals_test
"""

import unittest
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import torch
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

import kvdepot._kvdepot as native
from kvdepot.vllm import KvDepotConnector, _compat
from kvdepot.vllm.config import ConfigError, Settings
from kvdepot.vllm.testing.engine_double import IDENTITY, LAYERS

SETTINGS = Settings("tcp://127.0.0.1:7070")
SPEC = FullAttentionSpec(block_size=128, num_kv_heads=3, head_size=64, dtype=torch.float32)


def config(**changes):
    values = {"policy": "recompute", "caching": True, "algorithm": "sha256", "kv_dtype": "auto", "world": 1,
              "context": 1, "stages": 1, "batches": 1, "speculative": None, "encoder_decoder": False} | changes
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy=values["policy"]),
        cache_config=CacheConfig(enable_prefix_caching=values["caching"], cache_dtype=values["kv_dtype"],
                                 prefix_caching_hash_algo=values["algorithm"]),
        parallel_config=SimpleNamespace(decode_context_parallel_size=values["context"],
                                        prefill_context_parallel_size=1, world_size=values["world"],
                                        pipeline_parallel_size=values["stages"]),
        max_concurrent_batches=values["batches"],
        model_config=SimpleNamespace(model="a-model", is_encoder_decoder=values["encoder_decoder"]),
        speculative_config=values["speculative"])


def caches(*specs):
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, is_eagle_group=False)
                                            for spec in specs or (SPEC,)])


class Refusals(unittest.TestCase):
    def refused(self, words, *, cache=None, settings=SETTINGS, **changes):
        with self.assertRaises(ConfigError) as caught:
            _compat.check_supported(config(**changes), cache or caches(), settings)
        self.assertIn(words, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_what_is_supported_is_accepted(self):
        _compat.check_supported(config(), caches(), SETTINGS)
        _compat.check_supported(config(algorithm="sha256_cbor"), caches(), SETTINGS)

    def test_failure_policy_that_would_end_requests(self):
        self.refused('"kv_load_failure_policy":"recompute"', policy="fail")

    def test_hashes_that_collide_or_differ_between_processes(self):
        for name in ("xxhash", "xxhash_cbor"):
            self.refused("use sha256 or sha256_cbor", algorithm=name)

    def test_a_hash_seed_from_the_environment_unless_all_have_it(self):
        with mock.patch.dict("os.environ", {"PYTHONHASHSEED": "0"}):
            self.refused('"shared_hash_seed": true')
            _compat.check_supported(config(), caches(), replace(SETTINGS, shared_hash_seed=True))

    def test_prefix_caching_switched_off(self):
        self.refused("without --no-enable-prefix-caching", caching=False)

    def test_cache_dtypes_whose_scales_are_made_at_run_time(self):
        self.refused("--kv-cache-dtype int8_per_token_head", kv_dtype="int8_per_token_head")

    def test_models_that_are_not_plain_full_attention(self):
        window = SlidingWindowSpec(block_size=128, num_kv_heads=3, head_size=64, dtype=torch.float32,
                                   sliding_window=1024)
        latent = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.float32)
        self.refused("several KV-cache groups", cache=caches(SPEC, window))
        self.refused("full causal attention only", cache=caches(window))
        self.refused("full causal attention only", cache=caches(replace(SPEC, sliding_window=1024)))
        self.refused("full causal attention only", cache=caches(replace(SPEC, non_causal=True)))
        self.refused("MLA", cache=caches(latent))
        self.refused("encoder-decoder", encoder_decoder=True)

    def test_draft_models(self):
        eagle = SimpleNamespace(use_eagle=lambda: True, uses_draft_model=lambda: False, method="eagle")
        ngram = SimpleNamespace(use_eagle=lambda: False, uses_draft_model=lambda: False, method="ngram")
        self.refused("draft model", speculative=eagle)
        _compat.check_supported(config(speculative=ngram), caches(), SETTINGS)

    def test_an_embedded_store_for_several_workers_names_the_server(self):
        self.refused("kvdepot serve", settings=Settings("file:///kv"), world=2)

    def test_context_parallelism(self):
        self.refused("context parallelism", context=2)

    def test_several_steps_in_flight(self):
        self.refused("--pipeline-parallel-size", stages=2, batches=2, world=2)
        self.refused("--async-scheduling", batches=2)

    def test_other_versions_of_vllm(self):
        for version in ("0.31.9", "0.33.0", "1.0", "garbage"):
            with self.assertRaisesRegex(ConfigError, "0.32"):
                _compat.check_version(version)
        with self.assertNoLogs("vllm.kvdepot", "WARNING"):
            for version in ("0.32.0", "0.32.0+cpu"):
                _compat.check_version(version)
        with self.assertLogs("vllm.kvdepot", "WARNING") as told:
            _compat.check_version("0.32.1")
        self.assertIn("has not been tried", told.output[0])


class Ends(unittest.TestCase):
    """What a connector holds when its engine ends, or does not start."""

    def connector(self, **settings):
        made = object.__new__(KvDepotConnector)
        made._settings = replace(SETTINGS, **{"clients": 1} | settings)
        made._scheduler = made._worker = made._client = made._prefault = made._identity = None
        made._kv_cache_config = SimpleNamespace(num_blocks=4)
        return made

    def start(self, connector, clients):
        """`clients`: what opening one gives; or what it gives the first time, the second and so on."""
        connector._open_client = mock.Mock(**{"side_effect" if isinstance(clients, list) else "return_value": clients})
        connector._identify = mock.Mock(return_value=IDENTITY)
        with self.assertRaises(ConfigError) as caught:
            connector.register_kv_caches({f"layer.{i}": torch.zeros(4, 64) for i in range(LAYERS)})
        self.assertIsNone(connector._client)
        self.assertTrue(connector._prefault is None or connector._prefault.wait(0))
        return str(caught.exception)

    def test_a_depot_that_refuses_the_model_is_given_back(self):
        client = mock.Mock()
        client.open_namespace.side_effect = native.KvdepotError("no room")
        self.assertIn("refuses this model: no room", self.start(self.connector(), client))
        client.close.assert_called_once()

    def test_a_log_that_cannot_be_opened_is_named(self):
        for setting in ("digest_log", "timeline_log"):
            client = mock.Mock()
            said = self.start(self.connector(**{setting: "/nowhere/log"}), client)
            self.assertIn("/nowhere/log: No such file or directory", said)
            client.close.assert_called_once()

    def test_all_clients_of_a_worker_are_given_back(self):
        clients = [mock.Mock(event_fd=0) for _ in range(3)]
        clients[2].open_namespace.side_effect = native.KvdepotError("no room")
        connector = self.connector(clients=3)
        self.assertIn("refuses this model: no room", self.start(connector, clients))
        for client in clients:
            client.close.assert_called_once()

    def test_clients_are_given_back_when_one_cannot_be_opened(self):
        client = mock.Mock()
        self.assertEqual(self.start(self.connector(clients=3), [client, ConfigError("no more")]), "no more")
        client.close.assert_called_once()

    def test_only_the_first_client_owns_an_embedded_depot(self):
        connector = self.connector(clients=3, depot="file:///nowhere")
        connector._open_client = mock.Mock()
        connector._open_clients(3, 1)
        self.assertEqual([call.kwargs["attach_only"] for call in connector._open_client.mock_calls],
                         [False, True, True])

    def test_a_half_that_cannot_end_does_not_keep_the_client(self):
        connector, client = self.connector(), mock.Mock()
        connector._client, connector._worker = client, mock.Mock()
        connector._worker.close.side_effect = OSError("no space")
        with self.assertRaises(OSError):
            connector.shutdown()
        client.close.assert_called_once()


class Facts(unittest.TestCase):
    """What the fingerprint is made of."""

    def facts(self, *, length=4096, rope="default"):
        hf = SimpleNamespace(to_dict=lambda: {"rope_parameters": {"rope_type": rope}, "_name_or_path": "a"})
        model = SimpleNamespace(hf_config=hf, hf_overrides={}, max_model_len=length, revision=None, seed=0,
                                quantization=None, dtype=torch.float32)
        return _compat.model_facts(
            SimpleNamespace(
                model_config=model, cache_config=SimpleNamespace(cache_dtype="auto", block_size=128),
                parallel_config=SimpleNamespace(pipeline_parallel_size=1, tensor_parallel_size=1),
                compilation_config=SimpleNamespace(static_forward_context={}),
                load_config=SimpleNamespace(load_format="auto")),
            SimpleNamespace(kv_cache_layout="LBHNC"))

    def test_equal_engines_have_equal_facts(self):
        self.assertEqual(self.facts(), self.facts())

    def test_longrope_takes_other_factors_for_another_length(self):
        self.assertNotEqual(self.facts(rope="longrope"), self.facts(rope="longrope", length=32768))


class Interface(unittest.TestCase):
    """The methods that vLLM calls are the ones that are overridden: a rename in vLLM shows here."""

    def test_parts_of_the_configuration_that_are_doubled_here_are_there(self):
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size", "pipeline_parallel_size",
                     "world_size", "local_world_size", "data_parallel_size_local"):
            self.assertTrue(hasattr(ParallelConfig(), name), name)
        for name in ("is_encoder_decoder", "hf_config", "hf_overrides", "max_model_len", "revision", "seed",
                     "quantization", "dtype", "model"):
            self.assertTrue(name in ModelConfig.__dataclass_fields__ or hasattr(ModelConfig, name), name)
        self.assertTrue(hasattr(VllmConfig, "max_concurrent_batches"))

    def test_every_hook_overrides_one_of_vllms(self):
        base = _compat.KVConnectorBase_V1
        ours = {name for name, value in vars(KvDepotConnector).items() if not name.startswith("_") and callable(value)}
        self.assertEqual({name for name in ours if not hasattr(base, name)}, set())
        self.assertFalse(KvDepotConnector.__abstractmethods__)

    def test_weight_updates_are_noticed_before_and_after_by_every_engine_of_the_process(self):
        from vllm.v1.worker.gpu_worker import Worker

        for name in ("reload_weights", "reset_weights", "start_weight_update", "update_weights",
                     "finish_weight_update"):
            self.assertTrue(hasattr(Worker, name), name)
        calls = []

        class Half:
            def __init__(self, name):
                self.name = name

            def changed(self):
                calls.append(self.name)

        gone, first, second = Half("gone"), Half("first"), Half("second")
        with mock.patch.object(Worker, "reload_weights", lambda self: calls.append("reload")):
            for half in (gone, first, second):
                _compat.on_weights_changed(half.changed)
            del gone, half
            Worker.reload_weights(None)
        self.assertEqual(calls, ["first", "second", "reload", "first", "second"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
