// Few: a vector that keeps up to N elements in itself, for what is one of most requests and many of some: a GET of one
// record would otherwise ask the allocator twenty-five times, which is a tenth of its round trip through shared memory.
#pragma once

#include <cstddef>

#include <boost/container/small_vector.hpp>

namespace kvd::node {

// No contiguous range to the standard library: spans of it are made of data() and size().
template <class T, std::size_t N>
using Few = boost::container::small_vector<T, N>;

}  // namespace kvd::node
