#!/usr/bin/env python3
"""Proves that the tests of the network path can fail: takes one safeguard at a time out of a copy of the sources of
client, node and connections, links kvd_net_runs against each copy, and expects 100 seeds of it to go wrong; and the
same of who is let in and what encryption holds, where the rooms' unit tests must. Skipped (exit 77) where there is no
build with a ninja file.

    tests/mutation/network_mutations.py build/release
"""

from __future__ import annotations

import sys

from mutants import Mutant, Trial, command_line, hunt, tests_fail

PROGRAM = "kvd_net_runs"
RUNS = Trial(("--seeds", "100"), ("--seeds", "10"))

# What is taken out, the source, what is replaced, by what. Each text must occur exactly once in its source.
MUTATIONS = [
    ("an operation that has ended is received for", "src/client/core.cc",
     "  if (receiving_ == &running) receiving_ = nullptr;", ""),
    ("answers of requests that were given up stay owed", "src/client/core_replies.cc",
     "header.last()) side.draining.erase(found);", "header.last()) return {};"),
    ("operations have no deadline", "src/client/core.cc",
     "  running.timer->arm(at);\n", ""),
    ("a lost connection is not made again", "src/client/channel.cc",
     "  timer_.arm_in(backoff_.next());", ""),
    ("a region is in use until its operation is released", "src/client/core.cc",
     "  op.request.region.drop();", ""),
    ("a session that has ended stays", "src/node/node.cc",
     "  const auto gone = sessions_.extract(session.number());  // until the end: it owns `why`", ""),
]

# The same, and which tests must see it.
SECURITY_MUTATIONS = [
    ("a certificate is not verified", "src/tls/stream.cc",
     "  if (X509_verify_cert(chain) == 1) return 1;", "  if (X509_verify_cert(chain) <= 1) return 1;",
     "kvd_tls_test", "TlsStreamTest.*:TlsChain.*"),
    ("revocation lists are read and not asked", "src/tls/context.cc",
     "  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);", "",
     "kvd_tls_test", "TlsStreamTest.*:TlsChain.*"),
    ("a reload within a handshake does not count for it", "src/tls/stream.cc",
     "  if (SSL_get_SSL_CTX(ssl_.get()) == context_->context_.get()) return;", "  return;",
     "kvd_tls_test", "TlsStreamTest.*"),
    ("a certificate that has expired may be shown", "src/tls/context.cc",
     "    if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0)", "    if (certificate == nullptr)",
     "kvd_tls_test", "TlsContext.*"),
    ("a certificate's listing has no end", "src/auth/authority.cc",
     '  if (found->expired(now)) return fail(Code::kStale, "its certificate is listed until an earlier day");',
     "  static_cast<void>(now);",
     "kvd_auth_test", "*"),
    ("the tenant of a credential is not looked at", "src/node/session.cc",
     "  if (identity_ != nullptr && open->ns.tenant != identity_->tenant) {", "  if (open->ns.tenant.empty()) {",
     "kvd_node_test", "NodeTls.*:NodeAuth.*"),
    ("a certificate that expires ends nothing", "src/node/session.cc",
     "  if (context_.gate.expired(connection_->stream().peer_certificate())) {", "  if (header.request_id == 0) {",
     "kvd_node_test", "NodeTls.*"),
    ("strangers that say nothing keep their places", "src/node/strangers.cc",
     "  if (entries_.size() >= places_) {", "  if (entries_.size() >= places_) return {};\n  if (places_ == 0) {",
     "kvd_node_test", "NodeTls.*:NodeAuth.*"),
    ("what encryption holds is not waited for", "src/net/connection.cc",
     "  const bool empty = queue_.empty() && stream_->unsent() == 0;", "  const bool empty = queue_.empty();",
     "kvd_node_test", "NodeTls.*"),
]


MUTANTS = [Mutant(*mutation, PROGRAM, RUNS) for mutation in MUTATIONS]
MUTANTS += [Mutant(*place, tests_fail(tests)) for *place, tests in SECURITY_MUTATIONS]


def main() -> int:
    return hunt(command_line(__doc__), MUTANTS)


if __name__ == "__main__":
    sys.exit(main())
