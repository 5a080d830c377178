// What `kvdepot inspect` prints about a store: for people and as JSON. Pure.
#pragma once

#include <string>

#include "store/inventory.h"
#include "store/store_files.h"

namespace kvd::cmd {

// A namespace's fingerprint is opaque: as it is when it can be printed, else in hexadecimal digits.
std::string show_opaque(const std::string& bytes);

// `segments`: with a line for each segment that is not free.
std::string inventory_text(const store::StoreFiles& files, const store::Inventory& inventory, bool segments);
// One object in one line; all sizes in bytes.
std::string inventory_json(const store::StoreFiles& files, const store::Inventory& inventory);

}  // namespace kvd::cmd
