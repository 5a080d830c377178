#include "py_client.h"

#include <algorithm>

#include "kvdepot/embed.h"

namespace kvd::python {
namespace {

std::chrono::milliseconds timeout_of(std::int64_t ms) { return deadline_of(ms, 0).total; }

}  // namespace

PyCompletion::PyCompletion(OwnedCompletion completion)
    : done(completion.done),
      failed(reinterpret_cast<const char*>(completion.failed.data()), completion.failed.size()),
      why(std::move(completion.why)) {}

std::uint32_t PyCompletion::first_failed() const {
  if (done.code != Code::kOk) return 0;
  const char* const bits = failed.c_str();
  for (std::uint32_t key = 0; key < done.keys && done.failed_keys > 0; ++key) {
    if ((static_cast<unsigned>(bits[key / 8]) >> (key % 8) & 1U) != 0) return key;
  }
  return done.keys;
}

nb::object PyView::slab(std::int64_t key, std::int64_t layer) const {
  if (open_->view == nullptr) raise_invalid("the view is closed");
  const auto bytes = key < 0
                         ? std::span<const std::byte>()
                         : open_->view->slab(static_cast<std::size_t>(key), u16_of(layer, "there is no such layer"));
  if (bytes.empty()) return nb::none();
  const nb::object exporter = nb::cast(PySlab{.open = open_, .bytes = bytes});
  return nb::steal(PyMemoryView_FromObject(exporter.ptr()));
}

bool PyView::verify(std::int64_t key, std::int64_t layer) const {
  if (open_->view == nullptr) raise_invalid("the view is closed");
  const std::uint16_t number = u16_of(layer, "there is no such layer");
  if (key < 0) return false;
  const std::shared_ptr<Open> open = open_;  // whoever closes or drops the view meanwhile
  ++open->exported;
  bool right = false;
  {
    const nb::gil_scoped_release others;
    right = open->view->verify(static_cast<std::size_t>(key), number);
  }
  --open->exported;
  return right;
}

void PyView::close() {
  if (open_->exported > 0) {
    PyErr_SetString(PyExc_BufferError, "memoryviews of its slabs exist: release them first");
    throw nb::python_error();
  }
  open_->view.reset();  // whoever still has an exporter, which memoryview.obj gives away, gets nothing more from it
}

int PySlab::get_buffer(PyObject* self, Py_buffer* buffer, int flags) noexcept {
  const PySlab& slab = *nb::inst_ptr<PySlab>(nb::handle(self));
  if (slab.open->view == nullptr) {
    buffer->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "the view is closed");
    return -1;
  }
  // Refuses PyBUF_WRITABLE. It only writes to memory that is not read-only.
  const int filled = PyBuffer_FillInfo(buffer, self, const_cast<std::byte*>(slab.bytes.data()),
                                       static_cast<Py_ssize_t>(slab.bytes.size()), 1, flags);
  if (filled == 0) ++slab.open->exported;
  return filled;
}

void PySlab::release_buffer(PyObject* self, Py_buffer*) noexcept {
  --nb::inst_ptr<PySlab>(nb::handle(self))->open->exported;
}

PyClient::PyClient(const std::string& depot, bool attach_only, bool require_connection, std::int64_t connect_timeout_ms,
                   std::int64_t ops_max, std::int64_t breaker_failures, std::int64_t breaker_probe_ms, bool verify,
                   const std::string& name, bool shared_memory, const std::string& token_file, const PyTlsFiles& tls) {
  OpenOptions options;
  options.attach_only = attach_only;
  options.client.require_connection = require_connection;
  options.client.connect_timeout = timeout_of(connect_timeout_ms);
  options.client.ops_max = u32_of(ops_max, "ops_max must be 1 to 32768");
  options.client.breaker_failures = u32_of(breaker_failures, "breaker_failures must be at least 1");
  options.client.breaker_probe = timeout_of(breaker_probe_ms);
  options.client.verify = verify;
  options.client.shared_memory = shared_memory;
  options.client.name = name;
  options.client.token_file = token_file;
  options.client.tls_ca = tls.ca;
  options.client.tls_cert = tls.cert;
  options.client.tls_key = tls.key;
  options.client.tls_server_name = tls.server_name;
  auto open = std::make_shared<Open>();
  options.on_warning = [warnings = open->warnings](std::string_view line) { warnings->add(line); };
  std::string why;
  auto opened = [&] {
    const nb::gil_scoped_release released;
    return open_any(depot, options, &why);
  }();
  if (!opened) raise(opened.error().code, why);
  open->client = std::move(*opened);
  open_ = std::move(open);
}

void PyClient::Warnings::add(std::string_view line) {
  const std::lock_guard lock(mutex);
  lines.emplace_back(line);
  if (lines.size() > kWarningsMax) lines.pop_front();
}

std::vector<std::string> PyClient::take_warnings() const {
  const auto self = open();
  const std::lock_guard lock(self->warnings->mutex);
  std::vector<std::string> lines(self->warnings->lines.begin(), self->warnings->lines.end());
  self->warnings->lines.clear();
  return lines;
}

PyClient::Open::~Open() {
  {
    const nb::gil_scoped_release released;
    client.reset();
  }
  for (auto& [region, view] : buffers) PyBuffer_Release(&view);
}

void PyClient::close() { open_.reset(); }

std::shared_ptr<PyClient::Open> PyClient::open() const {
  if (open_ == nullptr) raise_invalid("the client is closed");
  return open_;
}

std::uint32_t PyClient::register_buffer(nb::handle buffer) {
  const auto self = open();
  Py_buffer view{};
  if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
  const auto region = self->client->register_region(view.buf, static_cast<std::size_t>(view.len));
  if (!region) PyBuffer_Release(&view);
  const RegionId id = take(region);
  const std::lock_guard lock(self->mutex);
  self->buffers.emplace(id.value, view);
  return id.value;
}

std::uint32_t PyClient::register_address(std::uint64_t address, std::uint64_t nbytes, nb::object owner) {
  const auto self = open();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address is what Python has
  const RegionId id = take(self->client->register_region(reinterpret_cast<void*>(address), nbytes));
  const std::lock_guard lock(self->mutex);
  self->owners.emplace(id.value, std::move(owner));
  return id.value;
}

void PyClient::unregister(std::uint32_t region) {
  const auto self = open();
  take(self->client->unregister_region(RegionId{region}));
  std::map<std::uint32_t, Py_buffer>::node_type view;
  std::map<std::uint32_t, nb::object>::node_type owner;  // ends after the lock: its end may run Python code
  {
    const std::lock_guard lock(self->mutex);
    view = self->buffers.extract(region);
    owner = self->owners.extract(region);
  }
  if (!view.empty()) PyBuffer_Release(&view.mapped());
}

std::uint32_t PyClient::open_namespace(const std::string& tenant, const nb::bytes& fingerprint, nb::handle groups) {
  Namespace ns;
  ns.tenant = tenant;
  ns.fingerprint.assign(fingerprint.c_str(), fingerprint.size());
  ns.groups = groups_of(groups);
  return take(open()->client->open_namespace(ns));
}

void PyClient::close_namespace(std::uint32_t ns) { take(open()->client->close_namespace(ns)); }

OpId PyClient::match(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, bool native, nb::handle shards,
                     nb::handle groups, std::int64_t lease_ms, bool promote, std::int64_t total_ms,
                     std::int64_t progress_ms) {
  const std::vector<std::uint16_t> shard_numbers = numbers_of(shards);
  const std::vector<std::uint16_t> group_numbers = numbers_of(groups);
  return take(open()->client->match_prefix({.ns = ns,
                                            .shards = shard_numbers,
                                            .groups = group_numbers,
                                            .keys = keys_of(keys, key_bytes, native),
                                            .lease_ms = u32_of(lease_ms, "lease_ms is a number of milliseconds"),
                                            .promote = promote,
                                            .deadline = deadline_of(total_ms, progress_ms)}));
}

OpId PyClient::multiget(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, std::uint32_t region,
                        nb::handle layer_offsets, nb::handle block_offsets, nb::handle runs, bool native,
                        std::int64_t shard, std::int64_t group, std::int64_t layer_first, std::int64_t layer_count,
                        bool stop_at_first_failure, std::int64_t total_ms, std::int64_t progress_ms) {
  const std::vector<std::uint64_t> layers = offsets_of(layer_offsets);
  const std::vector<std::uint64_t> blocks = offsets_of(block_offsets);
  const std::vector<Run> pieces = runs_of(runs);
  constexpr char kLayer[] = "layer_first and layer_count are numbers from 0 to 65535";
  return take(open()->client->multiget(
      {.ns = ns,
       .shard = u16_of(shard, "a shard is a number from 0 to 65535"),
       .group = u16_of(group, "a group is a number from 0 to 65535"),
       .layer_first = u16_of(layer_first, kLayer),
       .layer_count = u16_of(layer_count, kLayer),
       .keys = keys_of(keys, key_bytes, native),
       .dest = {.region = {region}, .layer_offset = layers, .block_offset = blocks, .runs = pieces},
       .stop_at_first_failure = stop_at_first_failure,
       .deadline = deadline_of(total_ms, progress_ms)}));
}

OpId PyClient::borrow(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, bool native, std::int64_t shard,
                      std::int64_t group, std::int64_t layer_first, std::int64_t layer_count, bool verify,
                      std::int64_t hold_ms, bool stop_at_first_failure, std::int64_t total_ms,
                      std::int64_t progress_ms) {
  constexpr char kLayer[] = "layer_first and layer_count are numbers from 0 to 65535";
  return take(
      open()->client->borrow({.ns = ns,
                              .shard = u16_of(shard, "a shard is a number from 0 to 65535"),
                              .group = u16_of(group, "a group is a number from 0 to 65535"),
                              .layer_first = u16_of(layer_first, kLayer),
                              .layer_count = u16_of(layer_count, kLayer),
                              .keys = keys_of(keys, key_bytes, native),
                              .verify = verify,
                              .hold = std::chrono::milliseconds(u32_of(hold_ms, "hold must be 1 ms to 10 minutes")),
                              .stop_at_first_failure = stop_at_first_failure,
                              .deadline = deadline_of(total_ms, progress_ms)}));
}

PyView PyClient::take_view(OpId op) { return PyView(take(open()->client->take_view(op))); }

OpId PyClient::multiput(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, std::uint32_t region,
                        nb::handle layer_offsets, nb::handle block_offsets, nb::handle runs, bool native,
                        std::int64_t shard, std::int64_t group, const std::string& ack, bool whole,
                        std::int64_t total_ms, std::int64_t progress_ms) {
  const std::vector<std::uint64_t> layers = offsets_of(layer_offsets);
  const std::vector<std::uint64_t> blocks = offsets_of(block_offsets);
  const std::vector<Run> pieces = runs_of(runs);
  return take(open()->client->multiput(
      {.ns = ns,
       .shard = u16_of(shard, "a shard is a number from 0 to 65535"),
       .group = u16_of(group, "a group is a number from 0 to 65535"),
       .keys = keys_of(keys, key_bytes, native),
       .src = {.region = {region}, .layer_offset = layers, .block_offset = blocks, .runs = pieces},
       .ack = ack_of(ack),
       .whole = whole,
       .deadline = deadline_of(total_ms, progress_ms)}));
}

void PyClient::put_layer(OpId op, std::int64_t layer) {
  take(open()->client->put_layer(op, u16_of(layer, "the operation has no such layer")));
}

OpId PyClient::remove(std::uint32_t ns, const nb::bytes& keys, std::int64_t key_bytes, bool native, nb::handle shards,
                      nb::handle groups, std::int64_t total_ms) {
  const std::vector<std::uint16_t> shard_numbers = numbers_of(shards);
  const std::vector<std::uint16_t> group_numbers = numbers_of(groups);
  return take(open()->client->remove(ns, shard_numbers, group_numbers, keys_of(keys, key_bytes, native),
                                     deadline_of(total_ms, 0)));
}

void PyClient::unpin(LeaseId lease) { take(open()->client->unpin(lease)); }

void PyClient::open_breaker() { take(open()->client->open_breaker()); }

void PyClient::reconnect(std::int64_t timeout_ms) {
  const auto self = open();
  constexpr std::int64_t kHourMs = 3'600'000;  // far longer, and the time that it ends at would overflow
  const std::chrono::milliseconds timeout(std::clamp<std::int64_t>(timeout_ms, 0, kHourMs));
  const Status connected = [&] {
    const nb::gil_scoped_release released;
    return self->client->reconnect(timeout);
  }();
  take(connected);
}

void PyClient::cancel(OpId op) {
  const auto self = open();
  const Status cancelled = [&] {
    const nb::gil_scoped_release released;
    return self->client->cancel(op);
  }();
  take(cancelled);
}

void PyClient::release(OpId op) {
  const auto self = open();
  const nb::gil_scoped_release released;
  self->client->release(op);
}

std::vector<PyCompletion> PyClient::poll(std::int64_t max) {
  auto done = open()->client->poll_owned(static_cast<std::size_t>(std::max<std::int64_t>(max, 0)));
  return {std::move_iterator(done.begin()), std::move_iterator(done.end())};
}

std::optional<PyCompletion> PyClient::wait(OpId op, std::int64_t layer, std::int64_t timeout_ms) {
  const auto self = open();
  const std::uint16_t which = layer == -1 ? kWholeOp : u16_of(layer, "the operation has no such layer");
  const auto timeout = timeout_of(timeout_ms);
  auto done = self->client->wait_owned(op, which, std::chrono::milliseconds(0));  // known already in most cases
  if (!done && done.error().code == Code::kTimeout && timeout.count() > 0) {
    const nb::gil_scoped_release released;
    done = self->client->wait_owned(op, which, timeout);
  }
  if (!done && done.error().code == Code::kTimeout) return std::nullopt;
  return PyCompletion(take(std::move(done)));
}

int PyClient::event_fd() const { return open()->client->event_fd(); }

nb::dict PyClient::stats() const {
  const ClientStats stats = open()->client->stats();
  nb::dict out;
  out["requests"] = stats.requests;
  out["completed"] = stats.completed;
  out["failed"] = stats.failed;
  out["timeouts"] = stats.timeouts;
  out["cancelled"] = stats.cancelled;
  out["busy"] = stats.busy;
  out["corrupt_slabs"] = stats.corrupt_slabs;
  out["bytes_loaded"] = stats.bytes_loaded;
  out["bytes_shared"] = stats.bytes_shared;
  out["bytes_borrowed"] = stats.bytes_borrowed;
  out["views_copied"] = stats.views_copied;
  out["bytes_stored"] = stats.bytes_stored;
  out["messages_sent"] = stats.messages_sent;
  out["messages_received"] = stats.messages_received;
  out["send_calls"] = stats.send_calls;
  out["recv_calls"] = stats.recv_calls;
  out["reconnects"] = stats.reconnects;
  out["breaker_opened"] = stats.breaker_opened;
  out["connected"] = stats.connected;
  out["breaker_open"] = stats.breaker_open;
  out["last_error"] = nb::str(stats.last_error.c_str());
  out["last_refusal"] = nb::str(stats.last_refusal.c_str());
  return out;
}

nb::object PyClient::depot_stats(std::int64_t timeout_ms) {
  const auto self = open();
  const auto timeout = timeout_of(timeout_ms);
  auto text = [&] {
    const nb::gil_scoped_release released;
    return self->client->depot_stats(timeout);
  }();
  const std::string json = take(std::move(text));
  return nb::module_::import_("json").attr("loads")(nb::str(json.c_str(), json.size()));
}

}  // namespace kvd::python
