// List: a doubly linked list threaded through its elements, for records that move between queues on every use. Nothing
// is allocated; an element is in at most one list per link. One owner, no locking; elements must leave before they die.
#pragma once

#include <cstddef>

#include "base/check.h"

namespace kvd::store {

// The place of an element in a list; a member of the element.
template <class T>
struct ListLink {
  T* previous = nullptr;
  T* next = nullptr;
  const void* list = nullptr;  // the list it is in; null = none
};

template <class T, ListLink<T> T::* kLink>
class List {
 public:
  List() = default;
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  [[nodiscard]] bool empty() const noexcept { return front_ == nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* front() const noexcept { return front_; }
  [[nodiscard]] T* back() const noexcept { return back_; }
  [[nodiscard]] static T* after(const T& element) noexcept { return (element.*kLink).next; }
  [[nodiscard]] bool holds(const T& element) const noexcept { return (element.*kLink).list == this; }
  // Whether the element is in any list through this link.
  [[nodiscard]] static bool linked(const T& element) noexcept { return (element.*kLink).list != nullptr; }

  void push_back(T& element) noexcept {
    KVD_CHECK(!linked(element));
    (element.*kLink) = {back_, nullptr, this};
    (back_ == nullptr ? front_ : (back_->*kLink).next) = &element;
    back_ = &element;
    ++size_;
  }
  void push_front(T& element) noexcept {
    KVD_CHECK(!linked(element));
    (element.*kLink) = {nullptr, front_, this};
    (front_ == nullptr ? back_ : (front_->*kLink).previous) = &element;
    front_ = &element;
    ++size_;
  }
  void erase(T& element) noexcept {
    KVD_CHECK(holds(element));
    const ListLink<T> link = element.*kLink;
    (link.previous == nullptr ? front_ : (link.previous->*kLink).next) = link.next;
    (link.next == nullptr ? back_ : (link.next->*kLink).previous) = link.previous;
    (element.*kLink) = {};
    --size_;
  }
  T* pop_front() noexcept {
    T* element = front_;
    if (element != nullptr) erase(*element);
    return element;
  }

 private:
  T* front_ = nullptr;
  T* back_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kvd::store
