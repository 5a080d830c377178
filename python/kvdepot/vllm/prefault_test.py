import ctypes
import mmap
import unittest
from pathlib import Path

from kvdepot.vllm.prefault import Prefault

SIZE = 80 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


class Touch(unittest.TestCase):
    def setUp(self):
        self.memory = mmap.mmap(-1, SIZE)
        self.addCleanup(self.memory.close)
        view = (ctypes.c_char * SIZE).from_buffer(self.memory)
        self.address = ctypes.addressof(view)
        del view

    def test_all_pages_are_there_and_nothing_is_changed(self):
        self.memory[5_000_000] = 77
        before = resident_bytes()
        touch = Prefault([(self.address + 100, SIZE - 100)])
        self.assertTrue(touch.wait(30))
        touch.close()
        self.assertEqual(touch.touched, SIZE - mmap.PAGESIZE)
        self.assertGreater(resident_bytes() - before, SIZE * 9 // 10)
        self.assertEqual(self.memory[5_000_000], 77)

    def test_memory_that_is_not_there_ends_it_quietly(self):
        touch = Prefault([(mmap.PAGESIZE, mmap.PAGESIZE), (self.address, SIZE)])
        self.assertTrue(touch.wait(30))
        self.assertEqual(touch.touched, 0)

    def test_it_can_be_ended_half_way(self):
        touch = Prefault([(self.address, SIZE)] * 1000)
        touch.close()
        self.assertLess(touch.touched, 1000 * SIZE)


if __name__ == "__main__":
    unittest.main()
