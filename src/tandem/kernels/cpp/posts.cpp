// Waiting for other processes: counters in memory that all map, each written by one rank alone.
#include <chrono>
#include <cstdint>
#include <ctime>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

// With a core of one's own the shortest wait is to look again at once. But ranks may outnumber
// cores, or lie on one of them together: then the one that is waited for needs this core first.
constexpr int kLooks = 400;

void look_again() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

#if defined(__linux__)
// The kernel compares the low half of a counter, which comes first in memory.
void sleep_while(const int64_t* counter, int64_t seen, Nanoseconds limit) {
  const timespec left{static_cast<time_t>(limit.count() / 1000000000),
                      static_cast<long>(limit.count() % 1000000000)};
  syscall(SYS_futex, counter, FUTEX_WAIT, static_cast<uint32_t>(seen), &left, nullptr, 0);
}

void wake_all(const int64_t* counter) {
  syscall(SYS_futex, counter, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}
#else
void sleep_while(const int64_t*, int64_t, Nanoseconds) { std::this_thread::yield(); }
void wake_all(const int64_t*) {}
#endif

}  // namespace

// What was written to the shared memory before is seen by whoever sees the counter.
extern "C" void tandem_post(int64_t* counter, int64_t value) {
  __atomic_store_n(counter, value, __ATOMIC_RELEASE);
  wake_all(counter);
}

// Until all counters have reached value; *late is -1 then, or the first that had not in time.
extern "C" void tandem_await_posts(const int64_t* counters, int64_t count, int64_t stride,
                                   int64_t value, int64_t patience_ns, int64_t* late) {
  const Clock::time_point end = Clock::now() + Nanoseconds(patience_ns);
  int looks = 0;
  for (*late = 0; *late < count; ++*late) {
    const int64_t* counter = counters + *late * stride;
    for (;;) {
      const int64_t seen = __atomic_load_n(counter, __ATOMIC_ACQUIRE);
      if (seen >= value) break;
      if (looks++ < kLooks) {
        look_again();
        continue;
      }
      const Nanoseconds left = end - Clock::now();
      if (left.count() <= 0) return;
      sleep_while(counter, seen, left);
    }
  }
  *late = -1;
}
