// Counts what a program takes from operator new. A program that lists allocation_count.cc among its sources has its
// operator new replaced by one that counts; it is in no library, because everything that links that would have it, too.
//
// The count is of all threads. Memory that C functions take by malloc() is not seen.
#pragma once

#include <cstdint>

namespace kvd {

// Calls of operator new so far.
std::uint64_t allocations() noexcept;
// From now on the first few calls say on stderr where they come from.
void show_allocations() noexcept;

}  // namespace kvd
