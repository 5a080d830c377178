import json
import tempfile
import unittest
from pathlib import Path

from kvdepot.demo import timeline
from kvdepot.demo.timeline import Event


class Read(unittest.TestCase):
    def write(self, *lines):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "log"
        path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        return path

    def row(self, layer, kind, start, end):
        return {"req": "r", "layer": layer, "kind": kind, "start": start, "end": end}

    def test_takes_the_events_of_one_request_by_their_time(self):
        path = self.write(self.row(0, "load", 99.0, 99.5), self.row(0, "load", 100.1, 100.2),
                          self.row(1, "store", 101.5, 103.6), self.row(0, "compute", 103.0, 111.0))
        self.assertEqual([(e.layer, e.kind) for e in timeline.read(path, 100.0, 103.0)], [(0, "load"), (1, "store")])

    def test_counts_seconds_from_the_request(self):
        event = timeline.read(self.write(self.row(3, "load", 100.25, 100.5)), 100.0, 101.0)[0]
        self.assertEqual((event.start, event.end), (0.25, 0.5))

    def test_a_line_cut_off_by_a_kill_is_left_out(self):
        path = self.write(self.row(0, "load", 1.0, 2.0), '{"req": "r", "lay')
        self.assertEqual(len(timeline.read(path, 0.0, 3.0)), 1)

    def test_no_file_means_no_events(self):
        self.assertEqual(timeline.read(Path("no such file"), 0.0, 1.0), [])


class Overlap(unittest.TestCase):
    def test_touching_and_nested_events_are_one_stretch(self):
        events = [Event(0, "load", 0.0, 1.0), Event(1, "load", 1.0, 2.0), Event(2, "load", 1.2, 1.5)]
        self.assertEqual(timeline.spans(events, "load"), [(0.0, 2.0)])

    def test_is_the_time_both_kinds_ran(self):
        events = [Event(0, "load", 0.0, 2.0), Event(0, "compute", 1.0, 1.5), Event(1, "compute", 1.75, 3.0)]
        self.assertAlmostEqual(timeline.overlap_s(events, "load", "compute"), 0.75)

    def test_is_nothing_for_one_after_the_other(self):
        events = [Event(0, "load", 0.0, 1.0), Event(0, "compute", 1.0, 2.0)]
        self.assertEqual(timeline.overlap_s(events, "load", "compute"), 0.0)
