// Reads stored KV cache where it lies in the depot's memory, without a copy.
//
//   borrow "file:///tmp/kv?pool=64MiB&flash=256MiB"     or tcp://127.0.0.1:7070
//
// Error handling is reduced to "say it and stop", as in store_and_load.cc, which explains the rest.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kvdepot/embed.h"

namespace {

constexpr std::uint32_t kSlabBytes = 64 * 1024;
constexpr kvd::Deadline kDeadline{.total = std::chrono::seconds(20)};

template <class T>
T must(kvd::Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s: %s\n", kvd::code_name(result.error().code).data(), result.error().what);
  std::exit(1);
}

// One record of one layer.
void store(kvd::Client& client, kvd::NamespaceId ns, const kvd::KeyList& keys, std::vector<std::byte>& slab) {
  const std::uint64_t zero = 0;
  const kvd::RegionId region = must(client.register_region(slab.data(), slab.size()));
  const kvd::OpId put =
      must(client.multiput({.ns = ns,
                            .keys = keys,
                            .src = {.region = region, .layer_offset = {&zero, 1}, .block_offset = {&zero, 1}},
                            .deadline = kDeadline}));
  must(client.wait(put, kvd::kWholeOp, std::chrono::seconds(30)));
  client.release(put);
  static_cast<void>(client.unregister_region(region));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DEPOT\n", argv[0]);
    return 2;
  }
  const auto client = must(kvd::open_any(argv[1], {.client = {.require_connection = true}}));
  kvd::Namespace space;
  space.fingerprint = "example-model, bf16, layout 1, borrowed";
  space.groups.push_back({.layers = 1, .slab_bytes = kSlabBytes, .block_tokens = 16, .order = "LBHNC"});
  const kvd::NamespaceId ns = must(client->open_namespace(space));
  const std::uint64_t key = 1;
  const kvd::KeyList keys{.bytes = std::as_bytes(std::span(&key, 1)), .key_bytes = 8};
  std::vector<std::byte> slab(kSlabBytes, std::byte{7});
  store(*client, ns, keys, slab);

  // Within `hold` the depot keeps the memory for us; a view that lives longer turns into a copy.
  const kvd::OpId op =
      must(client->borrow({.ns = ns, .keys = keys, .hold = std::chrono::seconds(5), .deadline = kDeadline}));
  const kvd::Completion done = must(client->wait(op, kvd::kWholeOp, std::chrono::seconds(30)));
  if (done.code != kvd::Code::kOk || done.failed_keys > 0) return 1;  // a miss
  const std::unique_ptr<kvd::View> view = must(client->take_view(op));
  client->release(op);

  const std::span<const std::byte> bytes = view->slab(0, 0);  // of key 0 in layer 0, read-only
  const bool right = std::ranges::equal(bytes, slab);
  std::printf("%zu bytes, %s, %s\n", bytes.size(), view->borrowed() ? "in the depot's memory" : "copied",
              right ? "as stored" : "WRONG");
  return right ? 0 : 1;  // the end of `view` gives the memory back
}
