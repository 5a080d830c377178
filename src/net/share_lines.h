// ShareLines: who waits for a turn. Those of each share (a tenant's) stand in a line of their own, and the share that
// had its last turn longest ago has the next one: so none has more of them for having more who wait, nor fewer for not
// waiting while its last one is under way. Belongs to one loop. Allocates for the first place of a share only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include <boost/intrusive/list.hpp>

namespace kvd::net {

// What ShareLines does, of users whose type it does not know.
class ShareLinesBase {
  struct Line;
  using Hook = boost::intrusive::list_base_hook<>;
  template <class Waiting>
  using List = boost::intrusive::list<Waiting, boost::intrusive::constant_time_size<false>>;

 public:
  // Where somebody stands, if it does. Ends before the lines in which it has stood.
  class Place : public Hook {
   public:
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Whose it is, from the next time on that it stands in line: equal ones share their turns. Not followed.
    void set_share(const void* share) noexcept { share_ = share; }
    [[nodiscard]] const void* share() const noexcept { return share_; }
    [[nodiscard]] bool waits() const noexcept { return is_linked(); }
    void leave() noexcept;

   protected:
    Place() = default;

   private:
    friend class ShareLinesBase;
    const void* share_ = nullptr;
    ShareLinesBase* lines_ = nullptr;  // where it waits, or did last
    Line* line_ = nullptr;             // of these; counts it
  };

  ShareLinesBase() = default;
  ~ShareLinesBase();
  ShareLinesBase(const ShareLinesBase&) = delete;
  ShareLinesBase& operator=(const ShareLinesBase&) = delete;

  [[nodiscard]] bool empty() const noexcept { return waiting_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return waiting_; }
  // A turn of its share: it waits no more, and the other shares come first. Requires that it waits here.
  void take(Place& place) noexcept;

 protected:
  void enter_line(Place& place);
  [[nodiscard]] Place& first() const;

 private:
  struct Line : Hook {  // in order_, while somebody waits
    const void* share = nullptr;
    List<Place> waiting;
    std::uint64_t served = 0;  // the number of its last turn
    std::size_t places = 0;    // whose last line it is
  };

  Line& line_of(Place& place);
  void remove(Place& place) noexcept;
  void forget(Place& place) noexcept;

  std::map<const void*, Line> lines_;  // of each share that has a place here
  List<Line> order_;                   // in which somebody waits, the next one first
  std::uint64_t turns_ = 0;
  std::size_t waiting_ = 0;
};

template <class User>
class ShareLines : public ShareLinesBase {
 public:
  // A member of the user.
  class Place final : public ShareLinesBase::Place {
   public:
    explicit Place(User& user) : user_(user) {}

   private:
    friend class ShareLines;
    User& user_;
  };

  // To the end of its share's line. Requires that it does not wait.
  void enter(Place& place) { enter_line(place); }
  // Whose turn it is. Requires that somebody waits.
  [[nodiscard]] User& front() const { return static_cast<Place&>(first()).user_; }
};

}  // namespace kvd::net
