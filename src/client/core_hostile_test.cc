// A client and a depot that has gone mad: replies with wild fields and right CRCs, twice, in another order, cut, with
// other payload than announced. Whatever comes, each operation ends once and in time, what a get says is there has the
// right bytes, and the client works again when the depot does.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/random.h"
#include "client/testing/core_rig.h"
#include "wire/crc32c.h"

namespace kvd::client {
namespace {

constexpr Millis kTotal{200};

template <class T>
void put_field(std::vector<std::byte>& frame, std::size_t at, std::uint64_t value) {
  const T field = static_cast<T>(value);
  std::memcpy(frame.data() + at, &field, sizeof field);
}

// Puts wild things into whole messages of the depot, as they pass.
class MadDepot {
 public:
  explicit MadDepot(std::uint64_t seed) : random_(seed) {}

  std::vector<std::byte> rewrite(std::size_t link, Bytes bytes) {
    std::vector<std::byte>& in = in_[link];
    in.insert(in.end(), bytes.begin(), bytes.end());
    std::vector<std::byte> out;
    while (in.size() >= wire::kHeaderBytes) {
      const Result<wire::Header> header = wire::decode_header(in);
      if (!header || in.size() < wire::kHeaderBytes + header->body_bytes) break;
      const auto end = in.begin() + static_cast<std::ptrdiff_t>(wire::kHeaderBytes + header->body_bytes);
      std::vector<std::byte> message(in.begin(), end);
      in.erase(in.begin(), end);
      if (mad) rage(message, *header);
      if (mad && random_.chance(1, 24)) kept_ = message;
      out.insert(out.end(), message.begin(), message.end());
      if (mad && random_.chance(1, 24)) out.insert(out.end(), kept_.begin(), kept_.end());
    }
    return out;
  }

  bool mad = false;
  std::uint64_t changed = 0;

 private:
  // A value at which something may end.
  std::uint64_t wild() {
    constexpr std::array<std::uint64_t, 8> kEdges = {0, 1, 2, 0x7F, 0xFF, 0xFFFF, 0x7FFF'FFFF, ~std::uint64_t{0}};
    return random_.chance(1, 2) ? kEdges[random_.below(kEdges.size())] : random_.below(16);
  }

  void rage(std::vector<std::byte>& message, const wire::Header& header) {
    // The depot behind it knows its own namespaces only.
    if (header.opcode == wire::Opcode::kOpenReply || !random_.chance(1, 4)) return;
    ++changed;
    static constexpr std::array<std::size_t, 9> kFields = {5, 6, 8, 16, 20, 22, 36, 40, 42};
    std::size_t meta_bytes = header.meta_bytes;
    for (std::uint64_t times = 1 + random_.below(2); times > 0; --times) {
      const std::size_t meta_at = wire::kHeaderBytes + (meta_bytes == 0 ? 0 : random_.below(meta_bytes));
      switch (random_.below(9)) {
        case 8: {  // nearly right
          const std::size_t at = std::array<std::size_t, 3>{36, 40, 42}[random_.below(3)];
          const auto was = load<std::uint16_t>(message.data() + at);
          put_field<std::uint16_t>(message, at, was + 1U - 2U * random_.below(2));
          break;
        }
        case 0: put_field<std::uint16_t>(message, kFields[random_.below(kFields.size())], wild()); break;
        case 1: put_field<std::uint8_t>(message, 4 + random_.below(4), wild()); break;
        case 2:
          if (meta_bytes > 0) message[meta_at] = static_cast<std::byte>(wild());
          break;
        case 3:
          if (meta_bytes >= 8)
            put_field<std::uint64_t>(message, wire::kHeaderBytes + random_.below(meta_bytes - 7), wild());
          break;
        case 4:  // another length of the structure
          if (meta_bytes > 0) {
            message.erase(message.begin() + static_cast<std::ptrdiff_t>(meta_at));
            --meta_bytes;
          }
          break;
        case 5: message.resize(message.size() + 1 + random_.below(5000), std::byte{0x5B}); break;
        case 6:
          message.resize(std::max(message.size() - std::min<std::size_t>(random_.below(5000), message.size()),
                                  wire::kHeaderBytes + meta_bytes));
          break;
        default:
          if (message.size() > wire::kHeaderBytes + meta_bytes) message.back() ^= std::byte{1};
      }
    }
    put_field<std::uint64_t>(message, 24, message.size() - wire::kHeaderBytes);
    put_field<std::uint32_t>(message, 32, meta_bytes);
    put_field<std::uint32_t>(message, 44, wire::crc32c(Bytes(message).subspan(wire::kHeaderBytes, meta_bytes)));
    put_field<std::uint32_t>(message, 60, wire::crc32c(Bytes(message).first(60)));
    if (random_.chance(1, 16)) message.resize(message.size() - random_.below(message.size()));  // out of step from here
  }

  Random random_;
  std::map<std::size_t, std::vector<std::byte>> in_;  // of each link
  std::vector<std::byte> kept_;
};

class MadDepotTest {
 public:
  explicit MadDepotTest(std::uint64_t seed) : depot_(seed), random_(seed * 7) {
    RigOptions options;
    options.connect = false;
    options.breaker_failures = 1000;
    rig_ = std::make_unique<CoreRig>(options);
    rig_->proxy->rewrite_down([this](std::size_t link, Bytes bytes) { return depot_.rewrite(link, bytes); });
    rig_->start_core();
    KVD_CHECK(rig_->wait_connected());
    rig_->store_records();
  }

  void run() {
    depot_.mad = true;
    for (int i = 0; i < 30; ++i) operate();
    depot_.mad = false;
    // The connections that it has spoilt are made anew; behind a header that announces much, by the next deadline.
    const bool back = rig_->loop.run_until([this] { return works(); }, std::chrono::minutes(5));
    EXPECT_TRUE(back) << "the client does not work again";
    EXPECT_GT(depot_.changed, 0U);
  }

 private:
  static Deadline deadline() { return {.total = kTotal, .progress = Millis(50)}; }

  void operate() {
    // Mostly connected again, sometimes not.
    if (random_.chance(7, 8)) rig_->wait_connected(std::chrono::minutes(2));
    rig_->poison();
    struct Running {
      OpId op;
      bool get;
    };
    std::vector<Running> running;
    const bool gets = random_.chance(1, 2);  // beside a put, which reads the same memory, there are none
    if (!gets) rig_->fill_source();
    for (std::uint64_t n = 1 + random_.below(3); n > 0; --n) {
      const auto kind = random_.below(4);
      if (kind == 0 && gets && running.empty()) {
        running.push_back({rig_->get(deadline(), random_.chance(1, 2)), true});
      } else if (kind == 1 && !gets) {
        running.push_back({rig_->put(true, deadline()), false});
      } else {
        running.push_back({rig_->match(deadline(), 100), false});
      }
    }
    for (const Running& one : running) {
      const Time begun = rig_->loop.now();
      if (random_.chance(1, 16)) rig_->cancel(one.op);
      const Completion end = rig_->finish(one.op, std::chrono::minutes(10));
      ASSERT_TRUE(rig_->ended(one.op));
      if (one.get) {
        EXPECT_LE(rig_->loop.now() - begun, kTotal + Millis(1));
        if (end.code == Code::kOk) expect_what_it_says(end);
      }
      rig_->release(one.op);
    }
  }

  void expect_what_it_says(const Completion& end) {
    for (std::size_t key = 0; key < rig_->options.keys; ++key) {
      if ((end.failed[key / 8] >> key % 8 & 1) != 0) continue;
      for (std::size_t layer = 0; layer < rig_->options.layers; ++layer)
        EXPECT_TRUE(rig_->landed(layer, key)) << "layer " << layer << ", key " << key;
    }
  }

  bool works() {
    if (!rig_->state.connected()) return false;
    const OpId op = rig_->get(deadline());
    const Completion end = rig_->finish(op);
    const bool good = end.code == Code::kOk && end.failed_keys == 0;
    rig_->release(op);
    return good;
  }

  MadDepot depot_;
  Random random_;
  std::unique_ptr<CoreRig> rig_;
};

TEST(CoreHostile, ADepotThatTakesNoRequestsIsNone) {
  RigOptions options;
  options.connect = false;
  CoreRig rig(options);
  bool mad = true;
  rig.proxy->rewrite_down([&](std::size_t, Bytes bytes) -> std::vector<std::byte> {
    const Result<wire::Header> header = wire::decode_header(bytes);
    if (!mad || !header || header->opcode != wire::Opcode::kHelloReply) return {bytes.begin(), bytes.end()};
    auto reply = *wire::decode<wire::HelloReply>(*header, bytes.subspan(wire::kHeaderBytes, header->meta_bytes));
    reply.ops_max = 0;
    const wire::Buffer frame = wire::frame({.flags = header->flags, .request_id = header->request_id}, reply);
    return {frame.begin(), frame.end()};
  });
  rig.start_core();
  EXPECT_FALSE(rig.wait_connected(std::chrono::seconds(20)));
  mad = false;
  ASSERT_TRUE(rig.wait_connected(std::chrono::minutes(1)));
  rig.store_records();
  EXPECT_EQ(rig.finish(rig.get()).failed_keys, 0U);
}

TEST(CoreHostile, WhateverTheDepotSaysEachOperationEndsAndNothingWrongIsGivenOut) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    MadDepotTest(seed).run();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvd::client
