// Independent jobs on several threads, for verbs that run many simulations.
#pragma once

#include <cstddef>
#include <functional>

namespace kvd::cmd {

// How many threads to take where nobody says: one a core.
[[nodiscard]] unsigned threads_of_machine() noexcept;

// Runs job(0) to job(jobs - 1), each once and begun in this order, on at most `threads` threads, the calling one among
// them; returns when all are done. What one job writes no other may touch. `progress` is called on the calling thread
// after each of its jobs, with how many of all are done. Requires at least one thread and jobs that do not throw.
void run_jobs(std::size_t jobs, unsigned threads, const std::function<void(std::size_t)>& job,
              const std::function<void(std::size_t done, std::size_t all)>& progress);

}  // namespace kvd::cmd
