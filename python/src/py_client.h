// PyClient: kvd::Client as a Python object. It keeps registered memory alive, lets go of the GIL in everything that
// waits, and survives close() while other threads are inside: the client ends with the last of them.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"

namespace kvd::python {

// One completion, with its bitmap and its text copied: it stays valid after release(), which another thread may call
// while this one waits for the GIL.
struct PyCompletion {
  Completion done;
  nb::bytes failed;
  std::string why;

  explicit PyCompletion(OwnedCompletion completion);
  // Index of the first key that failed, `keys` when none did, 0 when the whole operation failed: how long the usable
  // prefix is.
  [[nodiscard]] std::uint32_t first_failed() const;
};

// What a borrow has brought. close() gives it back; memoryviews of its slabs keep it from that, as those of a bytearray
// keep it from being resized.
class PyView {
 public:
  explicit PyView(std::unique_ptr<View> view) : open_(std::make_shared<Open>(Open{.view = std::move(view)})) {}

  nb::object slab(std::int64_t key, std::int64_t layer) const;
  // Reads it without the GIL.
  [[nodiscard]] bool verify(std::int64_t key, std::int64_t layer) const;
  [[nodiscard]] bool borrowed() const { return open_->view != nullptr && open_->view->borrowed(); }
  void close();

  struct Open {
    std::unique_ptr<View> view;  // null: closed
    std::size_t exported = 0;    // buffers of its slabs, and verifications under way; under the GIL
  };

 private:
  std::shared_ptr<Open> open_;  // never null; owners: this, and exporters of its slabs
};

// The exporter behind a memoryview of one slab.
struct PySlab {
  std::shared_ptr<PyView::Open> open;
  std::span<const std::byte> bytes;
  static int get_buffer(PyObject* self, Py_buffer* buffer, int flags) noexcept;
  static void release_buffer(PyObject* self, Py_buffer* buffer) noexcept;
};

// As ClientOptions has them.
struct PyTlsFiles {
  std::string ca, cert, key, server_name;
};

class PyClient {
 public:
  PyClient(const std::string& depot, bool attach_only, bool require_connection, std::int64_t connect_timeout_ms,
           std::int64_t ops_max, std::int64_t breaker_failures, std::int64_t breaker_probe_ms, bool verify,
           const std::string& name, bool shared_memory, const std::string& token_file, const PyTlsFiles& tls);
  ~PyClient() { close(); }

  std::uint32_t register_buffer(nb::handle buffer);
  std::uint32_t register_address(std::uint64_t address, std::uint64_t nbytes, nb::object owner);
  void unregister(std::uint32_t region);
  std::uint32_t open_namespace(const std::string& tenant, const nb::bytes& fingerprint, nb::handle groups);

  void close_namespace(std::uint32_t ns);

  OpId match(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, bool native, nb::handle shards,
             nb::handle groups, std::int64_t lease_ms, bool promote, std::int64_t total_ms, std::int64_t progress_ms);
  OpId multiget(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, std::uint32_t region,
                nb::handle layer_offsets, nb::handle block_offsets, nb::handle runs, bool native, std::int64_t shard,
                std::int64_t group, std::int64_t layer_first, std::int64_t layer_count, bool stop_at_first_failure,
                std::int64_t total_ms, std::int64_t progress_ms);
  OpId borrow(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, bool native, std::int64_t shard,
              std::int64_t group, std::int64_t layer_first, std::int64_t layer_count, bool verify, std::int64_t hold_ms,
              bool stop_at_first_failure, std::int64_t total_ms, std::int64_t progress_ms);
  PyView take_view(OpId op);
  OpId multiput(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, std::uint32_t region,
                nb::handle layer_offsets, nb::handle block_offsets, nb::handle runs, bool native, std::int64_t shard,
                std::int64_t group, const std::string& ack, bool whole, std::int64_t total_ms,
                std::int64_t progress_ms);
  void put_layer(OpId op, std::int64_t layer);
  OpId remove(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, bool native, nb::handle shards,
              nb::handle groups, std::int64_t total_ms);
  void unpin(LeaseId lease);
  void open_breaker();
  void reconnect(std::int64_t timeout_ms);
  void cancel(OpId op);
  void release(OpId op);
  std::vector<PyCompletion> poll(std::int64_t max);
  std::optional<PyCompletion> wait(OpId op, std::int64_t layer, std::int64_t timeout_ms);
  [[nodiscard]] int event_fd() const;
  [[nodiscard]] nb::dict stats() const;
  nb::object depot_stats(std::int64_t timeout_ms);
  // Warnings of the embedded depot since the last call, oldest first; at most kWarningsMax are kept.
  [[nodiscard]] std::vector<std::string> take_warnings() const;
  void close();

 private:
  static constexpr std::size_t kWarningsMax = 64;
  // What the embedded depot said and nobody has asked for. Owners: the client, and the depot that writes.
  struct Warnings {
    std::mutex mutex;
    std::deque<std::string> lines;
    void add(std::string_view line);
  };

  // The client and the memory that it may touch. Destroyed with the GIL held: first the client, without the GIL, then
  // the memory.
  struct Open {
    std::shared_ptr<Warnings> warnings = std::make_shared<Warnings>();
    std::unique_ptr<Client> client;
    std::mutex mutex;  // guards the next two; never held while Python code can run
    std::map<std::uint32_t, Py_buffer> buffers;
    std::map<std::uint32_t, nb::object> owners;
    ~Open();
  };
  [[nodiscard]] std::shared_ptr<Open> open() const;  // raises when closed

  std::shared_ptr<Open> open_;  // owners: this, and every call that is under way
};

}  // namespace kvd::python
