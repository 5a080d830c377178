#include "policy/eviction.h"

#include "base/check.h"

namespace kvd::policy {
namespace {

// A list threaded through an array: front = next victim, back = youngest.
class SegmentList {
 public:
  explicit SegmentList(std::uint32_t segments) : links_(segments) {}

  [[nodiscard]] bool known(std::uint32_t segment) const { return segment < links_.size() && links_[segment].known; }
  [[nodiscard]] std::optional<std::uint32_t> front() const { return optional(front_); }
  [[nodiscard]] std::optional<std::uint32_t> after(std::uint32_t segment) const {
    KVD_CHECK(known(segment));
    return optional(links_[segment].next);
  }

  void push_back(std::uint32_t segment) {
    KVD_CHECK(segment < links_.size() && !known(segment));
    links_[segment] = {back_, kNone, true};
    (back_ == kNone ? front_ : links_[back_].next) = segment;
    back_ = segment;
  }
  void push_front(std::uint32_t segment) {
    KVD_CHECK(segment < links_.size() && !known(segment));
    links_[segment] = {kNone, front_, true};
    (front_ == kNone ? back_ : links_[front_].previous) = segment;
    front_ = segment;
  }
  void erase(std::uint32_t segment) {
    KVD_CHECK(known(segment));
    const Link link = links_[segment];
    (link.previous == kNone ? front_ : links_[link.previous].next) = link.next;
    (link.next == kNone ? back_ : links_[link.next].previous) = link.previous;
    links_[segment] = {};
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Link {
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;
    bool known = false;
  };
  static std::optional<std::uint32_t> optional(std::uint32_t segment) {
    return segment == kNone ? std::nullopt : std::optional(segment);
  }

  std::vector<Link> links_;
  std::uint32_t front_ = kNone;
  std::uint32_t back_ = kNone;
};

class ListPolicy : public EvictionPolicy {
 public:
  explicit ListPolicy(std::uint32_t segments) : list_(segments) {}

  void add(std::uint32_t segment) override { list_.push_back(segment); }
  void touch(std::uint32_t) override {}
  void demote(std::uint32_t segment) override {
    if (!list_.known(segment)) return;
    list_.erase(segment);
    list_.push_front(segment);
  }
  void remove(std::uint32_t segment) override {
    if (list_.known(segment)) list_.erase(segment);
  }
  [[nodiscard]] std::optional<std::uint32_t> victim() const override { return list_.front(); }
  [[nodiscard]] std::optional<std::uint32_t> next_victim(std::uint32_t segment) const override {
    return list_.after(segment);
  }

 protected:
  SegmentList list_;
};

class SegmentLru final : public ListPolicy {
 public:
  using ListPolicy::ListPolicy;
  void touch(std::uint32_t segment) override {
    if (!list_.known(segment)) return;
    list_.erase(segment);
    list_.push_back(segment);
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_eviction(Eviction kind, std::uint32_t segments) {
  if (kind == Eviction::kFifo) return std::make_unique<ListPolicy>(segments);
  return std::make_unique<SegmentLru>(segments);
}

}  // namespace kvd::policy
