"""The demo's depot where it does not answer as it should."""

import socket
import threading
import unittest
from pathlib import Path
from types import SimpleNamespace

from kvdepot.demo.depot import Depot
from kvdepot.demo.processes import DemoError


class Answers(unittest.TestCase):
    def answering(self, text):
        """A depot whose port of metrics answers one request with `text`."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(text)

        thread = threading.Thread(target=serve)
        thread.start()
        self.addCleanup(thread.join)
        child = SimpleNamespace(status=lambda: None, last_words=lambda: "", log="depot.log")
        return Depot(None, "", Path(), Path(), _child=child, _http=listener.getsockname())

    def test_an_answer_that_is_none_or_is_cut_off_is_one_line(self):
        for text in (b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nkvdepot_puts 1\n"):
            with self.subTest(text=text), self.assertRaisesRegex(DemoError, "does not tell its figures"):
                self.answering(text).stats()


if __name__ == "__main__":
    unittest.main()
