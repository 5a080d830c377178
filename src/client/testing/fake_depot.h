// FakeDepot: a depot small enough to read, for the client's tests. It speaks the whole native protocol over real
// sockets, keeps records in memory without bounds, and does wrong what its script says. Runs on any loop: beside the
// client on a SimLoop, or on a thread of its own (FakeDepotThread).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvdepot/client.h"
#include "net/connection.h"
#include "net/listener.h"

namespace kvd::client {

// What the fake does wrong. Read at each message; change it on the loop's thread.
struct FakeScript {
  bool hung = false;  // reads everything and answers nothing
  Code hello_status = Code::kOk;
  std::uint16_t version = wire::kVersion;  // in the HELLO reply
  Code open_status = Code::kOk;
  Code get_status = Code::kOk;
  Code put_status = Code::kOk;   // answered to PUT before any data
  std::string reason = "no";     // of these refusals
  std::uint32_t credits = 1024;  // ops_max of HELLO
  std::uint16_t layers_per_message = 1;
  bool last_message_apart = false;                        // the end of a get comes as a message of its own
  std::set<std::pair<std::size_t, std::size_t>> corrupt;  // (key, layer): a byte of it is flipped on the way out
  bool wrong_layer_order = false;
  LeaseId lease = 0;                // in MATCH replies
  bool takes_parts = true;          // of layers, in PUT data
  std::string token;                // asked for; empty = everybody may come in
  bool early = false;               // says with HELLO what memory it gives, and not with the answer to the token
  bool late_missing = false;        // says that it will say so with that, and does not
  std::uint64_t late_features = 0;  // says these with it, too
  // Of shared memory: whether it is agreed to, and then what is wrong with it.
  bool shares = false;
  bool keeps = false;         // views of GETs that ask for it, until its keeper is closed
  bool no_keeper = false;     // the message comes without its descriptor
  bool unsealed = false;      // the file could be cut
  bool no_file = false;       // as behind a proxy
  bool views_beyond = false;  // slabs that lie outside of it
  // Of an arena for puts.
  std::uint64_t arena_bytes = 0;  // 0 = there is none
  bool no_arena = false;          // the message comes without its descriptor
  bool arena_keeps = false;       // it takes what is there and does not say so
  std::uint64_t arena_lies = 0;   // so many more messages than it has taken
  bool arena_scribbled = false;   // somebody writes to a slab before it is taken
};

class FakeDepot {
 public:
  // Listens; the address is "tcp://127.0.0.1:0" or a unix path that does not exist.
  FakeDepot(io::Loop& loop, const std::string& address);
  ~FakeDepot();

  [[nodiscard]] std::string address() const { return address_; }
  // Listens on the unix socket beside its TCP port, too.
  void listen_locally();
  // Stops listening and closes all connections, as a killed process does.
  void kill();
  // Listens again, at the same address only.
  void restart();
  // Writes over all that it has lent; places what it lends from now on from the beginning of its memory again.
  void scribble();
  void reuse_memory() { memory_at_ = 0; }
  // Says what it has taken from arenas and kept to itself.
  void tell_taken();
  // Closes the connections only.
  void drop_connections();

  // Puts a record: one vector per layer.
  void store(const Namespace& ns, std::uint16_t shard, std::uint16_t group, Bytes key, bool native,
             const std::vector<std::vector<std::byte>>& slabs);

  FakeScript script;
  // What was seen, by opcode.
  std::map<wire::Opcode, std::uint64_t> seen;
  std::uint64_t bad_slabs = 0;             // of puts, that did not match their checksum
  std::vector<std::byte> last_put_data;    // payload of the last PUT data message, whole
  std::vector<std::uint64_t> put_data_of;  // requests of the PUT data and PUT arena messages
  std::uint64_t arena_put_bytes = 0;       // that came through arenas
  std::uint64_t records_put = 0;
  std::vector<LeaseId> unpinned;
  std::vector<std::uint32_t> closed;  // handles of CLOSEs
  std::vector<std::byte> checked;     // keys of CHECKs, back to back
  std::uint64_t connections = 0;
  std::vector<std::uint64_t> features_asked;  // by HELLO
  std::vector<std::string> tokens_shown;      // by AUTH
  std::set<std::uint64_t> lent;               // views that were not given back
  std::uint64_t views = 0;                    // all of them
  std::uint64_t releases_bad = 0;             // given back and not lent
  std::uint64_t gets_keep = 0;                // that asked for views to keep
  io::UniqueFd keeper;                        // of the last client that was given one: its end is that of the client's

 private:
  class Session;
  struct Record {
    std::vector<std::vector<std::byte>> slabs;
    std::vector<std::uint64_t> checksums;
  };
  void listen(const std::string& address);
  void on_accept(io::UniqueFd socket);
  std::uint64_t place_in_memory(Bytes bytes);

  io::Loop& loop_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<net::Listener> local_listener_;
  std::string address_;
  std::vector<std::unique_ptr<Session>> sessions_;
  io::UniqueFd memory_;  // what it shares: slabs of views, copied there for each
  std::uint64_t memory_at_ = 0;
  std::deque<Namespace> namespaces_;  // a handle is a position plus 1
  std::map<std::string, Record> records_;
};

// The same on a real loop and a thread of its own.
class FakeDepotThread {
 public:
  explicit FakeDepotThread(const std::string& address = "tcp://127.0.0.1:0");
  ~FakeDepotThread();
  // Runs `work` on the depot's thread and waits for it.
  void run(const std::function<void(FakeDepot&)>& work);
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  std::unique_ptr<io::Loop> loop_;
  std::unique_ptr<FakeDepot> depot_;
  std::string address_;
  std::thread thread_;
};

}  // namespace kvd::client
