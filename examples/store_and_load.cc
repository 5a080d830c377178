// Stores the KV cache of one prompt layer by layer, as an engine computes it, and loads it back.
//
//   store_and_load "file:///tmp/kv?pool=64MiB&flash=256MiB"     or tcp://127.0.0.1:7070
//
// Error handling is reduced to "say it and stop"; an engine would recompute instead: every failure of a depot is a
// miss.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "kvdepot/embed.h"

namespace {

constexpr std::uint16_t kLayers = 4;
constexpr std::uint32_t kSlabBytes = 64 * 1024;  // one layer of one block of tokens, K and V
constexpr std::size_t kBlocks = 8;

template <class T>
T must(kvd::Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s: %s\n", kvd::code_name(result.error().code).data(), result.error().what);
  std::exit(1);
}

void must(const kvd::Status& status) {
  if (!status) must(kvd::Result<int>(kvd::fail(status.error())));
}

// Waits for the end of an operation and gives its memory back.
kvd::Completion finish(kvd::Client& client, kvd::OpId op) {
  const kvd::Completion done = must(client.wait(op, kvd::kWholeOp, std::chrono::seconds(30)));
  client.release(op);
  if (done.code == kvd::Code::kOk) return done;
  std::fprintf(stderr, "the operation ended with %s\n", kvd::code_name(done.code).data());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DEPOT\n", argv[0]);
    return 2;
  }
  const auto client = must(kvd::open_any(argv[1], {.client = {.require_connection = true}}));

  // Everything that the bytes depend on makes the namespace: another model, layout or data type must not match.
  kvd::Namespace ns;
  ns.fingerprint = "example-model, bf16, layout 1";
  ns.groups.push_back({.layers = kLayers, .slab_bytes = kSlabBytes, .block_tokens = 16, .order = "LBHNC"});
  const kvd::NamespaceId ns_id = must(client->open_namespace(ns));

  // The engine's KV memory: [layer][block] slabs. It is registered once; operations name it by number.
  std::vector<std::byte> kv(std::size_t{kLayers} * kBlocks * kSlabBytes);
  const kvd::RegionId region = must(client->register_region(kv.data(), kv.size()));
  std::vector<std::uint64_t> layer_offset(kLayers);
  std::vector<std::uint64_t> block_offset(kBlocks);
  for (std::size_t i = 0; i < kLayers; ++i) layer_offset[i] = i * kBlocks * kSlabBytes;
  for (std::size_t i = 0; i < kBlocks; ++i) block_offset[i] = i * kSlabBytes;
  const kvd::Placement place{.region = region, .layer_offset = layer_offset, .block_offset = block_offset};

  // Keys are the engine's own hashes of the prefix up to each block; here simply 1, 2, 3, ...
  std::vector<std::uint64_t> hashes(kBlocks);
  std::iota(hashes.begin(), hashes.end(), 1);
  const kvd::KeyList keys{.bytes = std::as_bytes(std::span(hashes)), .key_bytes = 8};

  // Store behind the computation: each layer is released as soon as it is final.
  const kvd::Deadline deadline{.total = std::chrono::seconds(20)};
  const kvd::OpId put = must(client->multiput(
      {.ns = ns_id, .keys = keys, .src = place, .ack = kvd::AckLevel::kPooled, .whole = false, .deadline = deadline}));
  for (std::uint16_t layer = 0; layer < kLayers; ++layer) {
    std::memset(kv.data() + layer_offset[layer], layer + 1, kBlocks * kSlabBytes);  // "compute"
    must(client->put_layer(put, layer));
  }
  finish(*client, put);

  // Another engine asks how much of the prompt is there ...
  const std::uint16_t zero = 0;
  const kvd::OpId match = must(client->match_prefix(
      {.ns = ns_id, .shards = {&zero, 1}, .groups = {&zero, 1}, .keys = keys, .deadline = deadline}));
  const std::uint32_t blocks = finish(*client, match).prefix_blocks;

  // ... and loads it: layer l is used while the later ones are still on the way.
  std::memset(kv.data(), 0, kv.size());
  const kvd::OpId get = must(client->multiget({.ns = ns_id, .keys = keys, .dest = place, .deadline = deadline}));
  for (std::uint16_t layer = 0; layer < kLayers; ++layer) {
    const kvd::Completion done = must(client->wait(get, layer, std::chrono::seconds(30)));
    const bool right = kv[layer_offset[layer]] == std::byte(layer + 1);
    std::printf("layer %u: %u of %u blocks, %s\n", layer, done.keys - done.failed_keys, done.keys,
                right ? "as stored" : "WRONG");
    if (!right) return 1;
  }
  finish(*client, get);
  std::printf("%u blocks matched, %zu bytes loaded\n", blocks, static_cast<std::size_t>(client->stats().bytes_loaded));
  return blocks == kBlocks ? 0 : 1;
}
