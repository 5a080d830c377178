// Tests of which devices a store uses: each row of the table in docs/formats/flash-log.md, "What belongs to a store".
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_disk.h"
#include "io/sim/sim_loop.h"
#include "store/copies_writer.h"
#include "store/store_devices.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kOpening = 20;  // the last one, as the list says

Uuid uuid_number(unsigned n) {
  Uuid uuid{};
  uuid[15] = static_cast<std::byte>(n);
  return uuid;
}
const Uuid kStoreUuid = uuid_number(100);

// A store with devices 1, 2, ... that were in /1, /2, ... and were there at the last opening.
class DevicePlanTest : public ::testing::Test {
 protected:
  DevicePlanTest() { list_.path = "/s/devices.kvd"; }

  void list(unsigned devices) {
    list_.verdict.kind = CopiesKind::kValid;
    list_.verdict.in_force = {kStoreUuid, 7, kOpening, kSegmentBytesMin, {}};
    list_.verdict.generation_max = 7;
    for (unsigned n = 1; n <= devices; ++n)
      entries().push_back({uuid_number(n), 10, kOpening, "/" + std::to_string(n)});
  }
  std::vector<ListedDevice>& entries() { return list_.verdict.in_force.devices; }

  DeviceFound& found(const std::string& dir, CopiesKind kind) {
    DeviceFound& found = found_.emplace_back();
    found.dir = dir;
    found.file.path = dir + "/flash.kvd";
    found.file.verdict.kind = kind;
    if (kind == CopiesKind::kUnreadable) found.file.error = {.code = Code::kIo, .sys_errno = 5, .what = "reading"};
    return found;
  }
  Superblock& member(const std::string& dir, unsigned device, std::uint64_t opening = kOpening) {
    Superblock& block = found(dir, CopiesKind::kValid).file.verdict.in_force;
    block.uuid = uuid_number(device);
    block.boot_epoch = opening;
    block.segment_bytes = kSegmentBytesMin;
    block.features_incompatible = kFeatureMember;
    block.store = kStoreUuid;
    return block;
  }
  Superblock& alone(const std::string& dir, unsigned device, std::uint64_t opening = kOpening) {
    Superblock& block = member(dir, device, opening);
    block.features_incompatible = 0;
    block.store = {};
    return block;
  }

  // What becomes of each option and of each member that is away, in the order of the list: "/1=1 /3=new away:2". A
  // member that is begun anew: "/1=anew:1". Then the list that is to be written: "1 !2", with those that count no more.
  std::string plan(bool forget_missing = false) {
    auto planned = plan_devices(list_, found_, forget_missing, why_);
    if (!planned) {
      code_ = planned.error().code;
      return "refused";
    }
    plan_ = std::move(*planned);
    std::string text;
    const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
    for (const DevicePlace& place : plan_.places) {
      const std::string was = number(place.device.uuid);
      if (!place.found) {
        add("away:" + was);
      } else {
        add(found_[*place.found].dir + "=" + (!place.anew ? was : was == "0" ? "new" : "anew:" + was));
      }
    }
    text += " |";
    for (const ListedDevice& device : plan_.list.devices)
      add((device.confirmed == kStruck ? "!" : "") + number(device.uuid));
    return text;
  }
  static std::string number(const Uuid& uuid) { return std::to_string(std::to_integer<unsigned>(uuid[15])); }
  bool notes(Level level, const std::string& part) const {
    return std::ranges::any_of(plan_.notes, [&](const DevicePlan::Note& note) {
      return note.level == level && note.text.find(part) != std::string::npos;
    });
  }
  bool says(const std::string& part) const { return why_.find(part) != std::string::npos; }

  FoundFile<DeviceTable> list_;
  std::vector<DeviceFound> found_;
  DevicePlan plan_;
  std::string why_;
  Code code_ = Code::kOk;
};

TEST_F(DevicePlanTest, MembersAreUsedAndTheListIsOfThisOpening) {
  list(2);
  member("/1", 1, kOpening);
  member("/2", 2, kOpening);
  EXPECT_EQ(plan(), "/1=1 /2=2 | 1 2");
  EXPECT_EQ(plan_.list.generation, 8U);
  EXPECT_EQ(plan_.list.boot_epoch, kOpening + 1);
  EXPECT_EQ(plan_.list.store, kStoreUuid);
  EXPECT_EQ(plan_.list.segment_bytes, kSegmentBytesMin);
  EXPECT_TRUE(plan_.notes.empty());
}

TEST_F(DevicePlanTest, TheListHasAGenerationThatNoneBeforeHadNotEvenInVain) {
  list(1);
  member("/1", 1);
  list_.verdict.generation_max = 9;
  EXPECT_EQ(plan(), "/1=1 | 1");
  EXPECT_EQ(plan_.list.generation, 10U);
}

TEST_F(DevicePlanTest, IdentityCountsAndNotThePath) {
  list(2);
  member("/2", 1);
  member("/1", 2);
  EXPECT_EQ(plan(), "/2=1 /1=2 | 1 2");
  EXPECT_EQ(plan_.places[0].device.path, "/1") << "where it was last: that tells that it has moved";
}

TEST_F(DevicePlanTest, AMemberThatMissedOpeningsCountsWhereNobodyWroteToIt) {
  list(1);
  entries()[0].confirmed = 15;
  member("/1", 1, 15);
  EXPECT_EQ(plan(), "/1=1 | 1");
  found_[0].file.verdict.in_force.boot_epoch = 14;
  EXPECT_EQ(plan(), "/1=anew:1 | !1") << "a copy from before";
  EXPECT_TRUE(notes(Level::kError, "a copy from before"));
}

TEST_F(DevicePlanTest, AListFromBeforeItsDevicesIsNotBelieved) {
  list(3);
  member("/1", 1, kOpening + 1);
  member("/2", 2);
  found("/3", CopiesKind::kEmpty);
  EXPECT_EQ(plan(), "refused") << "no crash leaves one";
  EXPECT_TRUE(says("/s/devices.kvd: is from before its devices were opened last")) << why_;
  EXPECT_TRUE(says("--forget-missing")) << why_;
  EXPECT_EQ(plan(true), "/1=anew:1 /2=anew:2 /3=new | !1 !2");
  EXPECT_EQ(plan_.list.boot_epoch, kOpening + 2);
  EXPECT_TRUE(notes(Level::kError, "/s/devices.kvd: is from before"));
  found_[0].file.verdict.in_force.uuid = uuid_number(9);
  found_.push_back(found_[0]);
  found_.back().dir = "/4";
  found_.back().file.verdict.in_force.uuid = uuid_number(1);
  found_.back().file.verdict.in_force.boot_epoch = kOpening;
  EXPECT_EQ(plan(true), "/4=anew:1 /2=anew:2 /1=new /3=new | !1 !2") << "also one that it does not know";
}

TEST_F(DevicePlanTest, WhoWasStruckIsBegunAnew) {
  list(2);
  entries()[1].confirmed = kStruck;
  member("/1", 1);
  member("/2", 2);
  EXPECT_EQ(plan(), "/1=1 /2=anew:2 | 1 !2");
  EXPECT_TRUE(notes(Level::kWarn, "device /2: was given up while it was away"));
}

TEST_F(DevicePlanTest, AMemberThatIsNotListedIsBegunAnew) {
  list(1);
  member("/1", 1);
  member("/5", 5);
  EXPECT_EQ(plan(), "/1=1 /5=new | 1") << "its opening was interrupted before it was listed";
  EXPECT_TRUE(notes(Level::kWarn, "device /5: is not in the store's list"));
}

TEST_F(DevicePlanTest, ADeviceThatWasToReplaceOneTakesItsPlaceTheNextTime) {
  list(2);
  entries()[1].confirmed = kStruck;
  member("/1", 1);
  member("/2", 5);
  EXPECT_EQ(plan(), "/1=1 /2=anew:2 | 1 !2");
  entries()[1].confirmed = kOpening;
  EXPECT_EQ(plan(), "refused") << "that of a member which may still be elsewhere it does not";
  EXPECT_TRUE(says("last at /2")) << why_;
}

TEST_F(DevicePlanTest, WhatIsOfAnotherStoreIsRefused) {
  list(1);
  member("/1", 1);
  member("/2", 2).store = uuid_number(101);
  EXPECT_EQ(plan(), "refused");
  EXPECT_EQ(code_, Code::kInvalid);
  EXPECT_TRUE(says("/2: holds a device of another store")) << why_;
  found_.pop_back();
  alone("/2", 2);
  EXPECT_EQ(plan(), "refused");
  EXPECT_TRUE(says("/2: holds a store by itself")) << why_;
}

TEST_F(DevicePlanTest, TwoOfOneIdentityAreRefused) {
  list(2);
  member("/1", 1);
  member("/2", 1);
  EXPECT_EQ(plan(), "refused");
  EXPECT_EQ(code_, Code::kInvalid);
  EXPECT_TRUE(says("/1 and /2 hold the same device")) << why_;
}

TEST_F(DevicePlanTest, ADirectoryThatIsNamedTwiceIsRefused) {
  for (const CopiesKind kind : {CopiesKind::kEmpty, CopiesKind::kLost, CopiesKind::kUnreadable}) {
    for (const char* again : {"/2", "/2/", "/1/..//2/."}) {
      list(1);
      found_.clear();
      member("/1", 1);
      found("/2", kind);
      found(again, kind);
      EXPECT_EQ(plan(), "refused") << again;
      EXPECT_EQ(code_, Code::kInvalid);
      EXPECT_TRUE(says("is named twice")) << why_;
    }
  }
  found_.clear();
  member("/1", 1);
  found("/2", CopiesKind::kEmpty);
  found("/22", CopiesKind::kEmpty);
  EXPECT_EQ(plan(), "/1=1 /2=new /22=new | 1");
}

TEST_F(DevicePlanTest, AnEmptyPlaceOfAMemberIsAMemberThatIsAway) {
  list(2);
  member("/1", 1);
  found("/2", CopiesKind::kEmpty);
  EXPECT_EQ(plan(), "/1=1 away:2 | 1 2");
  EXPECT_TRUE(notes(Level::kError, "device /2: is empty"));
  EXPECT_TRUE(notes(Level::kError, "--forget-missing"));
  entries()[1].confirmed = kStruck;
  EXPECT_EQ(plan(), "/1=1 away:2 | 1 !2") << "also when it was struck";
  entries()[1].confirmed = kOpening;
  EXPECT_EQ(plan(true), "/1=1 /2=new | 1 2") << "a new drive; the old one counts until a start has succeeded";
  EXPECT_TRUE(notes(Level::kWarn, "(last at /2): forgotten"));
}

TEST_F(DevicePlanTest, WhereNoMemberIsMissingAnEmptyPlaceIsANewDevice) {
  list(1);
  member("/5", 1);
  found("/1", CopiesKind::kEmpty);
  EXPECT_EQ(plan(), "/5=1 /1=new | 1");
}

TEST_F(DevicePlanTest, ADriveThatCannotBeReadStandsForAMemberThatIsMissing) {
  list(3);
  member("/1", 1);
  found("/9", CopiesKind::kUnreadable);
  found("/2", CopiesKind::kUnreadable);
  EXPECT_EQ(plan(), "/1=1 away:2 away:3 | 1 2 3");
  EXPECT_TRUE(notes(Level::kError, "device /2: cannot be read"));
  EXPECT_TRUE(notes(Level::kError, "(last at /3)")) << "that of another place for whichever is left";
  found("/8", CopiesKind::kUnreadable);
  EXPECT_EQ(plan(), "refused") << "nobody is left";
  EXPECT_EQ(code_, Code::kIo);
  EXPECT_TRUE(says("/8/flash.kvd: cannot be read")) << why_;
}

TEST_F(DevicePlanTest, ADriveWhoseSuperblocksAreLostIsBegunAnewInItsPlace) {
  list(2);
  member("/1", 1);
  found("/2", CopiesKind::kLost);
  EXPECT_EQ(plan(), "/1=1 /2=anew:2 | 1 !2");
  EXPECT_TRUE(notes(Level::kError, "device /2: all superblocks are damaged"));
  found_[1].dir = "/3";
  EXPECT_EQ(plan(), "refused") << "elsewhere it stands for nobody";
  EXPECT_TRUE(says("last at /2")) << why_;
}

TEST_F(DevicePlanTest, AMemberThatNoOptionCouldStandForIsNamed) {
  list(2);
  member("/1", 1);
  EXPECT_EQ(plan(), "refused");
  EXPECT_EQ(code_, Code::kInvalid);
  EXPECT_EQ(why_,
            "device 00000000-0000-0000-0000-000000000002 (last at /2) is not named: add --device DIR, or start once "
            "with --forget-missing");
  EXPECT_EQ(plan(true), "/1=1 | 1 2") << "it counts until a start has succeeded";
  EXPECT_EQ(plan_.list.devices[1].confirmed, kOpening);
  EXPECT_TRUE(notes(Level::kWarn, "(last at /2): forgotten"));
  entries()[1].confirmed = kStruck;
  EXPECT_EQ(plan(), "/1=1 | 1") << "one that was struck need not be named";
}

TEST_F(DevicePlanTest, ForgettingTakesThePlaceOfOneThatCannotBeRead) {
  list(2);
  member("/1", 1);
  found("/2", CopiesKind::kUnreadable);
  EXPECT_EQ(plan(true), "/1=1 | 1 2");
}

TEST_F(DevicePlanTest, ForgettingAllIsRefused) {
  list(2);
  found("/1", CopiesKind::kEmpty);
  found("/2", CopiesKind::kEmpty);
  EXPECT_EQ(plan(true), "refused") << "nothing is mounted";
  EXPECT_TRUE(says("/s/devices.kvd: none of its devices is there")) << why_;
  found_[0].file.verdict.kind = CopiesKind::kUnreadable;
  EXPECT_EQ(plan(true), "refused");
  found_.clear();
  member("/9", 1);
  found("/2", CopiesKind::kEmpty);
  EXPECT_EQ(plan(true), "/9=1 /2=new | 1 2");
  entries()[0].confirmed = kStruck;
  EXPECT_EQ(plan(true), "refused") << "one that was given up does not count";
  entries()[1].confirmed = kStruck;
  EXPECT_EQ(plan(true), "/9=anew:1 /2=new | !1") << "but where all were there is nothing to lose";
}

TEST_F(DevicePlanTest, WithoutAListAStoreByItselfIsTheFirstMember) {
  alone("/s", 1).segments = 12;
  found_[0].own = true;
  found("/2", CopiesKind::kEmpty);
  EXPECT_EQ(plan(), "/s=1 /2=new | 1");
  EXPECT_EQ(plan_.list.store, uuid_number(1)) << "its identity is the store's";
  EXPECT_EQ(plan_.list.segment_bytes, kSegmentBytesMin);
  EXPECT_EQ(plan_.list.generation, 1U);
  EXPECT_EQ(plan_.list.boot_epoch, kOpening + 1);
  EXPECT_EQ(plan_.list.devices, (std::vector<ListedDevice>{{uuid_number(1), 12, 0, "/s"}}));
  list_.verdict.kind = CopiesKind::kLost;
  EXPECT_EQ(plan(), "/s=1 /2=new | 1") << "the first list was torn";
  found_[0].own = false;
  EXPECT_EQ(plan(), "refused") << "in a place of its own it is another store";
  EXPECT_TRUE(says("a store by itself")) << why_;
}

TEST_F(DevicePlanTest, WithoutItsListAStoreByItselfBesideItsMemberIsFromBefore) {
  alone("/s", 1, 15).segments = 12;
  found_[0].own = true;
  member("/2", 2).store = uuid_number(1);
  for (const CopiesKind kind : {CopiesKind::kEmpty, CopiesKind::kLost})
    for (const bool forget : {false, true}) {
      list_.verdict.kind = kind;
      EXPECT_EQ(plan(forget), "refused");
      EXPECT_EQ(code_, Code::kInvalid);
      EXPECT_TRUE(says("/s/flash.kvd is from before /2 became a device of the store")) << why_;
    }
}

TEST_F(DevicePlanTest, AFirstMemberWhoseOpeningWasInterruptedIsThatStoreStill) {
  list(1);
  entries()[0].confirmed = 0;
  alone("/1", 1, kOpening + 5);
  EXPECT_EQ(plan(), "/1=1 | 1") << "whatever an older version did with it meanwhile";
  EXPECT_EQ(plan_.list.boot_epoch, kOpening + 6);
  entries()[0].confirmed = kOpening;
  EXPECT_EQ(plan(), "/1=anew:1 | !1") << "from before it was a member";
}

TEST_F(DevicePlanTest, WithoutAListNothingIsTakenFromAnotherStore) {
  found("/s", CopiesKind::kEmpty).own = true;
  found("/1", CopiesKind::kEmpty);
  EXPECT_EQ(plan(), "/s=new /1=new |") << "a new store";
  EXPECT_EQ(plan_.list.store, Uuid{});
  member("/2", 2);
  EXPECT_EQ(plan(), "refused");
  EXPECT_TRUE(says("/2: holds a device of another store")) << why_;
}

TEST_F(DevicePlanTest, WhoLosesTheListStartsEmptyOnItsDevices) {
  list_.verdict.kind = CopiesKind::kLost;
  member("/1", 1);
  member("/2", 2, kOpening + 1);
  EXPECT_EQ(plan(), "refused") << "not without being asked for";
  EXPECT_TRUE(says("/s/devices.kvd: is damaged: ")) << why_;
  EXPECT_EQ(plan(true), "/1=new /2=new |");
  EXPECT_EQ(plan_.list.store, Uuid{}) << "another store from now on";
  EXPECT_EQ(plan_.list.boot_epoch, kOpening + 2);
  EXPECT_TRUE(notes(Level::kError, "the list of devices is lost"));
  found_[1].file.verdict.in_force.store = uuid_number(101);
  EXPECT_EQ(plan(true), "refused") << "of two stores nobody knows which is meant";
}

TEST_F(DevicePlanTest, WhatIsNewerOrNotOursIsRefused) {
  list(1);
  member("/1", 1);
  found("/2", CopiesKind::kNewer);
  EXPECT_EQ(plan(), "refused");
  EXPECT_EQ(code_, Code::kStale);
  EXPECT_TRUE(says("/2/flash.kvd: was written by a newer version")) << why_;
  found_[1].file.verdict.kind = CopiesKind::kForeign;
  EXPECT_EQ(plan(), "refused");
  EXPECT_EQ(code_, Code::kInvalid);
  found_.pop_back();
  list_.verdict.kind = CopiesKind::kNewer;
  EXPECT_EQ(plan(), "refused");
  EXPECT_EQ(code_, Code::kStale);
  EXPECT_TRUE(says("/s/devices.kvd: was written by a newer version")) << why_;
  list_.verdict.kind = CopiesKind::kUnreadable;
  list_.error = {.code = Code::kIo, .sys_errno = 5, .what = "reading"};
  EXPECT_EQ(plan(), "refused");
  EXPECT_EQ(code_, Code::kIo);
}

TEST_F(DevicePlanTest, APathThatTheListCannotHoldIsRefused) {
  found("/" + std::string(kDevicePathMax, 'x'), CopiesKind::kEmpty);
  EXPECT_EQ(plan(), "refused");
  EXPECT_TRUE(says("longer than 192 bytes")) << why_;
}

// ---- Looking. ----

TEST(StoreDevices, LooksAtWhatIsThereWithoutChangingIt) {
  io::SimClock clock;
  io::SimLoop loop(clock);
  io::SimDisks disks(1);
  RecordingLog log;
  EXPECT_EQ(look_at_device(loop, disks, "/none", false, false).file.verdict.kind, CopiesKind::kEmpty);
  EXPECT_EQ(look_at_list(loop, disks, "/s", false).verdict.kind, CopiesKind::kEmpty);

  Superblock block;
  block.uuid = uuid_number(1);
  block.segment_bytes = kSegmentBytesMin;
  DeviceTable table{kStoreUuid, 3, kOpening, kSegmentBytesMin, {{uuid_number(1), 4, 2, "/1"}}};
  const auto write = [&](const std::string& path, std::uint64_t bytes, std::uint64_t stride, auto encode) {
    const auto disk = std::move(*disks.open(loop, log, path, {.bytes = bytes}));
    EXPECT_TRUE(write_copies(loop, *disk, stride, encode));
  };
  write("/1/flash.kvd", kHeadBytes, kSuperblockStride, [&](MutableBytes page, std::uint32_t copy) {
    block.copy = copy;
    encode_superblock(page, block);
  });
  write("/s/devices.kvd", kDeviceTableFileBytes, kDeviceTableStride,
        [&](MutableBytes page, std::uint32_t copy) { encode_device_table(page, table, copy); });
  const std::uint64_t writes = disks.drive("/1/flash.kvd").counters().writes;

  const DeviceFound device = look_at_device(loop, disks, "/1", true, false);
  EXPECT_EQ(device.dir, "/1");
  EXPECT_TRUE(device.own);
  EXPECT_EQ(device.file.verdict.kind, CopiesKind::kValid);
  EXPECT_EQ(device.file.verdict.in_force.uuid, uuid_number(1));
  EXPECT_EQ(look_at_list(loop, disks, "/s", false).verdict.in_force, table);

  disks.drive("/1/flash.kvd").fail_all(EIO);
  const DeviceFound broken = look_at_device(loop, disks, "/1", true, false);
  EXPECT_EQ(broken.file.verdict.kind, CopiesKind::kUnreadable);
  EXPECT_EQ(broken.file.error.sys_errno, EIO);
  EXPECT_EQ(disks.drive("/1/flash.kvd").counters().writes, writes);
}

}  // namespace
}  // namespace kvd::store
