// Strangers: the few places of connections whose clients have not said yet who they are, where they have to, or have
// not shaken hands (TLS). When all are taken a newcomer gets the place of one that keeps the depot waiting: the one
// that has waited for longest of those that have not sent a byte, else of all. So a flood of connections that never
// speak keeps nobody out who does. Nobody gives way before it has had its grace, or a flood that is fast enough would
// push out everybody; the newcomer is turned away then. Owned by Gate; one loop.
#pragma once

#include <cstdint>
#include <list>
#include <utility>

#include "base/time.h"
#include "io/loop.h"

namespace kvd::node {

class Strangers {
 public:
  // Whoever has a place.
  class Guest {
   public:
    // Not a byte has come from its client.
    [[nodiscard]] virtual bool silent() const = 0;
    // A newcomer needs its place: gives it back inside and closes, without destroying itself.
    virtual void give_way() = 0;

   protected:
    ~Guest() = default;
  };

 private:
  struct Entry {
    Guest* guest;  // borrowed: it has the place
    Time since;
    bool stays = false;
  };
  using Entries = std::list<Entry>;

 public:
  // Gives itself back. Does not outlive the strangers.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept : strangers_(std::exchange(other.strangers_, nullptr)), at_(other.at_) {}
    Place& operator=(Place&& other) noexcept {
      if (this != &other) {
        release();
        strangers_ = std::exchange(other.strangers_, nullptr);
        at_ = other.at_;
      }
      return *this;
    }
    ~Place() { release(); }
    explicit operator bool() const noexcept { return strangers_ != nullptr; }
    void release() {
      if (strangers_ != nullptr) std::exchange(strangers_, nullptr)->entries_.erase(at_);
    }
    // It is its client that waits now, for the answer to what it has shown: gives way to nobody.
    void stay() noexcept {
      if (strangers_ != nullptr) at_->stays = true;
    }

   private:
    friend class Strangers;
    Place(Strangers& strangers, Entries::iterator at) : strangers_(&strangers), at_(at) {}
    Strangers* strangers_ = nullptr;
    Entries::iterator at_{};
  };

  Strangers(io::Loop& loop, std::uint32_t places, Duration grace) : loop_(loop), places_(places), grace_(grace) {}
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;

  // A place for `guest`, which is not told inside; empty when all are taken by such as need not give way.
  Place take(Guest& guest);
  [[nodiscard]] std::size_t taken() const noexcept { return entries_.size(); }

 private:
  [[nodiscard]] Guest* who_gives_way() const;

  io::Loop& loop_;
  const std::uint32_t places_;
  const Duration grace_;
  Entries entries_;  // the one that has waited for longest first
};

}  // namespace kvd::node
