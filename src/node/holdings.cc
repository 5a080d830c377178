#include "node/holdings.h"

namespace kvd::node {

Holdings::Holdings(NodeContext& context)
    : pins(context.pinned.bytes_max() / 100 * context.limits.connection_percent_max, context.pinned),
      lent(pins.bytes_max() / 100 * context.limits.lent_percent_max),
      kept(lent.bytes_max() / 100 * context.limits.kept_percent_max),
      kept_keys(context.kept_keys.bytes_max() / 2, context.kept_keys),
      op_keys(context.op_keys.bytes_max(), context.op_keys),
      views(context.loop, context.counters),
      keeper(context.loop) {}

}  // namespace kvd::node
