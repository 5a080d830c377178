// The module kvdepot._kvdepot: the client for Python. Signatures and words are part of the package's interface.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "model.h"
#include "py_client.h"

namespace nb = nanobind;
using namespace nb::literals;
using kvd::python::PyClient;
using kvd::python::PyCompletion;
using kvd::python::PySlab;
using kvd::python::PyView;

namespace {

void add_completion(nb::module_& module) {
  nb::class_<PyCompletion>(module, "Completion", "One event of one operation.")
      .def_prop_ro("op", [](const PyCompletion& self) { return self.done.op; })
      .def_prop_ro(
          "layer",
          [](const PyCompletion& self) {
            return self.done.layer == kvd::kWholeOp ? -1 : static_cast<int>(self.done.layer);
          },
          "Layer that is complete; -1: the whole operation has ended.")
      .def_prop_ro("code", [](const PyCompletion& self) { return kvd::code_name(self.done.code).data(); })
      .def_prop_ro(
          "ok", [](const PyCompletion& self) { return self.done.code == kvd::Code::kOk; },
          "The operation went through; single keys may have failed all the same.")
      .def_prop_ro(
          "failed_code", [](const PyCompletion& self) { return kvd::code_name(self.done.failed_code).data(); },
          "Of a put: why the first key that failed was not kept, e.g. 'busy'; 'ok': none failed, or not said.")
      .def_prop_ro(
          "why", [](const PyCompletion& self) { return nb::str(self.why.c_str(), self.why.size()); },
          "Why it is not ok, or why a put's key failed: one line, in the depot's words where it refused; else empty.")
      .def_prop_ro("keys", [](const PyCompletion& self) { return self.done.keys; })
      .def_prop_ro("failed_keys", [](const PyCompletion& self) { return self.done.failed_keys; })
      .def_prop_ro(
          "failed", [](const PyCompletion& self) { return self.failed; },
          "Bitmap: bit i of byte i // 8 = key i failed.")
      .def_prop_ro("prefix_blocks", [](const PyCompletion& self) { return self.done.prefix_blocks; })
      .def_prop_ro("flash_blocks", [](const PyCompletion& self) { return self.done.flash_blocks; })
      .def_prop_ro("lease", [](const PyCompletion& self) { return self.done.lease; })
      .def_prop_ro("removed", [](const PyCompletion& self) { return self.done.removed; })
      .def_prop_ro(
          "seconds", [](const PyCompletion& self) { return std::chrono::duration<double>(self.done.took).count(); },
          "Of the whole operation: from its submission to its end, whenever that is looked at.")
      .def("first_failed", &PyCompletion::first_failed,
           "Length of the usable prefix: index of the first failed key, keys when none failed, 0 when not ok.")
      .def("__repr__", [](const PyCompletion& self) {
        return nb::str("Completion(op={}, layer={}, code={}, keys={}, failed_keys={})")
            .attr("format")(self.done.op, self.done.layer == kvd::kWholeOp ? -1 : static_cast<int>(self.done.layer),
                            kvd::code_name(self.done.code).data(), self.done.keys, self.done.failed_keys);
      });
}

void add_view(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(PySlab::get_buffer)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(PySlab::release_buffer)},
                                {0, nullptr}};
  nb::class_<PySlab>(module, "_Slab", nb::type_slots(slots), "What a memoryview of a slab keeps alive.");
  nb::class_<PyView>(module, "View", "What a borrow has brought: slabs to be read where they lie.")
      .def("slab", &PyView::slab, "key"_a, "layer"_a,
           "A read-only memoryview of the slab of key `key` (from 0, as asked for) in layer `layer`; None: it failed.")
      .def("verify", &PyView::verify, "key"_a, "layer"_a,
           "Whether that slab is what was put: for borrows with verify=False, which read nothing.")
      .def_prop_ro("borrowed", &PyView::borrowed, "Some of it lies in the depot's memory now; False: it is a copy.")
      .def("close", &PyView::close,
           "Gives it back, as its end does, also beyond the client's. BufferError: memoryviews of it are in use.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](PyView& self, const nb::args&) { self.close(); });
}

void add_memory(nb::class_<PyClient>& client) {
  client
      .def("register", &PyClient::register_buffer, "buffer"_a,
           "Registers writable memory (buffer protocol) and keeps it alive. Returns the region's number.")
      .def("register_address", &PyClient::register_address, "address"_a, "nbytes"_a, "owner"_a,
           "Registers memory by address, as of a tensor; `owner` is kept alive.")
      .def("unregister", &PyClient::unregister, "region"_a)
      .def("open_namespace", &PyClient::open_namespace, "tenant"_a, "fingerprint"_a, "groups"_a,
           "Declares a namespace. Groups are dicts: group, layers, slab_bytes, parts, block_tokens, order, "
           "rule='all' | 'trailing' | 'last', hit_blocks.")
      .def("close_namespace", &PyClient::close_namespace, "ns"_a,
           "Once for each open_namespace(): the depot may forget it, but for its records.");
}

void add_operations(nb::class_<PyClient>& client) {
  const nb::tuple zero = nb::make_tuple(0);
  client
      .def("match", &PyClient::match, "ns"_a, "keys"_a, "key_bytes"_a, nb::kw_only(), "native"_a = false,
           "shards"_a = zero, "groups"_a = zero, "lease_ms"_a = 0, "promote"_a = true, "total_ms"_a = 0,
           "progress_ms"_a = 100, "Asks for the usable prefix. Returns the operation's id.")
      .def("multiget", &PyClient::multiget, "ns"_a, "keys"_a, "key_bytes"_a, "region"_a, "layer_offsets"_a,
           "block_offsets"_a, nb::kw_only(), "runs"_a = nb::tuple(), "native"_a = false, "shard"_a = 0, "group"_a = 0,
           "layer_first"_a = 0, "layer_count"_a = 0, "stop_at_first_failure"_a = true, "total_ms"_a = 0,
           "progress_ms"_a = 100, "Loads slabs into a region, layer by layer. Returns the operation's id.")
      .def("borrow", &PyClient::borrow, "ns"_a, "keys"_a, "key_bytes"_a, nb::kw_only(), "native"_a = false,
           "shard"_a = 0, "group"_a = 0, "layer_first"_a = 0, "layer_count"_a = 0, "verify"_a = true,
           "hold_ms"_a = 10'000, "stop_at_first_failure"_a = true, "total_ms"_a = 0, "progress_ms"_a = 100,
           "Finds slabs and leaves them where they are, for take_view(). Returns the operation's id.")
      .def("take_view", &PyClient::take_view, "op"_a,
           "The View of a borrow that has ended ok, once. The operation is to be released all the same.")
      .def("multiput", &PyClient::multiput, "ns"_a, "keys"_a, "key_bytes"_a, "region"_a, "layer_offsets"_a,
           "block_offsets"_a, nb::kw_only(), "runs"_a = nb::tuple(), "native"_a = false, "shard"_a = 0, "group"_a = 0,
           "ack"_a = "pooled", "whole"_a = true, "total_ms"_a = 0, "progress_ms"_a = 0,
           "Stores slabs from a region; with whole=False as put_layer() releases them. Returns the operation's id.")
      .def("put_layer", &PyClient::put_layer, "op"_a, "layer"_a)
      .def("remove", &PyClient::remove, "ns"_a, "keys"_a, "key_bytes"_a, nb::kw_only(), "native"_a = false,
           "shards"_a = zero, "groups"_a = zero, "total_ms"_a = 1000)
      .def("unpin", &PyClient::unpin, "lease"_a)
      .def("open_breaker", &PyClient::open_breaker,
           "Submissions end with 'unavailable' until a probe is answered: another client found the depot failing.")
      .def("reconnect", &PyClient::reconnect, "timeout_ms"_a,
           "Connects now, not at the back-off's next time: another client found the depot there. Blocks that long at "
           "most.")
      .def("cancel", &PyClient::cancel, "op"_a,
           "Ends an operation. When it returns, no byte can land in its destination or be read from its source.")
      .def("release", &PyClient::release, "op"_a, "Gives an operation's memory back; cancels it if it still runs.");
}

void add_collecting(nb::class_<PyClient>& client) {
  client.def("poll", &PyClient::poll, "max"_a = 64, "Takes up to `max` completions. Never waits.")
      .def("wait", &PyClient::wait, "op"_a, "layer"_a = -1, "timeout_ms"_a = 1000,
           "Waits for a layer or for the whole operation. None: not yet, the operation goes on.")
      .def_prop_ro("event_fd", &PyClient::event_fd, "Readable while completions wait for poll().")
      .def("stats", &PyClient::stats, "This client's counters.")
      .def("depot_stats", &PyClient::depot_stats, "timeout_ms"_a = 1000, "The depot's own statistics.")
      .def("take_warnings", &PyClient::take_warnings,
           "Lines of this process's embedded depot since the last call that say that something was lost or refused.")
      .def("close", &PyClient::close, "Ends everything in flight; afterwards no byte lands anywhere.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](PyClient& self, const nb::args&) { self.close(); });
}

}  // namespace

NB_MODULE(_kvdepot, module) {
  module.doc() = "Client of the kvdepot KV-cache store.";
  const nb::object error = nb::steal(PyErr_NewExceptionWithDoc(
      "kvdepot.KvdepotError",
      "An operation could not be submitted, or a call failed. `code` says how to react: invalid, not_found, no_space, "
      "busy, timeout, unavailable, stale, corrupt, io, cancelled.",
      nullptr, nullptr));
  error.attr("code") = "invalid";
  module.attr("KvdepotError") = error;
  kvd::python::set_error_type(error);
  module.attr("__version__") = KVD_VERSION;

  add_completion(module);
  add_view(module);
  nb::class_<PyClient> client(module, "Client", "A connection to a depot: submit, then wait or poll. Thread-safe.");
  client.def(
      "__init__",
      [](PyClient* self, const std::string& depot, bool attach_only, bool require_connection,
         std::int64_t connect_timeout_ms, std::int64_t ops_max, std::int64_t breaker_failures,
         std::int64_t breaker_probe_ms, bool verify, const std::string& name, bool shared_memory,
         const std::string& token_file, const std::string& tls_ca, const std::string& tls_cert,
         const std::string& tls_key, const std::string& tls_server_name) {
        new (self) PyClient(depot, attach_only, require_connection, connect_timeout_ms, ops_max, breaker_failures,
                            breaker_probe_ms, verify, name, shared_memory, token_file,
                            {tls_ca, tls_cert, tls_key, tls_server_name});
      },
      "depot"_a, nb::kw_only(), "attach_only"_a = false, "require_connection"_a = false, "connect_timeout_ms"_a = 1000,
      "ops_max"_a = 256, "breaker_failures"_a = 1, "breaker_probe_ms"_a = 1000, "verify"_a = true,
      "name"_a = "kvdepot-python", "shared_memory"_a = true, "token_file"_a = "", "tls_ca"_a = "", "tls_cert"_a = "",
      "tls_key"_a = "", "tls_server_name"_a = "");
  add_memory(client);
  add_operations(client);
  add_collecting(client);
  kvd::python::add_model(module);
}
