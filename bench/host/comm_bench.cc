// An exchange: every rank writes its part and reads all of them. Ranks are threads of this process,
// whatever carries their parts, so that only the way differs.
//
// A rank here does nothing but exchange: with as many ranks as CPUs or fewer, these are times of
// ranks that come at the same moment.
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/shm_communicator.h"
#include "comm/socket_communicator.h"
#include "comm/thread_communicator.h"
#include "common/options.h"
#include "common/report.h"
#include "core/stopwatch.h"
#include "core/str_cat.h"

namespace specdec::bench {
namespace {

constexpr std::chrono::seconds kTimeout{60};
constexpr int kPort = 14923;

using Ranks = std::vector<std::unique_ptr<Communicator>>;

void on_threads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  body(0);
  for (std::thread& thread : threads) thread.join();
}

Ranks make_ranks(const std::string& kind, int size) {
  if (kind == "threads") return make_thread_communicators(size, kTimeout);
  Ranks ranks(size);
  if (kind == "shm") {
    ShmGroup group(size);
    on_threads(size, [&](int rank) {
      ranks[rank] = rank == 0 ? group.join(kTimeout) : join_shm_group(group.name(), rank, kTimeout);
    });
  } else {
    on_threads(size, [&](int rank) {
      ranks[rank] = join_socket_group({"127.0.0.1", kPort}, rank, size, kTimeout);
    });
  }
  return ranks;
}

// Seconds of one exchange; the median of many runs of some.
double measure(const Ranks& ranks, size_t num_bytes, const Options& options) {
  const int runs = options.samples(31);
  const int calls =
      options.smoke ? 5
                    : static_cast<int>(std::clamp<size_t>((size_t{8} << 20) / num_bytes, 20, 500));
  std::vector<double> seconds(runs);
  on_threads(static_cast<int>(ranks.size()), [&](int rank) {
    std::vector<std::byte> read(num_bytes);
    for (int run = -1; run < runs; ++run) {  // the first warms up
      ranks[rank]->barrier();
      const double start = now_seconds();
      for (int call = 0; call < calls; ++call) {
        std::memset(ranks[rank]->part(num_bytes), call, num_bytes);
        for (const auto part : ranks[rank]->exchange(num_bytes))
          std::memcpy(read.data(), part.data(), part.size());
      }
      if (rank == 0 && run >= 0) seconds[run] = (now_seconds() - start) / calls;
    }
  });
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[runs / 2];
}

int run(const Options& options) {
  Report report("comm_bench", options);
  for (const std::string kind : {"threads", "shm", "sockets"}) {
    for (const int size : {2, 3, 4}) {
      if (!options.selects(kind)) continue;
      const Ranks ranks = make_ranks(kind, size);
      for (const int kilobytes : {4, 64, 1024}) {
        report.add({.kernel = kind,
                    .shape = str_cat("exchange of ", kilobytes, " KB"),
                    .threads = size,
                    .seconds = measure(ranks, size_t{1024} * kilobytes, options)});
      }
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  return specdec::bench::run(specdec::bench::parse_options(argc, argv));
}
