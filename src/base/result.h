// The room's door to the one error vocabulary, which is public: see include/kvdepot/result.h.
#pragma once

#include "kvdepot/result.h"  // IWYU pragma: export
