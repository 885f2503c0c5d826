// The ceilings of a GPU: reading memory and the L2 cache, copying, and what it costs to get from
// one kernel of a graph to the next, round a loop on the device, and past a barrier of the whole
// grid.
//
// A record of "graph_node" is one kernel that does nothing. A record of "graph_reads" is one of
// many kernels that together read a buffer; `gap_us` is its time beyond its share of a single
// kernel that reads the whole buffer, with 1 or 2 blocks per multiprocessor (`blocks_each`).
// `overlap` is 1 with programmatic dependent launch, and `early` is 1 if a kernel lets the next one
// start before it waits itself. A record of "l2_read" is one round through a buffer that fits into
// L2. With --launch=own_carveouts the driver divides L1 cache and shared memory.
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/cuda_conditional.h"
#include "common/gpu.h"
#include "common/report.h"

namespace specdec::bench {
namespace {

struct Sizes {
  int64_t bytes;       // of the buffer that is read
  int64_t part_bytes;  // that one of many kernels reads
  int64_t l2_bytes;    // of the buffer that is read out of L2, again and again
  int num_rounds;
  int num_nodes;  // of a graph of empty kernels
  int num_barriers;
  int num_iterations;  // of a loop on the device
};

constexpr Sizes kFull = {.bytes = int64_t{4} << 30,
                         .part_bytes = int64_t{16} << 20,
                         .l2_bytes = int64_t{16} << 20,
                         .num_rounds = 256,
                         .num_nodes = 1000,
                         .num_barriers = 1000,
                         .num_iterations = 1000};
constexpr Sizes kSmoke = {.bytes = int64_t{1} << 18,
                          .part_bytes = int64_t{1} << 16,
                          .l2_bytes = int64_t{1} << 16,
                          .num_rounds = 3,
                          .num_nodes = 4,
                          .num_barriers = 3,
                          .num_iterations = 3};

std::string size_text(int64_t bytes) {
  const bool mebi = bytes >= int64_t{1} << 20;
  return std::to_string(bytes >> (mebi ? 20 : 10)) + (mebi ? " MiB" : " KiB");
}

class MachineBench {
 public:
  MachineBench(const Options& options, const Sizes& sizes)
      : options_(options), sizes_(sizes), gpu_(options), report_("cuda_machine_bench", options) {
    sink_ = gpu_.device().allocate(sizeof(uint32_t), "a bench");
  }

  int run() {
    if (options_.selects("read")) read();
    if (options_.selects("l2_read")) l2_reads();
    if (options_.selects("graph_node")) nodes();
    if (options_.selects("graph_reads")) reads();
    if (options_.selects("grid_barrier")) barriers();
    if (options_.selects("while_iteration")) loops();
    if (options_.selects("copy")) copy();
    return report_.finish();
  }

 private:
  int samples() const { return options_.samples(15); }

  void add(Record record) {
    record.threads = gpu_.num_multiprocessors();
    report_.note("launches", gpu_.device().launch_note());
    report_.add(record);
  }

  void read() {
    read_rate_ = gpu_.read_rate(sizes_.bytes, samples());
    add({.kernel = "read",
         .shape = size_text(sizes_.bytes),
         .seconds = static_cast<double>(sizes_.bytes) / read_rate_,
         .bytes = static_cast<double>(sizes_.bytes)});
  }

  void l2_reads() {
    const Buffer data = gpu_.random(static_cast<size_t>(sizes_.l2_bytes), DType::kBF16);
    for (int blocks_each : {1, 2, 4}) {
      const cuda::RereadProbe probe = {.data = data.data(),
                                       .num_bytes = sizes_.l2_bytes,
                                       .sink = sink_.as<uint32_t>(),
                                       .num_rounds = sizes_.num_rounds,
                                       .num_blocks = blocks_each * gpu_.num_multiprocessors()};
      const double seconds =
          gpu_.graph_seconds(samples(), [&] { gpu_.probes().reread(gpu_.stream(), probe); });
      add({.kernel = "l2_read",
           .shape = size_text(sizes_.l2_bytes),
           .seconds = seconds / sizes_.num_rounds,
           .bytes = static_cast<double>(sizes_.l2_bytes),
           .counters = {{"blocks_each", blocks_each}}});
    }
  }

  // By a kernel, and by the device's own copies.
  void copy() {
    const int64_t half = sizes_.bytes / 2;
    const Buffer from = gpu_.random(static_cast<size_t>(half), DType::kBF16);
    Buffer to = gpu_.device().allocate(static_cast<size_t>(half), "a bench");
    const auto add_copy = [&](const char* name, double seconds) {
      add({.kernel = name,
           .shape = size_text(half),
           .seconds = seconds,
           .bytes = 2.0 * static_cast<double>(half),
           .read_rate = read_rate_});
    };
    for (int blocks_each : {2, 16}) {
      const cuda::CopyProbe probe = {.from = from.data(),
                                     .to = to.data(),
                                     .num_bytes = half,
                                     .num_blocks = blocks_each * gpu_.num_multiprocessors()};
      add_copy(blocks_each == 2 ? "copy: 2 blocks each" : "copy: 16 blocks each",
               gpu_.graph_seconds(samples(), [&] { gpu_.probes().copy(gpu_.stream(), probe); }));
    }
    add_copy("copy: memcpy", gpu_.graph_seconds(samples(), [&] {
      gpu_.stream().copy(to.data(), from.data(), static_cast<size_t>(half));
    }));
  }

  void nodes() {
    for (int num_blocks : {1, gpu_.num_multiprocessors()}) {
      for (bool overlaps : {false, true}) {
        const cuda::EmptyProbe probe = {.num_blocks = num_blocks, .overlaps_previous = overlaps};
        const double seconds = gpu_.graph_seconds(samples(), [&] {
          for (int i = 0; i < sizes_.num_nodes; ++i) gpu_.probes().empty(gpu_.stream(), probe);
        });
        add({.kernel = "graph_node",
             .shape = std::to_string(num_blocks) + " blocks",
             .seconds = seconds / sizes_.num_nodes,
             .counters = {{"overlap", overlaps}}});
      }
    }
  }

  void reads() {
    const Buffer data = gpu_.random(static_cast<size_t>(sizes_.bytes), DType::kBF16);
    for (int blocks_each : {1, 2}) {
      cuda::ReadProbe probe = {.data = data.data(),
                               .num_bytes = sizes_.bytes,
                               .sink = sink_.as<uint32_t>(),
                               .num_blocks = blocks_each * gpu_.num_multiprocessors()};
      const double whole = reads_seconds(probe, sizes_.bytes);
      for (const bool overlaps : {false, true}) {
        for (const bool early : overlaps ? std::vector{false, true} : std::vector{false}) {
          probe.overlaps_previous = overlaps;
          probe.lets_next_start_early = early;
          add_reads(probe, blocks_each, reads_seconds(probe, sizes_.part_bytes), whole);
        }
      }
    }
  }

  // Seconds to read the buffer with one kernel per part.
  double reads_seconds(cuda::ReadProbe probe, int64_t part_bytes) {
    const char* data = static_cast<const char*>(probe.data);
    probe.num_bytes = part_bytes;
    return gpu_.graph_seconds(samples(), [&] {
      for (int64_t begin = 0; begin < sizes_.bytes; begin += part_bytes) {
        probe.data = data + begin;
        gpu_.probes().read(gpu_.stream(), probe);
      }
    });
  }

  void add_reads(const cuda::ReadProbe& probe, int blocks_each, double seconds, double whole) {
    const int num_parts = static_cast<int>(sizes_.bytes / sizes_.part_bytes);
    add({.kernel = "graph_reads",
         .shape = size_text(sizes_.part_bytes) + " a kernel",
         .seconds = seconds / num_parts,
         .bytes = static_cast<double>(sizes_.part_bytes),
         .read_rate = read_rate_,
         .counters = {{"overlap", probe.overlaps_previous},
                      {"early", probe.lets_next_start_early},
                      {"blocks_each", blocks_each},
                      {"gap_us", 1e6 * (seconds - whole) / std::max(1, num_parts - 1)}},
         .launches = gpu_.launches()});
  }

  void barriers() {
    const int num_blocks = gpu_.num_multiprocessors();
    const double seconds = gpu_.graph_seconds(samples(), [&] {
      gpu_.stream().fill(sink_.data(), 0, sizeof(uint32_t));
      gpu_.probes().barriers(gpu_.stream(), {.arrivals = sink_.as<uint32_t>(),
                                             .num_barriers = sizes_.num_barriers,
                                             .num_blocks = num_blocks});
    });
    add({.kernel = "grid_barrier",
         .shape = std::to_string(num_blocks) + " blocks",
         .seconds = seconds / sizes_.num_barriers});
  }

  void loops() {
    for (int num_kernels : {1, 4}) {
      for (bool overlaps : {false, true}) {
        const WhileCost cost = gpu_.is_emulated()
                                   ? WhileCost{.refused = "needs a GPU"}
                                   : measure_while(num_kernels, overlaps, sizes_.num_iterations);
        if (!cost.refused.empty()) {
          std::printf("while_iteration, %d kernels, overlap %d: not run: %s\n", num_kernels,
                      static_cast<int>(overlaps), cost.refused.c_str());
          continue;
        }
        add({.kernel = "while_iteration",
             .shape = std::to_string(num_kernels) + " kernels",
             .seconds = cost.iteration_seconds,
             .counters = {{"overlap", overlaps}}});
      }
    }
  }

  Options options_;
  Sizes sizes_;
  Gpu gpu_;
  Report report_;
  Buffer sink_;
  double read_rate_ = 0;
};

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  using namespace specdec::bench;
  const Options options = parse_options(argc, argv, {"cuda", "emulated"});
  return run_on_gpu(argv[0],
                    [&] { return MachineBench(options, options.smoke ? kSmoke : kFull).run(); });
}
