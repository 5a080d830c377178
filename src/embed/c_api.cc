// The C API: thin translations to the C++ client. Nothing may throw into C, so running out of memory becomes no_space.
#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>

#include "kvdepot/embed.h"
#include "kvdepot/kvdepot.h"

struct kvd_client {
  std::unique_ptr<kvd::Client> client;
};

struct kvd_view {
  std::unique_ptr<kvd::View> view;
};

namespace {

using kvd::Code;
using std::chrono::milliseconds;

static_assert(KVD_CANCELLED == static_cast<int>(Code::kCancelled) && KVD_INVALID == static_cast<int>(Code::kInvalid));

kvd_code report(const kvd::Error& why, kvd_error* error) {
  const auto code = static_cast<kvd_code>(why.code);
  if (error != nullptr) *error = {.code = code, .sys_errno = why.sys_errno, .what = why.what};
  return code;
}

kvd_code refuse(const char* what, kvd_error* error) { return report({Code::kInvalid, 0, what}, error); }

// Runs `call`, which returns a Result; hands its value to `use`.
template <class Call, class Use>
kvd_code run(kvd_error* error, Call&& call, Use&& use) noexcept {
  try {
    auto result = call();
    if (!result) return report(result.error(), error);
    use(result);
    return KVD_OK;
  } catch (const std::bad_alloc&) {
    return report({Code::kNoSpace, 0, "out of memory"}, error);
  } catch (...) {
    return report({Code::kIo, 0, "the system refused a resource"}, error);
  }
}

template <class Call>
kvd_code run(kvd_error* error, Call&& call) noexcept {
  return run(error, call, [](auto&) {});
}

// `out` receives the value.
template <class Call, class Out>
kvd_code run_into(Out* out, kvd_error* error, Call&& call) noexcept {
  if (out == nullptr) return refuse("there is no place for the result", error);
  return run(error, call, [&](auto& result) { *out = *result; });
}

std::span<const std::uint16_t> numbers(const std::uint16_t* values, std::size_t count) {
  return values == nullptr ? std::span<const std::uint16_t>() : std::span(values, count);
}

kvd::KeyList key_list(const kvd_keys& keys) {
  const auto* bytes = static_cast<const std::byte*>(keys.bytes);
  return {.bytes = std::span(bytes, bytes == nullptr ? 0 : keys.bytes_len),
          .key_bytes = keys.key_bytes,
          .native = keys.native != 0};
}

kvd::Deadline deadline_of(const kvd_deadline& deadline) {
  return {.total = milliseconds(deadline.total_ms), .progress = milliseconds(deadline.progress_ms)};
}

// A placement with the runs in the C++ type; the rest is borrowed.
struct PlacementArgument {
  std::vector<kvd::Run> runs;
  kvd::Placement placement;

  explicit PlacementArgument(const kvd_placement& c) {
    for (std::size_t i = 0; c.runs != nullptr && i < c.run_count; ++i) {
      const kvd_run& run = c.runs[i];
      runs.push_back({.offset = run.offset, .stride = run.stride, .count = run.count, .length = run.length});
    }
    placement = {.region = {c.region},
                 .layer_offset = std::span(c.layer_offset, c.layer_offset == nullptr ? 0 : c.layer_count),
                 .block_offset = std::span(c.block_offset, c.block_offset == nullptr ? 0 : c.block_count),
                 .runs = runs};
  }
};

kvd_completion to_c(const kvd::Completion& done) {
  return {.op = done.op,
          .layer = done.layer,
          .code = static_cast<kvd_code>(done.code),
          .keys = done.keys,
          .failed_keys = done.failed_keys,
          .failed = done.failed,
          .prefix_blocks = done.prefix_blocks,
          .flash_blocks = done.flash_blocks,
          .lease = done.lease,
          .removed = done.removed,
          .took_ns = static_cast<std::uint64_t>(done.took.count()),
          .why = done.why,
          .failed_code = static_cast<kvd_code>(done.failed_code)};
}

kvd::Namespace make_namespace(const char* tenant, const void* fingerprint, std::size_t fingerprint_bytes,
                              const kvd_group* groups, std::size_t group_count) {
  kvd::Namespace ns;
  if (tenant != nullptr) ns.tenant = tenant;
  if (fingerprint != nullptr) ns.fingerprint.assign(static_cast<const char*>(fingerprint), fingerprint_bytes);
  for (std::size_t i = 0; groups != nullptr && i < group_count; ++i) {
    const kvd_group& group = groups[i];
    ns.groups.push_back({.group = group.group,
                         .layers = group.layers,
                         .slab_bytes = group.slab_bytes,
                         .parts = group.parts,
                         .block_tokens = group.block_tokens,
                         .rule = static_cast<kvd::HitRule>(group.rule),
                         .hit_blocks = group.hit_blocks,
                         .order = group.order == nullptr ? "" : group.order});
  }
  return ns;
}

constexpr char kNoClient[] = "there is no client";

thread_local std::string open_failure;  // what kvd_open() said last on this thread

}  // namespace

extern "C" {

const char* kvd_code_name(kvd_code code) { return kvd::code_name(static_cast<Code>(code)).data(); }

kvd_code kvd_open(const char* depot, const kvd_options* options, kvd_client** client, kvd_error* error) {
  if (depot == nullptr || client == nullptr) return refuse("an address and a place for the client are needed", error);
  constexpr kvd_options kDefaults = KVD_OPTIONS_INIT;
  const kvd_options& given = options == nullptr ? kDefaults : *options;
  const auto open = [&] {
    kvd::OpenOptions any;
    any.attach_only = given.attach_only != 0;
    any.client.connect_timeout = milliseconds(given.connect_timeout_ms);
    any.client.require_connection = given.require_connection != 0;
    any.client.ops_max = given.ops_max;
    any.client.breaker_failures = given.breaker_failures;
    any.client.breaker_probe = milliseconds(given.breaker_probe_ms);
    any.client.shared_memory = given.no_shared_memory == 0;
    if (given.name != nullptr) any.client.name = given.name;
    if (given.token_file != nullptr) any.client.token_file = given.token_file;
    if (given.tls_ca != nullptr) any.client.tls_ca = given.tls_ca;
    if (given.tls_cert != nullptr) any.client.tls_cert = given.tls_cert;
    if (given.tls_key != nullptr) any.client.tls_key = given.tls_key;
    if (given.tls_server_name != nullptr) any.client.tls_server_name = given.tls_server_name;
    if (given.on_warning != nullptr) {
      any.on_warning = [call = given.on_warning, user = given.on_warning_user](std::string_view line) {
        call(user, std::string(line).c_str());
      };
    }
    return kvd::open_any(depot, any, &open_failure);
  };
  open_failure.clear();
  const kvd_code code = run(error, open, [&](auto& opened) { *client = new kvd_client{std::move(*opened)}; });
  if (code != KVD_OK && error != nullptr && !open_failure.empty()) {
    error->what = open_failure.c_str();
    error->sys_errno = 0;  // the text has it
  }
  return code;
}

void kvd_close(kvd_client* client) { delete client; }

kvd_code kvd_register(kvd_client* client, void* base, size_t bytes, uint32_t* region, kvd_error* error) {
  if (client == nullptr || region == nullptr) return refuse(kNoClient, error);
  return run(
      error, [&] { return client->client->register_region(base, bytes); },
      [&](auto& registered) { *region = registered->value; });
}

kvd_code kvd_unregister(kvd_client* client, uint32_t region, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run(error, [&] { return client->client->unregister_region({region}); });
}

kvd_code kvd_open_namespace(kvd_client* client, const char* tenant, const void* fingerprint, size_t fingerprint_bytes,
                            const kvd_group* groups, size_t group_count, uint32_t* ns, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run_into(ns, error, [&] {
    return client->client->open_namespace(make_namespace(tenant, fingerprint, fingerprint_bytes, groups, group_count));
  });
}

kvd_code kvd_close_namespace(kvd_client* client, uint32_t ns, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run(error, [&] { return client->client->close_namespace(ns); });
}

kvd_code kvd_match(kvd_client* client, uint32_t ns, const uint16_t* shards, size_t shard_count, const uint16_t* groups,
                   size_t group_count, kvd_keys keys, uint32_t lease_ms, int promote, kvd_deadline deadline, kvd_op* op,
                   kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run_into(op, error, [&] {
    return client->client->match_prefix({.ns = ns,
                                         .shards = numbers(shards, shard_count),
                                         .groups = numbers(groups, group_count),
                                         .keys = key_list(keys),
                                         .lease_ms = lease_ms,
                                         .promote = promote != 0,
                                         .deadline = deadline_of(deadline)});
  });
}

kvd_code kvd_multiget(kvd_client* client, uint32_t ns, uint16_t shard, uint16_t group, uint16_t layer_first,
                      uint16_t layer_count, kvd_keys keys, const kvd_placement* dest, int stop_at_first_failure,
                      kvd_deadline deadline, kvd_op* op, kvd_error* error) {
  if (client == nullptr || dest == nullptr) return refuse(kNoClient, error);
  return run_into(op, error, [&] {
    const PlacementArgument argument(*dest);
    return client->client->multiget({.ns = ns,
                                     .shard = shard,
                                     .group = group,
                                     .layer_first = layer_first,
                                     .layer_count = layer_count,
                                     .keys = key_list(keys),
                                     .dest = argument.placement,
                                     .stop_at_first_failure = stop_at_first_failure != 0,
                                     .deadline = deadline_of(deadline)});
  });
}

kvd_code kvd_borrow(kvd_client* client, uint32_t ns, uint16_t shard, uint16_t group, uint16_t layer_first,
                    uint16_t layer_count, kvd_keys keys, int verify, uint32_t hold_ms, int stop_at_first_failure,
                    kvd_deadline deadline, kvd_op* op, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run_into(op, error, [&] {
    return client->client->borrow({.ns = ns,
                                   .shard = shard,
                                   .group = group,
                                   .layer_first = layer_first,
                                   .layer_count = layer_count,
                                   .keys = key_list(keys),
                                   .verify = verify != 0,
                                   .hold = milliseconds(hold_ms),
                                   .stop_at_first_failure = stop_at_first_failure != 0,
                                   .deadline = deadline_of(deadline)});
  });
}

kvd_code kvd_take_view(kvd_client* client, kvd_op op, kvd_view** view, kvd_error* error) {
  if (client == nullptr || view == nullptr) return refuse(kNoClient, error);
  return run(
      error, [&] { return client->client->take_view(op); },
      [&](auto& taken) { *view = new kvd_view{std::move(*taken)}; });
}

const void* kvd_view_slab(const kvd_view* view, size_t key, uint16_t layer, size_t* bytes) {
  const auto slab = view == nullptr ? std::span<const std::byte>() : view->view->slab(key, layer);
  if (bytes != nullptr) *bytes = slab.size();
  return slab.empty() ? nullptr : slab.data();
}

int kvd_view_verify(const kvd_view* view, size_t key, uint16_t layer) {
  return view != nullptr && view->view->verify(key, layer) ? 1 : 0;
}

int kvd_view_borrowed(const kvd_view* view) { return view != nullptr && view->view->borrowed() ? 1 : 0; }

void kvd_view_close(kvd_view* view) { delete view; }

kvd_code kvd_multiput(kvd_client* client, uint32_t ns, uint16_t shard, uint16_t group, kvd_keys keys,
                      const kvd_placement* src, kvd_ack ack, int whole, kvd_deadline deadline, kvd_op* op,
                      kvd_error* error) {
  if (client == nullptr || src == nullptr) return refuse(kNoClient, error);
  if (ack < KVD_POOLED || ack > KVD_SYNCED) return refuse("no such acknowledgement level", error);
  return run_into(op, error, [&] {
    const PlacementArgument argument(*src);
    return client->client->multiput({.ns = ns,
                                     .shard = shard,
                                     .group = group,
                                     .keys = key_list(keys),
                                     .src = argument.placement,
                                     .ack = static_cast<kvd::AckLevel>(ack),
                                     .whole = whole != 0,
                                     .deadline = deadline_of(deadline)});
  });
}

kvd_code kvd_put_layer(kvd_client* client, kvd_op op, uint16_t layer, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run(error, [&] { return client->client->put_layer(op, layer); });
}

kvd_code kvd_remove(kvd_client* client, uint32_t ns, const uint16_t* shards, size_t shard_count, const uint16_t* groups,
                    size_t group_count, kvd_keys keys, kvd_deadline deadline, kvd_op* op, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run_into(op, error, [&] {
    return client->client->remove(ns, numbers(shards, shard_count), numbers(groups, group_count), key_list(keys),
                                  deadline_of(deadline));
  });
}

kvd_code kvd_unpin(kvd_client* client, uint64_t lease, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run(error, [&] { return client->client->unpin(lease); });
}

kvd_code kvd_open_breaker(kvd_client* client, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run(error, [&] { return client->client->open_breaker(); });
}

kvd_code kvd_reconnect(kvd_client* client, uint32_t timeout_ms, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run(error, [&] { return client->client->reconnect(milliseconds(timeout_ms)); });
}

kvd_code kvd_cancel(kvd_client* client, kvd_op op, kvd_error* error) {
  if (client == nullptr) return refuse(kNoClient, error);
  return run(error, [&] { return client->client->cancel(op); });
}

kvd_code kvd_wait(kvd_client* client, kvd_op op, uint16_t layer, uint32_t timeout_ms, kvd_completion* completion,
                  kvd_error* error) {
  if (client == nullptr || completion == nullptr) return refuse(kNoClient, error);
  return run(
      error, [&] { return client->client->wait(op, layer, milliseconds(timeout_ms)); },
      [&](auto& done) { *completion = to_c(*done); });
}

size_t kvd_poll(kvd_client* client, kvd_completion* completions, size_t max) {
  if (client == nullptr || completions == nullptr) return 0;
  std::array<kvd::Completion, 64> batch;
  size_t taken = 0;
  while (taken < max) {
    const size_t n = client->client->poll(std::span(batch).first(std::min(batch.size(), max - taken)));
    std::transform(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(n), completions + taken, to_c);
    taken += n;
    if (n < batch.size()) break;
  }
  return taken;
}

int kvd_event_fd(kvd_client* client) { return client == nullptr ? -1 : client->client->event_fd(); }

void kvd_release(kvd_client* client, kvd_op op) {
  if (client != nullptr) client->client->release(op);
}

kvd_code kvd_depot_stats(kvd_client* client, uint32_t timeout_ms, char* text, size_t text_bytes, kvd_error* error) {
  if (client == nullptr || text == nullptr) return refuse(kNoClient, error);
  const auto ask = [&]() -> kvd::Result<std::string> {
    auto stats = client->client->depot_stats(milliseconds(timeout_ms));
    if (stats && stats->size() >= text_bytes) {
      return kvd::fail(Code::kNoSpace, "the statistics are longer than their place");
    }
    return stats;
  };
  return run(error, ask, [&](auto& stats) { std::memcpy(text, stats->c_str(), stats->size() + 1); });
}

}  // extern "C"
