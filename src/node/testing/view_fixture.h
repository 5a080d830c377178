// ViewTest: a client that speaks raw protocol and reads in memory what its GETs say lies there. For tests of what the
// pool lends and of windows.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "net/shared_memory.h"
#include "node/testing/rig.h"

namespace kvd::node {

// The views of one GET: what their slabs hold now, in the client's mapping.
struct Lent {
  std::vector<std::uint64_t> views;
  std::map<std::pair<std::uint32_t, std::size_t>, Bytes> slabs;  // by (layer, key)
  std::size_t failed = 0;
};

// Tests with one client that has memory to read from, its node's pool or a window.
class ViewTest : public testing::Test {
 protected:
  void start_with(NodeOptions options, bool flash = false) {
    client.reset();
    rig = std::make_unique<Rig>(std::move(options), flash);
    connect();
  }
  void connect() {
    client = rig->connect(true, wire::kFeatureSharedMemory);
    ASSERT_EQ(client->features(), wire::kFeatureSharedMemory);
    const net::Received given = client->next();
    const auto size = wire::decode<wire::Memory>(given.header, given.meta);
    ASSERT_TRUE(given.header.opcode == wire::Opcode::kMemory && size.has_value());
    file = client->peer().take_descriptor();
    auto mapped = net::SharedMemory::map(io::PrivateFd(io::UniqueFd(::dup(file.get()))), size->bytes);
    ASSERT_TRUE(mapped.has_value()) << mapped.error().what;
    memory = std::move(*mapped);
    ns = client->open(records.ns());
  }
  void ask(std::size_t first, std::size_t count, std::uint32_t deadline_ms = 0) {
    client->send(Records::get(client->new_id(), ns, first, count, false, 0, 0, deadline_ms));
  }
  Lent get(std::size_t first, std::size_t count, std::uint32_t deadline_ms = 0) {
    ask(first, count, deadline_ms);
    return collect(count);
  }
  Lent collect(std::size_t count) {
    Lent lent;
    for (bool last = false; !last;) {
      const net::Received m = client->next();
      last = m.header.last();
      EXPECT_EQ(m.header.opcode, wire::Opcode::kGetView);
      if (m.header.opcode != wire::Opcode::kGetView) break;
      const auto view = wire::decode<wire::GetView>(m.header, m.meta);
      EXPECT_TRUE(view.has_value() && m.payload.empty());
      if (!view) break;
      EXPECT_TRUE(wire::check_view_places(m.header, *view, records.slab_bytes(), memory->bytes().size()).has_value());
      lent.views.push_back(view->view);
      lent.failed = wire::count_bits(view->failed);
      take_slabs(m.header, *view, count, lent);
    }
    return lent;
  }
  void take_slabs(const wire::Header& header, const wire::GetView& view, std::size_t count, Lent& lent) const {
    for (std::uint32_t i = 0; i < header.layer_count; ++i) {
      std::size_t living = 0;
      for (std::size_t key = 0; key < count; ++key) {
        if (wire::bit(view.failed, key)) continue;
        const std::uint64_t at = view.offsets[living++] + std::uint64_t{i} * view.slab_stride;
        lent.slabs[{header.layer_first + i, key}] = memory->bytes().subspan(at, records.slab_bytes());
      }
    }
  }
  void expect_records(const Lent& lent, std::size_t first, std::size_t count) const {
    EXPECT_EQ(lent.slabs.size(), count * records.layers());
    for (const auto& [place, bytes] : lent.slabs) {
      EXPECT_TRUE(std::ranges::equal(bytes, records.slab(first + place.second, place.first)));
    }
  }
  void release(const std::vector<std::uint64_t>& views) {
    client->send(wire::frame({.request_id = 1}, wire::Release{wire::U64View(std::span<const std::uint64_t>(views))}));
  }
  // Requires flash.
  void expect_records_behind_a_restart() {
    ASSERT_TRUE(rig->put_all(records, 0, 4, AckLevel::kWritten));
    client.reset();
    rig->restart();
    connect();
    const Lent lent = get(0, 4);
    expect_records(lent, 0, 4);
    release(lent.views);
    EXPECT_TRUE(nothing_held());
  }
  bool nothing_held() {
    return rig->until([&] {
      return rig->stat("node", "views") == 0 && rig->stat("node", "view_bytes") == 0 &&
             rig->stat("node", "pinned_bytes") == 0 && rig->stat("node", "op_keys") == 0 &&
             rig->stat("store", "pool_bytes_pinned") == 0;
    });
  }

  Records records{small_namespace()};
  std::unique_ptr<Rig> rig;
  std::unique_ptr<RawClient> client;
  io::PrivateFd file;
  std::unique_ptr<net::SharedMemory> memory;
  std::uint32_t ns = 0;
};

}  // namespace kvd::node
