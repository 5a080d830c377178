// The worked examples of docs/formats/wire.md, read out of the page: their bytes are decoded by production code to what
// the page says beside them, and encoded again to the same.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "wire/testing/messages.h"

namespace kvd::wire {
namespace {

// Messages stand in blocks of code; an empty line, or the end of the block, ends each.
std::vector<Buffer> messages_in(std::istream& page) {
  std::vector<Buffer> messages;
  std::string line;
  while (std::getline(page, line) && line != "## Worked example") continue;
  bool in_block = false;
  while (std::getline(page, line)) {
    if (line == "```") in_block = !in_block;
    if (line == "```" && in_block) messages.emplace_back();
    if (in_block && line.empty()) messages.emplace_back();
    if (!in_block || line == "```") continue;
    const Buffer bytes = from_hex(line.substr(0, line.find("   ")));  // what is said of them stands behind
    messages.back().insert(messages.back().end(), bytes.begin(), bytes.end());
  }
  return messages;
}

// Its views are of `message`. `payload`: of the message's body, which the page leaves out.
template <class M>
M decoded(const Buffer& message, std::uint64_t payload = 0) {
  const Header header = parse(message).header;
  EXPECT_EQ(header.opcode, M::kOpcode);
  const Result<M> found = decode<M>(header, Bytes(message).subspan(kHeaderBytes));
  EXPECT_TRUE(found.has_value());
  if (!found) return {};
  EXPECT_EQ(frame(header, *found, payload), message);
  return *found;
}

TEST(WireFormatPage, ItsExamplesAreWhatThePageSays) {
  const auto path = std::filesystem::path(KVD_SOURCE_DIR) / "docs/formats/wire.md";
  std::ifstream page(path);
  ASSERT_TRUE(page) << path;
  const std::vector<Buffer> messages = messages_in(page);
  ASSERT_EQ(messages.size(), 7u) << "HELLO, GET, PUT data, PUT arena, TAKEN, GET view, RELEASE";

  EXPECT_EQ(messages[0].size(), 86u);
  const auto hello = decoded<Hello>(messages[0]);
  EXPECT_EQ(hello.name, "engine-a");
  EXPECT_EQ(hello.version_min, 1);
  EXPECT_EQ(hello.version_max, 1);

  const Header get_header = parse(messages[1]).header;
  EXPECT_EQ(get_header.request_id, 0x1122334455667788U);
  EXPECT_EQ(get_header.items, 2u);
  EXPECT_EQ(get_header.layer_first, 3);
  EXPECT_EQ(get_header.layer_count, 2);
  EXPECT_EQ(get_header.deadline_ms, 250u);
  const auto get = decoded<Get>(messages[1]);
  EXPECT_EQ(get.ns, 5u);
  EXPECT_EQ(get.shard, 1);
  EXPECT_EQ(get.group, 0);
  EXPECT_TRUE(get.stop_at_first_failure);
  EXPECT_TRUE(get.keys.native);
  EXPECT_EQ(get.keys.count(), 2u);

  const Header part_header = parse(messages[2]).header;
  EXPECT_EQ(part_header.items, 3u);
  EXPECT_EQ(part_header.layer_first, 4);
  const auto part = decoded<PutData>(messages[2], 8192);
  EXPECT_EQ(part.key_first, 1u);
  ASSERT_EQ(part.checksums.size(), 2u);
  EXPECT_EQ(part.checksums[0], 0x0102030405060708U);

  const auto arena = decoded<PutArena>(messages[3]);
  EXPECT_EQ(arena.key_first, 1u);
  EXPECT_EQ(arena.offset, 0x30000u);
  ASSERT_EQ(arena.checksums.size(), 2u);
  EXPECT_EQ(arena.checksums[1], 0x1112131415161718U);
  EXPECT_EQ(decoded<Taken>(messages[4]).messages, 7u);

  EXPECT_TRUE(parse(messages[5]).header.last());
  const auto view = decoded<GetView>(messages[5]);
  EXPECT_EQ(view.view, 9u);
  EXPECT_EQ(view.slab_stride, 8192u);
  ASSERT_EQ(view.failed.size(), 1u);
  EXPECT_EQ(view.failed[0], std::byte{0x02});
  ASSERT_EQ(view.offsets.size(), 1u);
  EXPECT_EQ(view.offsets[0], 0x12000u);
  const auto release = decoded<Release>(messages[6]);
  ASSERT_EQ(release.views.size(), 2u);
  EXPECT_EQ(release.views[1], 10u);
}

}  // namespace
}  // namespace kvd::wire
