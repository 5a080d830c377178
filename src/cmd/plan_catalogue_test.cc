// The list of what is known: every entry of the catalogue is in it, as text and as JSON.
#include "cmd/plan_catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvd::cmd {
namespace {

using testing::HasSubstr;

TEST(PlanCatalogue, ListsEveryEntryWhetherAClassUsesItOrNot) {
  const model::Catalogue& catalogue = model::Catalogue::built_in();
  const std::string text = catalogue_text(catalogue);
  for (const auto& names :
       {catalogue.device_names(), catalogue.model_names(), catalogue.link_names(), catalogue.storage_names()}) {
    EXPECT_FALSE(names.empty());
    for (const std::string& name : names) EXPECT_THAT(text, HasSubstr(name));
  }
  for (const model::DeploymentClass& c : catalogue.classes()) {
    EXPECT_THAT(text, HasSubstr("\n  " + c.name + " "));
    EXPECT_THAT(text, HasSubstr(c.source));
  }
  EXPECT_THAT(text, HasSubstr("2.8 GB/s at 1 KiB, 18.8 at 4 KiB"));
  EXPECT_THAT(text, HasSubstr("us a layer and"));
  EXPECT_LT(text.find("\nmodels ("), text.find("\nlinks ("));
  EXPECT_LT(text.find("\nstorage ("), text.find("\nclasses ("));
}

TEST(PlanCatalogue, JsonHoldsTheSameEntries) {
  const model::Catalogue& catalogue = model::Catalogue::built_in();
  const auto json = nlohmann::json::parse(catalogue_json(catalogue));
  EXPECT_EQ(json["storage"].size(), catalogue.storage_names().size());
  EXPECT_EQ(json["link"].size(), catalogue.link_names().size());
  EXPECT_EQ(json["class"].size(), catalogue.classes().size());
  std::size_t names = 0;
  for (const auto& device : json["device"]) {
    names += 1 + device["aliases"].size();
    const model::Device& known = *catalogue.device(device["name"].get<std::string>());
    EXPECT_EQ(device["layer_s"].get<double>(), known.layer_s);
    EXPECT_EQ(device["flops_per_s"]["bf16"].get<double>(), known.peak_flops_per_s("bf16"));
  }
  EXPECT_EQ(names, catalogue.device_names().size());
  for (const char* const kind : {"device", "model", "link", "storage", "class"}) {
    for (const auto& entry : json[kind]) EXPECT_FALSE(entry["source"].get<std::string>().empty()) << entry;
  }
}

}  // namespace
}  // namespace kvd::cmd
