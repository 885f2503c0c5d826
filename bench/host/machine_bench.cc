// The machine's own limits: how fast its threads read and copy memory at several footprints, and
// how fast they multiply. What the other benchmarks are held against.
#include <cstdio>
#include <string>
#include <vector>

#include "common/bandwidth.h"
#include "common/matrix_peak.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"
#include "core/thread_pool.h"
#include "cpu/isa.h"

namespace specdec::bench {
namespace {

std::string size_name(int64_t bytes) {
  return bytes >= (1 << 20) ? std::to_string(bytes >> 20) + " MiB"
                            : std::to_string(bytes >> 10) + " KiB";
}

void bench_memory(int64_t footprint, int threads, const Options& options, Report& report) {
  ThreadPool pool(threads);
  const int samples = options.samples(21);
  const auto typical = [&](auto&& pass) {
    pass();
    std::vector<double> seconds;
    for (int i = 0; i < samples; ++i) seconds.push_back(pass());
    return median(seconds);
  };
  ReadBandwidth read(static_cast<size_t>(footprint), pool);
  report.add({.kernel = "read",
              .shape = size_name(footprint),
              .threads = threads,
              .seconds = typical([&] { return read.read_seconds(); }),
              .bytes = static_cast<double>(read.size_bytes())});
  CopyBandwidth copy(static_cast<size_t>(footprint), pool);
  report.add({.kernel = "copy",
              .shape = size_name(footprint),
              .threads = threads,
              .seconds = typical([&] { return copy.copy_seconds(); }),
              .bytes = static_cast<double>(copy.moved_bytes())});
}

void bench_peaks(int threads, const Options& options, Report& report) {
  ThreadPool pool(threads);
  const cpu::Isa isa = cpu::parse_isa(options.cpu_isa);
  for (const MatrixPeak& peak : measure_matrix_peaks(isa, pool, options.samples(50))) {
    constexpr double kFlops = 1e9;
    report.add({.kernel = "peak",
                .shape = peak.operands + " " + peak.instruction,
                .threads = threads,
                .seconds = kFlops / peak.flops_per_second,
                .flops = kFlops});
  }
}

int run(const Options& options) {
  Report report("machine_bench", options);
  std::vector<int64_t> footprints = {1 << 20};
  if (!options.smoke) {
    for (int64_t mib : {4, 16, 64, 256, 1024}) footprints.push_back(mib << 20);
  }
  std::vector<int> thread_counts = {1};
  if (options.num_threads > 1) thread_counts.push_back(options.num_threads);
  for (int threads : thread_counts) {
    if (options.selects("memory")) {
      for (int64_t footprint : footprints) bench_memory(footprint, threads, options, report);
    }
    if (options.selects("peak")) bench_peaks(threads, options, report);
  }
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  return specdec::bench::run(specdec::bench::parse_options(argc, argv));
}
