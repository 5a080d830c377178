// net_driver: one client of the net suite, obeying lines on stdin (arm.h says which): the C++ half of bench/net.py.
//
//   net_driver depot tcp://127.0.0.1:7070     net_driver depot-shm tcp://127.0.0.1:7070
//   net_driver depot tls://localhost:7070 CA-FILE
//   net_driver redis 6379                     net_driver memcached 11211
//   net_driver raw 5000                       net_driver memcpy
//   net_driver borrow tcp://127.0.0.1:7070    net_driver xxh3
//   net_driver tls-loop 5000 CA-FILE
//   net_driver raw-server                     the other half of raw: says its port and serves
//   net_driver tls-loop-server CERT KEY       the same of tls-loop
#include <cstdlib>
#include <string>

#include "depot_arm.h"
#include "limit_arms.h"
#include "text_arm.h"
#include "tls_loop.h"

namespace {

using namespace kvd::bench;

std::uint16_t port(const std::string& text) {
  const unsigned long number = std::strtoul(text.c_str(), nullptr, 10);
  if (number == 0 || number > 65535) throw Error("no port: " + text);
  return static_cast<std::uint16_t>(number);
}

std::unique_ptr<Arm> open(const std::string& kind, const std::string& where, const std::string& ca) {
  if (kind == "depot" || kind == "depot-shm") return open_depot(where, kind == "depot-shm", ca);
  if (kind == "borrow") return open_borrower(where);
  if (kind == "xxh3") return open_xxh3();
  if (kind == "redis") return open_redis(port(where));
  if (kind == "memcached") return open_memcached(port(where));
  if (kind == "tls-loop") return open_tls_loop(port(where), ca);
  if (kind == "raw") return open_raw(port(where));
  if (kind == "memcpy") return open_memcpy();
  throw Error("no such client: " + kind);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  const std::string where = argc > 2 ? argv[2] : "";
  const std::string file = argc > 3 ? argv[3] : "";
  try {
    if (kind == "raw-server") serve_raw();
    if (kind == "tls-loop-server") serve_tls_loop(where, file);
  } catch (const std::exception& error) {
    return complain(error.what());
  }
  return obey_made([&] { return open(kind, where, file); });
}
