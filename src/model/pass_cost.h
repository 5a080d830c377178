// What a forward pass of an engine costs in seconds, learnt from the passes that it runs. Pure; one thread owns it.
//
// Model: seconds = fixed + token * tokens + pair * pairs, where `tokens` are computed in the pass and `pairs` counts
// (query, key) pairs of attention: a chunk of n tokens behind c cached ones has n*c + n*(n+1)/2. These are the three
// terms of a transformer's roofline (weights read once, matrix products, attention); no term may be negative.
// Observations are kept per size class, each with its own decay, because an engine that decodes for an hour must not
// forget what a prompt costs. A prior stands in until there are measurements; then it is scaled to fit them, lends its
// shape to sizes that have not been seen, and fades.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvd::model {

// What one pass computes.
struct PassWork {
  double tokens = 0;
  double pairs = 0;
};

// Work of a chunk of `tokens` behind `context` tokens that are in the cache already.
PassWork chunk_work(double tokens, double context) noexcept;

struct PassCoefficients {
  double fixed_s = 0;
  double token_s = 0;
  double pair_s = 0;
  [[nodiscard]] double seconds(PassWork work) const noexcept {
    return fixed_s + token_s * work.tokens + pair_s * work.pairs;
  }
};

class PassCost {
 public:
  // `prior` is believed until passes have been observed.
  explicit PassCost(const PassCoefficients& prior) noexcept;

  // Learns from a pass that took `seconds`. Values that are not positive are ignored.
  void observe(PassWork work, double seconds) noexcept;

  [[nodiscard]] double seconds(PassWork work) const noexcept { return fitted_.seconds(work); }
  [[nodiscard]] const PassCoefficients& coefficients() const noexcept { return fitted_; }
  [[nodiscard]] std::uint64_t observations() const noexcept { return observations_; }

  // Seconds of computing `tokens` behind `context`, in passes of at most `pass_tokens_max` (0 = no limit).
  [[nodiscard]] double prompt_seconds(std::uint64_t tokens, std::uint64_t context,
                                      std::uint64_t pass_tokens_max) const noexcept;

 private:
  // Normal equations of a weighted least-squares fit: A x = b.
  struct Normal {
    std::array<double, 9> a{};
    std::array<double, 3> b{};
    void add(PassWork work, double seconds, double weight) noexcept;
    void decay(double factor) noexcept;
    void merge(const Normal& other) noexcept;
  };
  static constexpr std::size_t kTokenClasses = 16;    // powers of two: 1 .. 32768 tokens in a pass
  static constexpr std::size_t kContextClasses = 10;  // powers of four: 1 .. 262144 keys a token

  void fit() noexcept;
  [[nodiscard]] Normal scaled_prior() const noexcept;

  PassCoefficients prior_;
  std::array<Normal, kTokenClasses * kContextClasses> classes_{};
  std::array<double, kTokenClasses * kContextClasses> over_prior_{};  // last measured / prior of each class, 0 = none
  PassCoefficients fitted_;
  std::uint64_t observations_ = 0;
};

}  // namespace kvd::model
