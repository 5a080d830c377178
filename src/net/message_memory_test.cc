#include "net/message_memory.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"
#include "net/testing/peer.h"
#include "net/testing/roomy_stream.h"

namespace kvd::net {
namespace {

constexpr std::size_t kFree = MessageMemory::kFreeBytes;

class MessageMemoryTest : public testing::Test {
 protected:
  MessageMemory::User user(char name) {
    return {memory_, [this, name] { ended_ += name; }};
  }
  MessageMemory memory_{4 * kFree};
  std::string ended_;
};

TEST_F(MessageMemoryTest, WhoseMessageBeganFirstGoesWhereThereWouldBeMore) {
  MessageMemory::User a = user('a'), b = user('b'), c = user('c');
  EXPECT_TRUE(a.hold(kFree, 1)) << "not counted";
  EXPECT_EQ(memory_.bytes(), 0U);
  EXPECT_TRUE(b.hold(kFree + 1, 1));
  EXPECT_TRUE(a.hold(kFree + 1, 1));
  EXPECT_TRUE(c.hold(2 * kFree - 2, 1));
  EXPECT_EQ(memory_.bytes(), 4 * kFree);
  EXPECT_EQ(ended_, "");
  EXPECT_TRUE(c.hold(2 * kFree, 1));
  EXPECT_EQ(ended_, "b");
  EXPECT_TRUE(c.hold(4 * kFree, 1));
  EXPECT_EQ(ended_, "ba");
  EXPECT_FALSE(c.hold(4 * kFree + 1, 1)) << "and this one, when it is the oldest";
  EXPECT_EQ(ended_, "ba") << "it is told so";
  EXPECT_EQ(memory_.bytes(), 0U);
}

TEST_F(MessageMemoryTest, WhoHasBegunAnotherMessageIsAmongTheYoungest) {
  MessageMemory::User a = user('a'), b = user('b'), c = user('c');
  EXPECT_TRUE(a.hold(kFree + 1, 1));
  EXPECT_TRUE(b.hold(kFree + 1, 1));
  EXPECT_TRUE(a.hold(kFree + 2, 2));
  EXPECT_TRUE(c.hold(2 * kFree, 1));
  EXPECT_EQ(ended_, "b");
  {
    MessageMemory::User d = user('d');
    a.release();
    a.release();
    EXPECT_TRUE(d.hold(2 * kFree, 1));
    EXPECT_EQ(ended_, "b") << "a holds nothing";
  }
  EXPECT_EQ(memory_.bytes(), 2 * kFree) << "who is gone holds nothing";
}

class MessageMemoryOfConnectionsTest : public testing::Test {
 protected:
  struct End {
    RoomyStream* stream;
    std::unique_ptr<Peer> peer;
  };
  End open(char who) {
    auto stream = std::make_unique<RoomyStream>(who, record_);
    RoomyStream* const roomy = stream.get();
    return {roomy, std::make_unique<Peer>(loop_, std::move(stream), ConnectionOptions{.message_memory = &memory_})};
  }
  // Its first bytes, and the rest.
  void begin(const End& end, std::size_t bytes) {
    end.stream->feed(Bytes(message_).first(bytes));
    loop_.settle();
  }
  void finish(const End& end, std::size_t begun) {
    end.stream->feed(Bytes(message_).subspan(begun));
    loop_.settle();
  }

  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  MessageMemory memory_{8 * kFree};
  RoomyStream::Record record_{.clock = clock_, .moves = {}, .call = {}};
  const wire::Buffer message_ = wire::frame({.request_id = 1}, wire::StatsReply{std::string(6 * kFree, 'x')});
};

TEST_F(MessageMemoryOfConnectionsTest, UnfinishedMessagesOfAllAreBounded) {
  std::array<End, 4> ends{open('a'), open('b'), open('c'), open('d')};
  constexpr std::size_t kBegun = 3 * kFree - 100;
  for (const End& end : ends) begin(end, kBegun);
  EXPECT_LE(memory_.bytes(), 8 * kFree);
  EXPECT_TRUE(ends[0].peer->closed && ends[0].peer->closed->code == Code::kNoSpace);
  EXPECT_TRUE(ends[1].peer->closed);
  EXPECT_FALSE(ends[2].peer->closed);
  finish(ends[3], kBegun);
  ASSERT_EQ(ends[3].peer->received.size(), 1U) << "the youngest comes through";
  EXPECT_EQ(ends[3].peer->received[0].meta.size(), message_.size() - wire::kHeaderBytes);
  EXPECT_TRUE(ends[2].peer->closed) << "for whom there was no room";
  EXPECT_EQ(memory_.bytes(), 0U) << "nothing is unfinished";
}

TEST_F(MessageMemoryOfConnectionsTest, MemoryThatIsKeptForTheNextMessageCounts) {
  const End end = open('a');
  begin(end, message_.size());
  EXPECT_EQ(memory_.bytes(), 0U);
  wire::Buffer two = message_;
  two.insert(two.end(), message_.begin(), message_.begin() + 100);
  end.stream->feed(two);
  loop_.settle();
  EXPECT_EQ(end.peer->received.size(), 2U);
  EXPECT_GE(memory_.bytes(), 6 * kFree) << "though little of the third has come";
  const wire::Buffer small = wire::frame({.request_id = 1}, wire::Ping{});
  wire::Buffer rest(message_.begin() + 100, message_.end());
  rest.insert(rest.end(), small.begin(), small.begin() + 1);
  end.stream->feed(rest);
  loop_.settle();
  EXPECT_GE(memory_.bytes(), 6 * kFree) << "a header is not even whole";
  end.stream->feed(Bytes(small).subspan(1));
  end.stream->feed(Bytes(message_).first(100));
  loop_.settle();
  EXPECT_EQ(end.peer->received.size(), 4U);
  EXPECT_EQ(memory_.bytes(), 0U) << "given back for a small one";
}

TEST_F(MessageMemoryOfConnectionsTest, WhoClosesHoldsNothing) {
  const End a = open('a');
  begin(a, 3 * kFree);
  EXPECT_GT(memory_.bytes(), 0U);
  a.peer->connection->close({Code::kCancelled, 0, "a test"});
  EXPECT_EQ(memory_.bytes(), 0U);
}

}  // namespace
}  // namespace kvd::net
