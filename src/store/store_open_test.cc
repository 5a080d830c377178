// Tests of opening: what is refused, how clearly, and that nothing of it is touched. Real directories, simulated disks,
// and a few on the real disk.
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include <gtest/gtest.h>

#include "block/checksum.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

namespace fs = std::filesystem;

TEST(StoreOpen, MakesAPrivateDirectory) {
  StoreKit kit;
  ASSERT_TRUE(kit.open()) << kit.why;
  struct stat info{};
  ASSERT_EQ(::stat(kit.options.dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  ASSERT_EQ(::stat((kit.options.dir + "/LOCK").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST(StoreOpen, ClosesADirectoryThatOthersCouldRead) {
  StoreKit kit;
  fs::create_directory(kit.options.dir);
  fs::permissions(kit.options.dir, fs::perms::all);
  ASSERT_TRUE(kit.open()) << kit.why;
  EXPECT_EQ(fs::status(kit.options.dir).permissions(), fs::perms::owner_all);
}

TEST(StoreOpen, RefusesADirectoryOfSomethingElseAndLeavesItAlone) {
  StoreKit kit;
  fs::create_directory(kit.options.dir);
  std::ofstream(kit.options.dir + "/thesis.tex") << "x";
  EXPECT_EQ(kit.open().error().code, Code::kInvalid);
  EXPECT_TRUE(mentions(kit.why, "thesis.tex")) << kit.why;
  EXPECT_EQ(std::distance(fs::directory_iterator(kit.options.dir), fs::directory_iterator()), 1);
}

TEST(StoreOpen, TheLockOfASocketsNameIsNothingOfSomebodyElses) {
  StoreKit kit;
  fs::create_directory(kit.options.dir);
  std::ofstream(kit.options.dir + "/kvdepot.sock.lock");
  EXPECT_TRUE(kit.open()) << kit.why;
  StoreKit other;
  fs::create_directory(other.options.dir);
  std::ofstream(other.options.dir + "/yarn.lock") << "x";
  EXPECT_EQ(other.open().error().code, Code::kInvalid) << "it has content";
}

TEST(StoreOpen, NamesWhatIsWrongWithTheDirectory) {
  StoreKit kit;
  kit.options.dir = kit.dir.path() + "/no/such/parent";
  EXPECT_EQ(kit.open().error().code, Code::kIo);
  EXPECT_TRUE(mentions(kit.why, "parent directory")) << kit.why;
  kit.options.dir = kit.dir.path() + "/file";
  std::ofstream(kit.options.dir) << "x";
  EXPECT_EQ(kit.open().error().code, Code::kIo);
  EXPECT_TRUE(mentions(kit.why, "not a directory")) << kit.why;
  kit.options.dir = "";
  EXPECT_EQ(kit.open().error().code, Code::kInvalid);
}

TEST(StoreOpen, TwoAtOnceAreRefusedNamingTheHolder) {
  StoreKit kit;
  ASSERT_TRUE(kit.open()) << kit.why;
  std::string why;
  const auto second = Store::open(kit.loop, kit.log, kit.options, &why, &kit.disks);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_TRUE(mentions(why, "process " + std::to_string(::getpid()))) << why;
  kit.close();
  EXPECT_TRUE(kit.open()) << "closed, it is free again";
}

TEST(StoreOpen, RefusesImpossibleSizes) {
  const auto refused = [](auto change) {
    StoreKit kit;
    kit.options.small_sizes = false;
    kit.options.pool_bytes = 64 << 20;
    kit.options.flash_bytes = 128 << 20;
    kit.options.segment_bytes = 0;
    change(kit.options);
    const Status opened = kit.open();
    EXPECT_TRUE(mentions(kit.why, "ask for")) << kit.why;
    return !opened && opened.error().code == Code::kInvalid;
  };
  EXPECT_TRUE(refused([](StoreOptions& o) { o.pool_bytes = 1 << 20; }));
  EXPECT_TRUE(refused([](StoreOptions& o) { o.segment_bytes = 100 << 20; }));
  EXPECT_TRUE(refused([](StoreOptions& o) { o.segment_bytes = 512 << 20; }));
  EXPECT_TRUE(refused([](StoreOptions& o) { o.segment_bytes = 1 << 20; }));
  EXPECT_TRUE(refused([](StoreOptions& o) { o.flash_bytes = 10 << 20; }));
  EXPECT_TRUE(refused([](StoreOptions& o) { o.pinned_percent_max = 101; }));
  EXPECT_TRUE(refused([](StoreOptions& o) { o.flash_bytes = ~std::uint64_t{0}; }));
}

TEST(StoreOpen, SaysHowMuchFlashItNeeds) {
  StoreKit kit;
  kit.options.segment_bytes = 16 << 20;
  kit.options.flash_bytes = 1 << 20;
  EXPECT_EQ(kit.open().error().code, Code::kInvalid);
  EXPECT_EQ(kit.why,
            "a flash size of 1MiB is too small: 4 segments of 16MiB and 4MiB beside them are needed: ask for 68MiB");
}

TEST(StoreOpen, SaysInWordsWhatTheDriveAnswered) {
  StoreKit kit;
  kit.drive().inject(io::DiskOp::Kind::kWrite, 1, io::SimFault::kError, EIO);
  EXPECT_EQ(kit.open().error().code, Code::kIo);
  EXPECT_TRUE(mentions(kit.why, ": Input/output error: check the drive")) << kit.why;
}

TEST(StoreOpen, ADiskWithoutRoomIsSaidAtOnce) {
  StoreKit kit;
  kit.disks.set_capacity(1 << 20);
  EXPECT_EQ(kit.open().error().code, Code::kNoSpace);
  EXPECT_TRUE(mentions(kit.why, "free space")) << kit.why;
}

class SuperblockTest : public ::testing::Test {
 protected:
  // Writes `copies` copies of a changed superblock over a good store and reopens it; what the file was is kept in
  // before_.
  template <class Change>
  Status reopen_with(std::uint32_t copies, Change change) {
    EXPECT_TRUE(kit_.open());
    EXPECT_TRUE(kit_.put(1));
    kit_.close();
    std::vector<std::byte> page(kPageBytes);
    for (std::uint32_t i = 0; i < copies; ++i) {
      kit_.drive().peek(i * kSuperblockStride, page);
      auto block = load<Superblock>(page.data());
      change(block);
      encode_superblock(page, block);
      kit_.drive().poke(i * kSuperblockStride, page);
    }
    before_.resize(kit_.drive().size());
    kit_.drive().peek(0, before_);
    return kit_.open();
  }
  bool untouched() {
    std::vector<std::byte> now(kit_.drive().size());
    kit_.drive().peek(0, now);
    return now == before_;
  }
  StoreKit kit_;
  std::vector<std::byte> before_;
};

TEST_F(SuperblockTest, ANewerVersionIsRefusedAndUntouched) {
  const Status opened = reopen_with(4, [](Superblock& block) { block.version = 2; });
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kStale);
  EXPECT_TRUE(mentions(kit_.why, "newer version")) << kit_.why;
  EXPECT_TRUE(untouched());
}

TEST_F(SuperblockTest, AnUnknownFeatureIsRefusedAndUntouched) {
  const Status opened = reopen_with(4, [](Superblock& block) { block.features_incompatible = 4; });
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kStale);
  EXPECT_TRUE(untouched());
}

TEST_F(SuperblockTest, ADeviceOfSeveralIsNoStoreByItselfAndUntouched) {
  const Status opened = reopen_with(4, [](Superblock& block) {
    block.features_incompatible = kFeatureMember;
    block.store = block.uuid;
  });
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kInvalid);
  EXPECT_TRUE(mentions(kit_.why, "a device of a store that has several")) << kit_.why;
  EXPECT_TRUE(untouched());
}

// What versions before several devices wrote, and read.
TEST_F(SuperblockTest, AStoreOfOneDeviceTellsNothingOfSeveral) {
  ASSERT_TRUE(kit_.open());
  ASSERT_TRUE(kit_.reopen());
  std::vector<std::byte> page(kPageBytes);
  for (std::uint32_t i = 0; i < kSuperblockCopies; ++i) {
    kit_.drive().peek(i * kSuperblockStride, page);
    ASSERT_TRUE(parse_superblock(page, i));
    const auto zeros = [&page](std::size_t from, std::size_t to) {
      return std::all_of(page.begin() + static_cast<std::ptrdiff_t>(from),
                         page.begin() + static_cast<std::ptrdiff_t>(to), [](std::byte b) { return b == std::byte{0}; });
    };
    EXPECT_TRUE(zeros(64, 80)) << "features";
    EXPECT_TRUE(zeros(88, kPageChecksumAt)) << "behind what every version knows";
  }
  EXPECT_EQ(kit_.disks.drive(kit_.options.dir + "/devices.kvd").size(), 0U);
}

TEST_F(SuperblockTest, OneCopyThatClaimsToBeNewerIsDamage) {
  EXPECT_TRUE(reopen_with(1, [](Superblock& block) { block.version = 2; })) << kit_.why;
  EXPECT_EQ(kit_.get(1), 1u);
}

TEST_F(SuperblockTest, AForeignFileIsRefusedAndUntouched) {
  const Status opened = reopen_with(4, [](Superblock& block) { block.magic = 0x1234; });
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kInvalid);
  EXPECT_TRUE(mentions(kit_.why, "not a kvdepot store")) << kit_.why;
  EXPECT_TRUE(untouched());
}

// Nobody can know whether a store was there: neither is it called foreign for good, nor begun anew.
TEST_F(SuperblockTest, ZerosBesideACopyThatCannotBeReadAreAnErrorOfTheDrive) {
  ASSERT_TRUE(kit_.open());
  kit_.close();
  const std::vector<std::byte> zeros(kPageBytes);
  for (std::uint32_t i = 0; i < kSuperblockCopies; ++i) kit_.drive().poke(i * kSuperblockStride, zeros);
  before_.resize(kit_.drive().size());
  kit_.drive().peek(0, before_);
  kit_.drive().inject(io::DiskOp::Kind::kRead, 2, io::SimFault::kError);
  const Status opened = kit_.open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kIo);
  EXPECT_TRUE(mentions(kit_.why, "cannot be read")) << kit_.why;
  EXPECT_TRUE(untouched());
  EXPECT_TRUE(kit_.open()) << kit_.why;
}

// An opening was killed before its last two superblock copies were durable. The next one must not touch the other two
// before they are, or a power loss could take all four.
TEST(StoreOpen, SuperblocksOfAKilledOpeningAreFlushedBeforeTheNextRewrite) {
  struct Observer final : io::SimObserver {
    explicit Observer(io::SimDrive& drive_in) : drive(drive_in) {}
    void submitted(std::uint64_t, io::DiskOp::Kind kind, std::uint64_t offset, Bytes) override {
      if (kind == io::DiskOp::Kind::kWrite && offset == 0) unflushed = drive.unflushed();
    }
    void completed(std::uint64_t, io::DiskOp::Kind, bool) override {}
    io::SimDrive& drive;
    std::optional<std::size_t> unflushed;  // when copy 0 was written
  };
  StoreKit kit;
  ASSERT_TRUE(kit.open()) << kit.why;
  io::SparseBytes durable;
  std::vector<io::SimWrite> unflushed;
  for (std::uint64_t copy = 0; copy < kSuperblockCopies; ++copy) {
    std::vector<std::byte> page(kPageBytes);
    kit.drive().peek(copy * kSuperblockStride, page);
    durable.write(copy * kSuperblockStride, page);
    if (copy >= 2) unflushed.push_back({.offset = copy * kSuperblockStride, .bytes = page});
  }
  const std::uint64_t bytes = kit.drive().size();
  kit.kill();
  kit.options.dir += "/next";
  kit.drive().start_from(bytes, durable, unflushed);
  Observer observer(kit.drive());
  kit.drive().observe(&observer);
  ASSERT_TRUE(kit.open()) << kit.why;
  EXPECT_EQ(observer.unflushed, 0u);
  kit.drive().observe(nullptr);
}

// Power goes while the first two copies are on their way: any of their sectors may be all that there is.
TEST(StoreOpen, AnInterruptedCreationIsRepeatedWhateverIsLeftOfIt) {
  for (unsigned left = 0; left < 16; ++left) {  // first and last sector of copy 0, of copy 1
    SCOPED_TRACE(left);
    StoreKit kit;
    ASSERT_TRUE(kit.open()) << kit.why;
    const std::uint64_t bytes = kit.drive().size();
    std::vector<std::byte> page(kPageBytes);
    io::SparseBytes torn;
    for (std::uint64_t copy = 0; copy < 2; ++copy) {
      kit.drive().peek(copy * kSuperblockStride, page);
      if ((left >> (2 * copy) & 1) != 0) torn.write(copy * kSuperblockStride, Bytes(page).first(512));
      if ((left >> (2 * copy + 1) & 1) != 0)
        torn.write(copy * kSuperblockStride + kPageBytes - 512, Bytes(page).last(512));
    }
    kit.kill();
    kit.options.dir += "/next";  // of a drive that holds nothing but this
    kit.drive().start_from(bytes, torn, {});
    ASSERT_TRUE(kit.open()) << kit.why;
    ASSERT_TRUE(kit.put(1, 1, AckLevel::kSynced));
    ASSERT_TRUE(kit.reopen());
    EXPECT_EQ(kit.get(1), 1u);
  }
}

// It is no reason to refuse a drive that holds nothing.
TEST_F(SuperblockTest, ABitThatIsReadWrongOnceOfAnEmptyDriveMakesItNobodyElses) {
  for (const std::uint64_t nth : {1U, 5U, 6U}) {
    StoreKit kit;
    kit.drive().start_from(kit.options.flash_bytes, {}, {});
    kit.drive().inject(io::DiskOp::Kind::kRead, nth, io::SimFault::kFlipBit);
    EXPECT_TRUE(kit.open()) << nth << ": " << kit.why;
  }
}

TEST_F(SuperblockTest, AnUnknownSegmentFeatureCostsThatSegmentOnly) {
  ASSERT_TRUE(kit_.open());
  for (std::uint64_t n = 0; n < 12; ++n) ASSERT_TRUE(kit_.put(n));
  kit_.close();
  std::vector<std::byte> page(kPageBytes);
  kit_.drive().peek(0, page);
  const FormatSeeds seeds(load<Superblock>(page.data()).uuid);
  kit_.drive().peek(kHeadBytes, page);
  auto header = load<SegmentHeader>(page.data());
  header.features = 8;
  encode_segment_header(page, seeds, header, {});
  kit_.drive().poke(kHeadBytes, page);
  ASSERT_TRUE(kit_.open()) << kit_.why;
  std::uint64_t found = 0;
  for (std::uint64_t n = 0; n < 12; ++n) found += kit_.get(n) == 1 ? 1 : 0;
  EXPECT_GT(found, 4u);
  EXPECT_LT(found, 12u);
}

TEST(StoreOpen, AnotherSegmentSizeIsAnsweredWithTheStoresOwn) {
  StoreKit kit;
  ASSERT_TRUE(kit.open());
  ASSERT_TRUE(kit.put(1));
  kit.close();
  kit.options.segment_bytes *= 2;
  ASSERT_TRUE(kit.open()) << kit.why;
  EXPECT_EQ(kit.get(1), 1u);
  EXPECT_EQ(kit.log.count("keeps its segments"), 1u);
}

TEST(StoreOpen, EachOpeningHasItsNumber) {
  StoreKit kit;
  ASSERT_TRUE(kit.open());
  EXPECT_EQ(kit.store->boot_epoch(), 1u);
  const auto uuid = kit.store->uuid();
  ASSERT_TRUE(kit.reopen());
  EXPECT_EQ(kit.store->boot_epoch(), 2u);
  EXPECT_EQ(kit.store->uuid(), uuid);
}

// ---- On the real disk ----

class RealStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  StoreOptions options() {
    StoreOptions o;
    o.dir = dir_.path() + "/store";
    o.pool_bytes = 64 << 20;
    o.flash_bytes = 100 << 20;
    o.force_threads = GetParam();
    return o;
  }
  TempDir dir_;
};

// Puts records until it is killed, and tells each that was acknowledged as written through `to_parent`.
void put_until_killed(const StoreOptions& options, int to_parent) {
  auto loop = io::make_real_loop();
  NullLog log;
  auto store = Store::open(**loop, log, options);
  if (!store) return;
  const auto ns = (*store)->open_namespace(namespace_of(4, 100'000));
  for (std::uint64_t n = 0;; ++n) {
    auto put = (*store)->begin_put(*ns, id_of(n), foreign_of(n));
    if (!put) {
      (*loop)->run_once(Millis(1));
      --n;
      continue;
    }
    std::vector<std::uint64_t> checksums;
    for (std::uint16_t layer = 0; layer < 4; ++layer) {
      fill_slab(put->slab(layer), n, 1, layer);
      checksums.push_back(block::slab_checksum(put->seed(), layer, put->slab(layer)));
    }
    (*store)->complete_put(std::move(*put), checksums, AckLevel::kWritten, [n, to_parent](Status status) {
      if (status && ::write(to_parent, &n, sizeof n) != sizeof n) ::_exit(1);
    });
    (*loop)->run_once(Duration(0));
  }
}

TEST_P(RealStoreTest, WhatWasAcknowledgedAsWrittenSurvivesSigkill) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(pipe[0]);
    put_until_killed(options(), pipe[1]);
    ::_exit(1);
  }
  ::close(pipe[1]);
  std::vector<std::uint64_t> acked;
  std::uint64_t n = 0;
  while (acked.size() < 90 && ::read(pipe[0], &n, sizeof n) == sizeof n) acked.push_back(n);
  ::kill(child, SIGKILL);
  while (::read(pipe[0], &n, sizeof n) == sizeof n) acked.push_back(n);
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
  ASSERT_GE(acked.size(), 90u);

  auto loop = io::make_real_loop();
  RecordingLog log;
  std::string why;
  auto store = Store::open(**loop, log, options(), &why);
  ASSERT_TRUE(store) << why;
  const auto ns = (*store)->open_namespace(namespace_of(4, 100'000));
  std::uint64_t found = 0;
  for (const std::uint64_t number : acked) {
    const auto foreign = foreign_of(number);
    Get get;
    get.ns = *ns;
    get.id = id_of(number);
    get.foreign = foreign;
    bool done = false;
    get.on_done = [&](Result<RecordView> view) {
      done = true;
      if (!view) return;
      ++found;
      for (std::uint16_t l = 0; l < 4; ++l)
        EXPECT_TRUE(slab_is({view->first_slab + std::size_t{l} * view->slab_stride, 100'000}, number, 1, l));
    };
    (*store)->start_get(get);
    while (!done) (*loop)->run_once(Millis(100));
  }
  // 100 MiB of flash hold about 200 of them; the child stops within a few dozen of 90.
  EXPECT_EQ(found, acked.size());
}

TEST_P(RealStoreTest, WithoutItsSuperblocksItBeginsAnewInAllOfItsFile) {
  auto loop = io::make_real_loop();
  RecordingLog log;
  std::string why;
  StoreOptions asked = options();
  const auto free_segments = [&] {
    const auto store = Store::open(**loop, log, asked, &why);
    return store ? (*store)->stats().segments_free.value() : 0;
  };
  const auto before = free_segments();
  EXPECT_GT(before, 0) << why;
  std::fstream file(asked.dir + "/flash.kvd", std::ios::in | std::ios::out | std::ios::binary);
  for (std::uint32_t copy = 0; copy < kSuperblockCopies; ++copy) {
    file.seekp(static_cast<std::streamoff>(copy * kSuperblockStride + 100)).write("damage", 6);
  }
  file.close();
  asked.flash_bytes = 80 << 20;  // the default of who says nothing
  asked.flash_bytes_given = false;
  EXPECT_EQ(free_segments(), before) << why;
  EXPECT_EQ(log.count("all superblocks are damaged"), 1u);
}

TEST_P(RealStoreTest, OneFileUnderTwoNamesIsOpenedOnce) {
  auto loop = io::make_real_loop();
  RecordingLog log;
  auto store = Store::open(**loop, log, options());
  ASSERT_TRUE(store);
  StoreOptions other = options();
  other.dir = dir_.path() + "/other";
  fs::create_directory(other.dir);
  fs::create_hard_link(options().dir + "/flash.kvd", other.dir + "/flash.kvd");
  std::string why;
  const auto refused = Store::open(**loop, log, other, &why);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_TRUE(mentions(why, "is in use")) << why;
  store->reset();
  EXPECT_TRUE(Store::open(**loop, log, other, &why)) << why;
}

TEST_P(RealStoreTest, AFileThatWasCutIsToldAndMadeWhole) {
  auto loop = io::make_real_loop();
  RecordingLog log;
  const std::string path = options().dir + "/flash.kvd";
  ASSERT_TRUE(Store::open(**loop, log, options()));
  const auto bytes = fs::file_size(path);
  EXPECT_EQ(log.count("what lay behind them is lost"), 0u);
  fs::resize_file(path, bytes - (20 << 20));
  ASSERT_TRUE(Store::open(**loop, log, options()));
  EXPECT_EQ(log.count("what lay behind them is lost"), 1u);
  EXPECT_EQ(fs::file_size(path), bytes);
}

// What others leave on drives whose first page is empty.
TEST_P(RealStoreTest, LabelsOfOthersAreLeftAlone) {
  auto loop = io::make_real_loop();
  RecordingLog log;
  const StoreOptions asked = options();
  const std::string path = asked.dir + "/flash.kvd";
  fs::create_directory(asked.dir);
  std::ofstream(path).close();
  fs::resize_file(path, 100 << 20);
  std::string why;
  for (const std::streamoff at : {4096, 16 << 10, 64 << 10}) {
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(at).write("a label", 7);
    const auto refused = Store::open(**loop, log, asked, &why);
    ASSERT_FALSE(refused) << at;
    EXPECT_EQ(refused.error().code, Code::kInvalid);
    EXPECT_TRUE(mentions(why, "is not a kvdepot store")) << why;
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(at).write("\0\0\0\0\0\0\0", 7);
  }
  EXPECT_TRUE(Store::open(**loop, log, asked, &why)) << why;
}

TEST_P(RealStoreTest, ServesWhatItWrote) {
  auto loop = io::make_real_loop();
  RecordingLog log;
  auto store = Store::open(**loop, log, options());
  ASSERT_TRUE(store);
  EXPECT_GT((*store)->pool_fd(), 0);
  EXPECT_EQ(log.count(GetParam() ? "threads, depth" : "depth"), 1u);
  auto ns = (*store)->open_namespace(namespace_of(2, 50'000));
  auto put = (*store)->begin_put(*ns, id_of(1), foreign_of(1));
  std::vector<std::uint64_t> checksums;
  for (std::uint16_t layer = 0; layer < 2; ++layer) {
    fill_slab(put->slab(layer), 1, 1, layer);
    checksums.push_back(block::slab_checksum(put->seed(), layer, put->slab(layer)));
  }
  bool acked = false;
  (*store)->complete_put(std::move(*put), checksums, AckLevel::kSynced, [&](Status s) { acked = s.has_value(); });
  for (int i = 0; i < 1'000 && !acked; ++i) (*loop)->run_once(Millis(10));
  EXPECT_TRUE(acked);
  struct stat info{};
  ASSERT_EQ(::stat((options().dir + "/flash.kvd").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_LE(static_cast<std::uint64_t>(info.st_size), options().flash_bytes) << "never more than was asked for";
}

INSTANTIATE_TEST_SUITE_P(Engines, RealStoreTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Threads" : "Uring"; });

}  // namespace
}  // namespace kvd::store
