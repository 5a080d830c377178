// Tests of the catalogue: what is built in, what a user's file adds, and what is said about a bad one.
#include "model/catalogue.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::model {
namespace {

using testing::Contains;
using testing::HasSubstr;

std::string complaint_of(const std::string& toml) {
  Catalogue catalogue = Catalogue::built_in();
  const auto added = catalogue.add(toml, "mine.toml");
  return added ? "" : added.error().str();
}

const std::string kLink = "[[link]]\nname = \"l\"\nsource = \"s\"\n";

TEST(Catalogue, KnowsTheTalksModelsAndDevices) {
  const Catalogue& catalogue = Catalogue::built_in();
  ASSERT_NE(catalogue.model("Llama-3-70B"), nullptr);
  for (const char* name : {"a100-40gb", "a100", "h100", "H100-SXM", "h200", "cpu"}) {
    ASSERT_NE(catalogue.device(name), nullptr) << name;
    EXPECT_FALSE(catalogue.device(name)->origin.source.empty());
  }
  EXPECT_EQ(catalogue.device("h100")->peak_flops_per_s("fp8"), 1979e12);
  EXPECT_EQ(catalogue.device("a100")->peak_flops_per_s("fp8"), 312e12);  // computed as bf16
  EXPECT_EQ(catalogue.device("b300"), nullptr);
  EXPECT_THAT(catalogue.model_names(), Contains("deepseek-r1"));
  std::vector<std::string> classes;
  for (const auto& made : catalogue.classes()) classes.push_back(made.name);
  EXPECT_EQ(classes, (std::vector<std::string>{"S0", "S1a", "S1b", "S2a", "S2b", "S3"}));
}

TEST(Catalogue, BandwidthGrowsWithTheRequest) {
  const Bandwidth points{{4096, 1e9}, {65536, 3e9}};
  EXPECT_DOUBLE_EQ(bandwidth_at(points, 1), 1e9);
  EXPECT_DOUBLE_EQ(bandwidth_at(points, 16384), 2e9);  // half of the way in powers of two
  EXPECT_DOUBLE_EQ(bandwidth_at(points, 1e9), 3e9);
  EXPECT_DOUBLE_EQ(bandwidth_at({}, 1), 0);
}

TEST(Catalogue, AFileAddsAndReplacesEntries) {
  Catalogue catalogue = Catalogue::built_in();
  const auto added = catalogue.add(R"(
[[device]]
name = "mine"
memory_bytes = 1e9
memory_bytes_per_s = 1e9
flops_per_s = {bf16 = 1e12}
compute_efficiency = 1
memory_efficiency = 1
error = 0.05
measured = true
source = "measured by me"
[[model]]
name = "tiny"
aliases = ["tiny-alias"]
source = "made up"
config = {hidden_size = 64, num_hidden_layers = 2, num_attention_heads = 4, vocab_size = 100}
[[class]]
name = "S3"
source = "made up"
storage = "mine-nvme"
shared = true
[[storage]]
name = "mine-nvme"
read_bytes_per_s = [[4096, 1e9]]
write_bytes_per_s = [[4096, 1e9]]
capacity_bytes = 1e12
source = "x"
)",
                                   "mine.toml");
  ASSERT_TRUE(added.has_value()) << added.error().str();
  ASSERT_NE(catalogue.device("mine"), nullptr);
  EXPECT_TRUE(catalogue.device("mine")->origin.measured);
  EXPECT_NE(catalogue.model("tiny-alias"), nullptr);
  EXPECT_EQ(catalogue.classes().size(), 6U);
  EXPECT_EQ(catalogue.classes().back().storage, "mine-nvme");
}

TEST(Catalogue, SingleNumbersOfAMeasuredEntryMayComeFromADataSheet) {
  Catalogue catalogue = Catalogue::built_in();
  const std::string measured = kLink + "bytes_per_s = [[4096, 1e9]]\nlatency_s = 1e-5\nmeasured = true\n";
  ASSERT_TRUE(catalogue.add(measured + "data_sheet = [\"latency_s\"]\n", "f").has_value());
  const Origin& origin = catalogue.link("l")->origin;
  EXPECT_TRUE(origin.measured_value("bytes_per_s"));
  EXPECT_FALSE(origin.measured_value("latency_s"));
  EXPECT_EQ(origin.kind(), "measured but for latency_s");
  EXPECT_EQ(catalogue.device("h200")->origin.kind(), "data sheet");
  EXPECT_TRUE(catalogue.device("h100")->origin.measured_value("compute_efficiency"));
  EXPECT_FALSE(catalogue.device("h100")->origin.measured_value("memory_bytes"));
  EXPECT_THAT(complaint_of(measured + "data_sheet = [\"latency\"]\n"),
              HasSubstr("mine.toml:7: data_sheet: 'latency' is no key of this entry"));
  EXPECT_THAT(complaint_of(measured + "data_sheet = true\n"), HasSubstr("expected data_sheet = ["));
  EXPECT_THAT(complaint_of(kLink + "bytes_per_s = [[4096, 1e9]]\ndata_sheet = [\"latency_s\"]\nlatency_s = 1\n"),
              HasSubstr("beside measured = true"));
}

TEST(Catalogue, CopiesOverPcieFollowTheFitTheyAreTakenFrom) {
  for (const auto& [name, bytes_per_s] : {std::pair{"pcie-gen4-x16", 24e9}, {"pcie-gen5-x16", 50e9}}) {
    for (const auto& [bytes, rate] : Catalogue::built_in().link(name)->bytes_per_s) {
      EXPECT_NEAR(rate / (bytes / (2.4e-6 + bytes / bytes_per_s)), 1, 0.005) << name << " " << bytes;
    }
  }
}

TEST(Catalogue, ADeviceSumsUpOverTheLinkThatItNames) {
  Catalogue catalogue = Catalogue::built_in();
  EXPECT_EQ(catalogue.device("h100-pcie")->all_reduce_byte_s(2), 0) << "it names none";
  ASSERT_TRUE(catalogue
                  .add("[[link]]\nname = \"nvlink-h100\"\nsource = \"s\"\nlatency_s = 1e-5\n"
                       "bytes_per_s = [[1024, 1e9], [1048576, 1e11]]\n",
                       "f")
                  .has_value());
  EXPECT_DOUBLE_EQ(catalogue.device("h100")->all_reduce_latency_s(2), 1e-5) << "a replaced link counts";
  EXPECT_DOUBLE_EQ(catalogue.device("h100")->all_reduce_byte_s(4), 1.5e-11) << "large messages' rate";
  EXPECT_EQ(catalogue.device("h100")->all_reduce_latency_s(1), 0);
  EXPECT_THAT(complaint_of("[[device]]\nname = \"d\"\nsource = \"s\"\nmemory_bytes = 1\nmemory_bytes_per_s = 1\n"
                           "flops_per_s = {bf16 = 1}\ncompute_efficiency = 1\nmemory_efficiency = 1\n"
                           "reduce_link = \"string\"\n"),
              HasSubstr("no link 'string'"));
}

// Small requests move what the sources' requests a second make of their size, large ones the whole bandwidth.
TEST(Catalogue, SmallRequestsToServicesAreLimitedByTheirNumber) {
  const Storage& objects = *Catalogue::built_in().storage("object-store");
  for (const auto& [curve, per_s] :
       {std::pair{objects.read_bytes_per_s, 5500.0}, {objects.write_bytes_per_s, 3500.0}}) {
    for (const auto& [bytes, rate] : curve) EXPECT_NEAR(rate / std::min(1e9, bytes * per_s), 1, 0.005) << bytes;
    EXPECT_EQ(curve.back().second, 1e9);
  }
  const Storage& drive = *Catalogue::built_in().storage("nvme-gen4");
  EXPECT_NEAR(bandwidth_at(drive.read_bytes_per_s, 4096) / (900e3 * 4096), 1, 0.005);
  EXPECT_NEAR(bandwidth_at(drive.write_bytes_per_s, 4096) / (200e3 * 4096), 1, 0.005);
}

TEST(Catalogue, ABadFileAddsNothing) {
  Catalogue catalogue = Catalogue::built_in();
  const std::string good = kLink + "bytes_per_s = [[4096, 1e9]]\n";
  EXPECT_TRUE(catalogue.add(good, "f").has_value());
  Catalogue other = Catalogue::built_in();
  EXPECT_FALSE(other.add(good + "[[class]]\nname = \"S9\"\nsource = \"x\"\nstorage = \"tape\"\n", "f").has_value());
  EXPECT_EQ(other.link("l"), nullptr);
}

TEST(Catalogue, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(complaint_of("[[link]\n"), HasSubstr("mine.toml:1: "));
  EXPECT_THAT(complaint_of("[[lnk]]\nname = 1\n"), HasSubstr("no table 'lnk' is known: expected 'link'"));
  EXPECT_THAT(complaint_of("[link]\nname = \"x\"\n"), HasSubstr("expected [[link]]"));
  EXPECT_THAT(complaint_of(kLink + "bytes_per_s = [[4096, 1e9]]\nlatencys = 3\n"),
              HasSubstr("mine.toml:5: no key 'latencys' is known: expected 'latency_s'"));
  EXPECT_THAT(complaint_of(kLink), HasSubstr("mine.toml:1: expected bytes_per_s"));
  EXPECT_THAT(complaint_of(kLink + "bytes_per_s = [[4096, 1e9], [512, 1e9]]\n"), HasSubstr("mine.toml:4: "));
  EXPECT_THAT(complaint_of(kLink + "bytes_per_s = [[4096, -1]]\n"), HasSubstr("ascending in size"));
  EXPECT_THAT(complaint_of(kLink + "bytes_per_s = [[4096, 1e9]]\nlatency_s = nan\n"), HasSubstr("a positive number"));
  EXPECT_THAT(complaint_of("[[model]]\nname = \"m\"\nsource = \"s\"\n"), HasSubstr("expected config = {"));
  EXPECT_THAT(complaint_of("[[model]]\nname = \"m\"\nsource = \"s\"\nconfig = {hidden_size = 3}\n"),
              HasSubstr("mine.toml:4: no layers"));
  EXPECT_THAT(complaint_of("[[device]]\nname = \"d\"\n"), HasSubstr("expected source"));
  EXPECT_THAT(complaint_of("[[class]]\nname = \"S9\"\nsource = \"x\"\nstorage = \"tape\"\n"),
              HasSubstr("no storage 'tape'"));
  EXPECT_THAT(
      complaint_of("[[class]]\nname = \"S9\"\nstorage = \"dram\"\n"),
      HasSubstr("mine.toml:1: S9: expected source = \"...\": where this entry's values are from, in a line of your "
                "own, as in source = \"our cluster"));
}

}  // namespace
}  // namespace kvd::model
