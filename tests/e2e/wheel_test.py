"""What `pip install .` gives: a wheel with the program, the bindings and the connector, which works by itself.

    python -m unittest -v tests.e2e.wheel_test      # some minutes: the whole of kvdepot is compiled
"""

import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GET_BACK = """
import kvdepot, sys
with_memory = bytearray(b"kv" * 8192)
client = kvdepot.Client(sys.argv[1])
region = client.register(with_memory)
namespace = client.open_namespace("t", b"wheel", [
    {"group": 0, "layers": 1, "slab_bytes": 4096, "parts": 2, "block_tokens": 16, "order": "test", "rule": "all",
     "hit_blocks": 0}])
put = client.multiput(namespace, b"k" * 16, 16, region, [0], [0], ack="pooled", total_ms=10_000)
assert client.wait(put, -1, 10_000).ok
get = client.multiget(namespace, b"k" * 16, 16, region, [0], [8192], total_ms=10_000)
done = client.wait(get, -1, 10_000)
assert done.ok and not done.failed_keys
assert with_memory[8192:12288] == with_memory[:4096]
client.close()
"""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvdepot-wheel-")))
        cls.run_checked(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", cls.work, ROOT)
        (cls.wheel,) = cls.work.glob("kvdepot-*.whl")
        cls.python = cls.work / "venv/bin/python"
        cls.run_checked(sys.executable, "-m", "venv", cls.work / "venv")
        cls.run_checked(cls.python, "-m", "pip", "install", cls.wheel)

    @staticmethod
    def run_checked(*command):
        done = subprocess.run([str(word) for word in command], cwd="/", capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def test_it_holds_what_a_user_needs_and_no_tests(self):
        names = zipfile.ZipFile(self.wheel).namelist()
        for wanted in ("kvdepot/__init__.py", "kvdepot/vllm/__init__.py", "kvdepot/vllm/connector.py",
                       "kvdepot/demo/__main__.py"):
            self.assertIn(wanted, names)
        self.assertTrue(any(name.startswith("kvdepot/_kvdepot") and name.endswith(".so") for name in names))
        self.assertTrue(any(name.endswith(".data/scripts/kvdepot") for name in names))
        self.assertEqual([name for name in names if name.endswith("_test.py") or "/testing/" in name], [])

    def test_the_program_is_on_the_path_and_says_its_version(self):
        said = self.run_checked(self.python.parent / "kvdepot", "--version")
        version = self.wheel.name.split("-")[1]
        self.assertIn(version, said)

    def test_a_client_stores_and_gets_back_in_a_depot_inside_its_process(self):
        directory = self.work / "kv"
        self.run_checked(self.python, "-c", GET_BACK, f"file://{directory}?pool=64MiB&flash=0")


if __name__ == "__main__":
    unittest.main(verbosity=2)
