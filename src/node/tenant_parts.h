// TenantParts: something of the node (bytes of the pool that GETs pin, or PUTs fill; leases) shared out among its
// tenants. A quarter of it is, evenly among those that are listed, and nobody gets of another one's part, used or not:
// so whoever takes as much as it can, through however many connections, leaves every other tenant its part. The rest is
// for all: requests for half of all, which a connection may make, have to find room beside the parts. Owned by Tenants,
// which outlives what was taken; belongs to the node's loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace kvd::node {

class TenantParts {
 public:
  // What one tenant has.
  class Own {
   public:
    [[nodiscard]] std::uint64_t used() const noexcept { return used_; }

   private:
    friend class TenantParts;
    std::uint64_t used_ = 0;
    bool listed_ = false;
  };
  using SharedOwn = std::shared_ptr<Own>;

  // Gives itself back.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept;
    Share& operator=(Share&& other) noexcept;
    ~Share() { release(); }
    void release() noexcept;
    // Takes so much more, if that leaves others theirs. One that is of no tenant has no bound.
    [[nodiscard]] bool grow(std::uint64_t amount) noexcept;

   private:
    friend class TenantParts;
    Share(TenantParts& parts, SharedOwn own, std::uint64_t amount);
    TenantParts* parts_ = nullptr;
    SharedOwn own_;
    std::uint64_t amount_ = 0;
  };

  // What one tenant takes and gives back by itself, where no share stands for it; empty: of no tenant.
  class Account {
   public:
    Account() = default;
    Account(TenantParts& parts, SharedOwn own) : parts_(&parts), own_(std::move(own)) {}
    void take(std::uint64_t amount) noexcept;
    void give_back(std::uint64_t amount) noexcept;

   private:
    TenantParts* parts_ = nullptr;
    SharedOwn own_;
  };

  explicit TenantParts(std::uint64_t total) : total_(total) {}
  TenantParts(const TenantParts&) = delete;
  TenantParts& operator=(const TenantParts&) = delete;

  // So many tenants are listed from now on; each of them, and each that was, is told of by set_listed() behind this.
  void set_count(std::size_t listed) noexcept;
  void set_listed(Own& own, bool listed) noexcept;

  // How much more leaves the other tenants theirs. A tenant that has less than its part gets what is free even where
  // others, by an earlier list, have more than theirs.
  [[nodiscard]] std::uint64_t room(const Own& own) const noexcept;
  [[nodiscard]] bool may_take(const Own& own, std::uint64_t amount) const noexcept { return amount <= room(own); }
  // Whether it has less than its part also with so much more: nobody else can have had that.
  [[nodiscard]] bool is_within_part(const Own& own, std::uint64_t amount) const noexcept {
    return amount <= kept_for(own);
  }
  Share take(SharedOwn own, std::uint64_t amount);
  // What the others do not use of their parts.
  [[nodiscard]] std::uint64_t kept_for_others(const Own& own) const noexcept { return kept_ - kept_for(own); }
  // Of the parts of all what they do not use.
  [[nodiscard]] std::uint64_t kept() const noexcept { return kept_; }

 private:
  [[nodiscard]] std::uint64_t kept_for(const Own& own) const noexcept;
  void use(Own& own, std::uint64_t used) noexcept;

  const std::uint64_t total_;
  std::uint64_t part_ = 0;  // of each that is listed
  std::uint64_t used_ = 0;  // by all
  std::uint64_t kept_ = 0;  // of the parts of those that are listed what they do not use
};

}  // namespace kvd::node
