// What sanitizers cannot see: the kernel reads and writes a disk operation's buffers between submit and completion.
//
// The engines call buffers_lent() when they hand buffers to the kernel and buffers_returned() when it is done. Under
// thread sanitizer both count as accesses of the loop's thread, so another thread that touches a buffer in between
// without having synchronised with the loop is reported; under address sanitizer a buffer that was freed meanwhile is
// found. Otherwise both are empty. This is the only file of the room with an #if.
#pragma once

#include <sys/uio.h>

#include <span>

#include "base/check.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long size);
void __tsan_write_range(void* address, unsigned long size);
}
#endif
#if defined(__SANITIZE_ADDRESS__)
extern "C" void* __asan_region_is_poisoned(void* begin, unsigned long size);
#endif

namespace kvd::io {

// `device_writes`: a read, which fills the buffers. `key` names the operation.
inline void buffers_touched([[maybe_unused]] std::span<const iovec> buffers, [[maybe_unused]] bool device_writes) {
#if defined(__SANITIZE_THREAD__)
  for (const iovec& buffer : buffers) {
    device_writes ? __tsan_write_range(buffer.iov_base, buffer.iov_len)
                  : __tsan_read_range(buffer.iov_base, buffer.iov_len);
  }
#elif defined(__SANITIZE_ADDRESS__)
  for (const iovec& buffer : buffers) {
    KVD_CHECK(__asan_region_is_poisoned(buffer.iov_base, buffer.iov_len) == nullptr);
  }
#endif
}

inline void buffers_lent(std::span<const iovec> buffers, bool device_writes, [[maybe_unused]] void* key) {
  buffers_touched(buffers, device_writes);
#if defined(__SANITIZE_THREAD__)
  __tsan_release(key);
#endif
}

inline void buffers_returned(std::span<const iovec> buffers, bool device_writes, [[maybe_unused]] void* key) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(key);
#endif
  buffers_touched(buffers, device_writes);
}

}  // namespace kvd::io
