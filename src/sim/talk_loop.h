// Clients in a closed loop on one engine as vLLM V1 schedules it, priced with the closed forms' own constants: what the
// SDC'25 talk's efficiency figures look like when passes, chunks, blocks and loads are simulated. Pure; same seed, same
// numbers. closed_forms_test.cc takes away what differs, and compares it with the form.
//
// What differs from the closed form by intent: prompts and outputs vary, a pass holds whole prompts in chunks,
// attention is causal, memory for KV is finite. A depot's loads come layer by layer inside a request's first pass, as
// the closed form has it, or before it, one after the other over the replica's link.
//
// A client may hold conversations: the prompt of each turn is all that was said before and the user's next tokens, and
// what the depot has of it is the prompt of the turn before. Answers are computed again, as fleets do (fleet.h).
#pragma once

#include <cstdint>

namespace kvd::sim {

struct TalkEngine {
  double step_s = 0;                  // of a pass, TPOT(1)
  double token_s = 0;                 // matrix products of a prompt token
  double pair_s = 0;                  // a (query, key) pair of attention
  double context_token_s = 0;         // reading a cached token's KV in a decode
  double read_token_s = 0;            // loading a token's KV from the depot
  double reuse = 0;                   // share of a prompt that the depot has; 0 = no depot
  std::uint32_t blocks = 0;           // of kTalkBlockTokens tokens in engine memory
  std::uint32_t layers = 0;           // loads overlap with the pass layer by layer; 0 = they come before it
  std::uint32_t chunk_tokens = 8192;  // of a pass at most; vLLM's max_num_batched_tokens on an H100
  bool constant_context = false;      // a decode reads its prompt's KV only, as the closed form counts
};
inline constexpr std::uint32_t kTalkBlockTokens = 16;

struct TalkTraffic {
  std::uint32_t prompt_min = 1;  // prompts (first ones) are uniform between the two; at most 16,384
  std::uint32_t prompt_max = 1;
  double output_mean = 1;  // outputs are geometric
  std::uint32_t clients = 1;
  std::uint32_t requests = 1;    // that end in all; the first quarter is warm-up and not counted
  std::uint32_t output_min = 0;  // with output_max: outputs are uniform between the two instead
  std::uint32_t output_max = 0;
  std::uint32_t turns_min = 1;  // of a conversation, uniform between the two; it ends before a prompt that is too long
  std::uint32_t turns_max = 1;
  std::uint32_t user_tokens = 0;  // of each turn after the first
};

struct TalkPoint {
  double requests_per_s = 0;
  double tpot_s = 0;  // mean over tokens after the first
  double ttft_s = 0;  // mean, from the moment a client asks
  std::uint64_t preemptions = 0;
  double prompt_mean = 0;   // tokens, of the counted requests
  double loaded_share = 0;  // of their tokens
  double little_error = 0;  // relative difference of both sides of Little's law over the whole run
};
// Clients are busy until the last counted request ends; what they have asked by then still runs to its end. Then the
// run checks itself: every token that was asked for was made, nothing holds blocks, Little's law holds within 1 %; one
// that breaks any of this ends the program (base/check.h). Requires clients * 2 <= requests, memory for the longest
// request, and single prompts of one length where the context is constant. The same seed gives the same conversations,
// whatever the engine.
[[nodiscard]] TalkPoint talk_loop(const TalkEngine& engine, const TalkTraffic& traffic, std::uint64_t seed);

}  // namespace kvd::sim
