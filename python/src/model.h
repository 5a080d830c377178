// Adds class LoadChoice (src/model/load_choice.h) to the module kvdepot._kvdepot. Called once, when it is imported.
#pragma once

#include <nanobind/nanobind.h>

namespace kvd::python {

void add_model(nanobind::module_& module);

}  // namespace kvd::python
