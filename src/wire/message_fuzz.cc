// Fuzzes every parser of outside bytes: an input is a header and what follows it. The header is tried as it is, then
// with its magic, version and CRCs put right, so that mutations reach the structures behind them. What decodes must
// encode to the same bytes again.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/testing/fuzzing.h"
#include "wire/crc32c.h"
#include "wire/message.h"

namespace kvd::wire {
namespace {

template <class M>
void check(const Header& header, Bytes meta) {
  const Result<M> decoded = decode<M>(header, meta);
  if (!decoded) {
    require(decoded.error().code == Code::kCorrupt || decoded.error().code == Code::kInvalid);
    return;
  }
  const Buffer again = frame(header, *decoded, header.payload_bytes());
  require(std::ranges::equal(Bytes(again).subspan(kHeaderBytes), meta));
  const Result<Header> header_again = decode_header(again);
  require(header_again.has_value() && header_again->items == header.items);
}

// What passes the check of places must let a reader touch every slab.
void check_view(const Header& header, Bytes meta) {
  check<GetView>(header, meta);
  const Result<GetView> view = decode<GetView>(header, meta);
  if (!view) return;
  constexpr std::uint32_t kSlabBytes = 4096;
  const std::uint64_t memory_bytes = view->view;  // any number
  if (!check_view_places(header, *view, kSlabBytes, memory_bytes)) return;
  require(view->offsets.size() * header.layer_count == view->checksums.size());
  for (std::size_t i = 0; i < view->offsets.size(); ++i) {
    const std::uint64_t left = memory_bytes - std::min(memory_bytes, view->offsets[i]);
    require(left >= kSlabBytes);
    require((left - kSlabBytes) / std::max<std::uint64_t>(1, view->slab_stride) >=
            header.layer_count - std::uint64_t{1});
  }
}

// What passes the check of places may be read.
void check_arena(const Header& header, Bytes meta) {
  check<PutArena>(header, meta);
  const Result<PutArena> put = decode<PutArena>(header, meta);
  if (!put) return;
  constexpr std::uint32_t kSlabBytes = 4096;
  const std::uint64_t arena_bytes = put->checksums[0];  // any number
  if (!check_arena_place(*put, kSlabBytes, arena_bytes)) return;
  require(put->offset <= arena_bytes && arena_bytes - put->offset >= put->checksums.size() * kSlabBytes);
}

void check_body(const Header& header, Bytes meta) {
  switch (header.opcode) {
    case Opcode::kHello: return check<Hello>(header, meta);
    case Opcode::kOpen: return check<Open>(header, meta);
    case Opcode::kMatch: return check<Match>(header, meta);
    case Opcode::kGet: return check<Get>(header, meta);
    case Opcode::kPut: return check<Put>(header, meta);
    case Opcode::kPutData: return check<PutData>(header, meta);
    case Opcode::kCancel: return check<Cancel>(header, meta);
    case Opcode::kRemove: return check<Remove>(header, meta);
    case Opcode::kUnpin: return check<Unpin>(header, meta);
    case Opcode::kStats: return check<Stats>(header, meta);
    case Opcode::kPing: return check<Ping>(header, meta);
    case Opcode::kCheck: return check<Check>(header, meta);
    case Opcode::kClose: return check<Close>(header, meta);
    case Opcode::kRelease: return check<Release>(header, meta);
    case Opcode::kAuth: return check<Auth>(header, meta);
    case Opcode::kAuthReply: return check<AuthReply>(header, meta);
    case Opcode::kMemory: return check<Memory>(header, meta);
    case Opcode::kRings: return check<Rings>(header, meta);
    case Opcode::kKeeper: return check<Keeper>(header, meta);
    case Opcode::kPutArena: return check_arena(header, meta);
    case Opcode::kArena: return check<Arena>(header, meta);
    case Opcode::kTaken: return check<Taken>(header, meta);
    case Opcode::kGetView: return check_view(header, meta);
    case Opcode::kHelloReply: return check<HelloReply>(header, meta);
    case Opcode::kOpenReply: return check<OpenReply>(header, meta);
    case Opcode::kMatchReply: return check<MatchReply>(header, meta);
    case Opcode::kGetData: return check<GetData>(header, meta);
    case Opcode::kPutReply: return check<PutReply>(header, meta);
    case Opcode::kRemoveReply: return check<RemoveReply>(header, meta);
    case Opcode::kUnpinReply: return check<UnpinReply>(header, meta);
    case Opcode::kStatsReply: return check<StatsReply>(header, meta);
    case Opcode::kPingReply: return check<PingReply>(header, meta);
  }
  std::abort();  // decode_header let an unknown opcode through
}

void check_input(Bytes input) {
  std::array<std::byte, kHeaderBytes> bytes{};
  std::ranges::copy(input.first(std::min(input.size(), kHeaderBytes)), bytes.begin());
  if (const auto raw = decode_header(bytes)) {
    require(can_be_header(bytes));
    std::array<std::byte, kHeaderBytes> again{};
    encode_header(*raw, again);
    require(again == bytes);
  }
  const Bytes meta = input.subspan(std::min(input.size(), kHeaderBytes));
  save(bytes.data(), kMagic);
  save(bytes.data() + 4, kVersion);
  save(bytes.data() + 32, static_cast<std::uint32_t>(meta.size()));
  save(bytes.data() + 44, crc32c(meta));
  save(bytes.data() + 60, crc32c(Bytes(bytes).first(60)));
  const auto header = decode_header(bytes);
  if (!header) return;
  require(check_meta(*header, meta).has_value());
  static_cast<void>(error_text(meta));
  check_body(*header, meta);
}

}  // namespace
}  // namespace kvd::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  kvd::wire::check_input(std::as_bytes(std::span(data, size)));
  return 0;
}
