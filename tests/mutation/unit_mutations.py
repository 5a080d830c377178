#!/usr/bin/env python3
"""Proves that unit tests can fail: takes one safeguard at a time out of a copy of the sources, links the room's test
program against each copy, and expects the tests that guard it to go red. What whole programs guard is in
storage_mutations.py and network_mutations.py. Skipped (exit 77) where there is no build with a ninja file.

    tests/mutation/unit_mutations.py build/release [kvd_store_test]     # of this program only
"""

from __future__ import annotations

import sys
from pathlib import Path

from mutants import Mutant, hunt, tests_fail

# What is taken out, the source, what is replaced, by what (each text must occur exactly once in its source), and which
# tests must see it.
MUTATIONS = [
    ("what a removal hides in another segment than it names comes back", "src/store/recovery.cc",
     "    if (entry->segment != t.segment)\n", "    if (entry->segment == UINT32_MAX)\n",
     "kvd_store_test", "ReplacementTest.*"),
    ("an opening numbers its puts by what it can read", "src/store/recovery.cc",
     "  flash_.put_seq_next = std::max(flash_.put_seq_next, flash_.volume.boot_epoch() << 40);", "",
     "kvd_store_test", "ReplacementTest.*"),
    ("who waits for a replaced record is not told when the tier goes off", "src/store/demoter.cc",
     "  if (!flash_.health.on()) return take_acks(record, tier_is_off());", "", "kvd_store_test", "ReplacementTest.*"),
    ("one tenant at its quota has everybody's records written", "src/store/demoter.cc",
     "return Which::kOfPressing;", "return Which::kAll;", "kvd_store_test", "StoreQuotaTest.*"),
    ("a table of uses is believed whatever the newest header says", "src/store/recovery.cc",
     "         read[0].generation == newest.generation && read[0].unopened == newest.unopened;", "         true;",
     "kvd_store_test", "UseTableTest.*"),
    ("the reads of a long scan are taken for a device that hangs", "src/store/blocking_disk.cc",
     "  if (health_ != nullptr) health_->completed(expected, true);", "  static_cast<void>(expected);",
     "kvd_store_test", "StoreRecovery.*"),
    ("frames that cannot be read are the end of their segment", "src/store/segment_scan.cc",
     "      found.cut_short = !status;\n", "", "kvd_store_test", "PartlyReadTest.*"),
    ("what is removed comes back from where recovery could not read", "src/store/store_impl.cc",
     "    if (tier_->flash.segments.holds(place.segment, place.generation)) places.push_back(place);",
     "    static_cast<void>(place);", "kvd_store_test", "PartlyReadTest.*"),
    ("a device that hangs during recovery keeps puts out of the pool", "src/store/store_impl.cc",
     "  if (recovering()) {  // what is still", "  if (recovering_) {  // what is still",
     "kvd_store_test", "WhileRecoveringTest.*"),
    ("namespaces wait for what a device that hangs may hold", "src/store/store_impl.cc",
     "  namespaces_->set_reading(false);\n", "", "kvd_store_test", "WhileRecoveringTest.*"),
    ("segments are given up for what was opened while the tier is off", "src/store/evictor.cc",
     "  if (!flash_.health.on()) return flash_.update_gauges();  // what flash holds is the next opening's\n", "",
     "kvd_store_test", "WhileRecoveringTest.*"),
    ("recovery takes namespaces of one segment for one", "src/store/recovery.cc",
     "std::uint32_t{d.name_space} << 16 | d.schema", "std::uint32_t{d.schema}", "kvd_store_test", "StoreRecovery.*"),
    ("recovery takes schemas of one namespace for one", "src/store/recovery.cc",
     "std::uint32_t{d.name_space} << 16 | d.schema", "std::uint32_t{d.name_space} << 16",
     "kvd_store_test", "StoreRecovery.*"),
    ("a copy that was given up counts for who waits for one on flash", "src/store/demoter.cc",
     "flash_.backs(record.place) && !flash_.usage.given_up(*record.tenant, record.place.segment, record.place.offset);",
     "flash_.backs(record.place);", "kvd_store_test", "StoreQuotaTest.*"),
    ("an older copy that was given up may come back behind a newer one", "src/store/demoter.cc",
     "  if (outdated.generation != 0) record.note_replaced({outdated.segment, outdated.generation});\n", "",
     "kvd_store_sim_test", "*HasQuotas*"),
    ("what is written anew does not end the copy that was there", "src/store/flash.cc",
     "      *outdated = {before.segment, before.offset, segments.at(before.segment).generation, before.checksum};",
     "      *outdated = {};", "kvd_store_test", "FlashTest.*"),
    ("a rewrite that fails takes the copy that was acknowledged with it", "src/store/demoter.cc",
     "  const bool rewrite = flash_.known(record.key.hash).has_value();", "  const bool rewrite = false;",
     "kvd_store_test", "FlashTest.*"),
    ("a removal does not end a rewrite that failed and is there", "src/store/store_impl.cc",
     "  std::vector<ReplacedPlace> places = tier_->flash.strays.take(hash);",
     "  std::vector<ReplacedPlace> places;", "kvd_store_test", "FlashTest.*"),
    ("a damaged copy takes its successor with it", "src/store/store_impl.cc",
     "  bury(key, place, succeeded ? record->put_seq : 0);", "  bury(key, place, succeeded ? 0 : 0);",
     "kvd_store_test", "DamagedRecordTest.*"),
    ("what a record replaces may come back behind it", "src/store/flash.cc",
     "      tombstones.imply(tombstone, place.segment, place.generation);", "      static_cast<void>(tombstone);",
     "kvd_store_sim_test", "*HasQuotas*"),
    ("what is pinned at a smaller quota stays", "src/store/pool.cc",
     "      if (!tenant->pool_takes(0) && on_beyond_) on_beyond_(*tenant);\n", "",
     "kvd_store_test", "StoreQuotaTest.*"),
    ("what waits to be written at a smaller quota waits on", "src/store/store_quota.cc",
     "tier_->demoter.press(tenant);\n  // While", "static_cast<void>(0);\n  // While",
     "kvd_store_test", "StoreQuotaTest.*"),
    ("records are evicted for one that is refused then", "src/store/pool.cc",
     "suffice(tenant, bytes, most) && evict_beyond", "(suffice(tenant, bytes, most) || most > 0) && evict_beyond",
     "kvd_store_test", "StoreQuotaTest.*"),
    ("a large record evicts no more than a turn's worth", "src/store/pool.cc",
     "std::max<std::size_t>(kGivenUpMax, bytes / kPageBytes)", "kGivenUpMax", "kvd_store_test", "StoreQuotaTest.*"),
    ("quotas of all tenants are fitted in one turn", "src/store/store_quota.cc",
     "    if (trim_some(tenant)) break;\n", "    if (trim_some(tenant)) continue;\n    idle = true;\n",
     "kvd_store_test", "StoreQuotaTest.*"),
    ("shares of tenants in segments are not bounded", "src/store/flash_usage.cc",
     "  const std::size_t more = std::min<std::size_t>(shares_left_, kStep);", "  const std::size_t more = kStep;",
     "kvd_store_test", "FlashUsage*"),
    ("a tenant without shares gives up nothing", "src/store/flash_usage.cc",
     "  while (!fits(most) && !tenant.coarse.empty()) give_up_coarse(tenant);\n", "", "kvd_store_test", "FlashUsage*"),
    ("a tenant opens as many namespaces as it likes", "src/store/namespaces.cc",
     "  if (space == nullptr || space->opened.value() < space->quota.namespaces) return {};", "  return {};",
     "kvd_store_test", "StoreQuotaTest.*"),
    ("of revocation lists only that of the client's own authority is asked", "src/tls/context.cc",
     "X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL", "X509_V_FLAG_CRL_CHECK",
     "kvd_tls_test", "*"),
    ("an authority needs no revocation list", "src/tls/context.cc",
     "    bool listed = authority == nullptr;", "    bool listed = authority == nullptr || count > 0;",
     "kvd_tls_test", "TlsContext.*"),
    ("who guesses a token gives its place away", "src/node/session_auth.cc",
     "    stranger_.stay();\n", "",
     "kvd_node_test", "NodeAuth.*"),
    ("a Redis client who guesses a token does, too", "src/node/resp_commands.cc",
     "    stranger_.stay();\n", "",
     "kvd_node_test", "RespByCredential.*"),
    ("names of tenants are shown as they are", "src/node/metrics.cc",
     "    if (auth::is_name({&c, 1}, 1)) {", "    if (c != '%') {",
     "kvd_node_test", "NodeMetrics.*"),
    ("what is encrypted for those who do not read is not bounded together", "src/net/connection_send.cc",
     "stream_->is_secure() && is_crowded() ? kOwnedBytesCrowded : kSendBytesMax", "kSendBytesMax",
     "kvd_node_test", "NodeTls.*"),
    ("a farewell has one second", "src/net/connection.cc",
     "    return stall_timer_.arm_in(kFarewellLimit);", "    return close(why_closed_);",
     "kvd_net_test", "SendTest.*"),
    ("a tenant's connections are not counted", "src/node/tenants.cc",
     "  if (tenant->connections.has_room(1)) {", "  if (tenant != nullptr) {",
     "kvd_node_test", "NodeAuth.*"),
    ("connections are kept for nobody", "src/node/tenants.cc",
     "  return taken < connections_max_;", "  return taken < 2 * connections_max_;",
     "kvd_node_test", "NodeAuth.*"),
]


def main() -> int:
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build/release").resolve()
    mutants = [Mutant(*place, tests_fail(tests)) for *place, tests in MUTATIONS]
    wanted = [mutant for mutant in mutants if mutant.program in (sys.argv[2:] or [mutant.program])]
    return hunt(build, wanted)


if __name__ == "__main__":
    sys.exit(main())
