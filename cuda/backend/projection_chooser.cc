#include "cuda/backend/projection_chooser.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "core/log.h"
#include "core/str_cat.h"

namespace specdec::cuda {
namespace {

// With fewer rows the time is that of reading weights, and others of our kernels read as fast.
constexpr int kFewestRows = 65;
constexpr int kTimedRuns = 3;

int ceil_div(int x, int unit) { return (x + unit - 1) / unit; }

GemmKey key_of(const ProjectionParams& params) {
  return {.out_features = params.finish.out_features,
          .num_k_blocks = params.num_k_blocks,
          .finish = params.finish.kind,
          .changes_sums = changes_sums(params.finish),
          .act_dtype = params.act_dtype,
          .row_bucket = row_bucket(params.rows.num_rows)};
}

}  // namespace

double event_seconds(Device& device, Stream& stream, const std::string&,
                     const std::function<void()>& run) {
  const std::unique_ptr<Event> begin = device.make_event();
  const std::unique_ptr<Event> end = device.make_event();
  double least = std::numeric_limits<double>::infinity();
  run();
  for (int i = 0; i < kTimedRuns; ++i) {
    stream.record(*begin);
    run();
    stream.record(*end);
    end->wait();
    least = std::min(least, device.seconds_between(*begin, *end));
  }
  return least;
}

ProjectionChooser::ProjectionChooser(Device& device, Stream& stream,
                                     const ProjectionKernels& kernels, GemmList gemms)
    : device_(device),
      stream_(stream),
      kernels_(kernels),
      gemms_(std::move(gemms)),
      unpacked_gemm_(device, stream, kernels),
      timed_out_(device, stream, "results of timed products") {}

void ProjectionChooser::set_timer(ProjectionTimer timer) {
  timer_ = std::move(timer);
  tuner_.forget();
  chosen_.clear();
}

bool ProjectionChooser::serves(const ProjectionParams& params) {
  return params.format == WeightFormat::kAct && params.rows.num_rows >= kFewestRows;
}

void ProjectionChooser::run(const ProjectionParams& params, const Launch& launch) {
  const GemmKey key = key_of(params);
  if (timer_ == nullptr || (stream_.is_capturing() && !tuner_.find(key))) {
    return run_way(own_ways(params).back(), params, launch);
  }
  if (stream_.is_rehearsing()) return rehearse(params, launch);
  if (!tuner_.find(key)) {
    const std::vector<Way> ways = ways_for(params);
    const int chosen = tuner_.choose(key, static_cast<int>(ways.size()), [&](int way) {
      return seconds_of(ways[static_cast<size_t>(way)], params, launch);
    });
    chosen_[key] = ways[static_cast<size_t>(chosen)];
  }
  run_way(chosen_.at(key), params, launch);
}

std::optional<ProjectionTiling> ProjectionChooser::wide_tiling(
    const ProjectionParams& params) const {
  const DeviceProperties& properties = device_.properties();
  const bool has_kernel = device_.launch_settings().wide_rows && kernels_.project_wide != nullptr &&
                          properties.compute_capability == 90;
  const DeviceFoldOrder& order = params.slices.fold_order;
  if (!has_kernel || !serves(params) || order.most_waiting() > kWideLevels) return std::nullopt;
  const int num_cells =
      ceil_div(params.num_tiles, kWideTiles) * ceil_div(params.rows.num_rows, kWideRows);
  const int num_stages = ceil_div(params.num_k_blocks, 2);
  std::optional<ProjectionTiling> best;
  int least = 0;
  for (const int splits : {1, 2, 4, 8}) {
    if (splits > 1 && !order.is_whole()) break;
    const int num_blocks = std::min(num_cells * splits, properties.num_multiprocessors);
    // In stages: an item's own, its begin and end, and what meeting adds.
    const int meeting = splits > 1 ? 3 : 0;
    const int item = ceil_div(num_stages, splits) + 6 + meeting;
    const int cost =
        ceil_div(num_cells * splits, num_blocks) * item + (splits > 1 ? 2 * splits : 0);
    if (best.has_value() && cost >= least) continue;
    least = cost;
    best = {.num_blocks = num_blocks, .wide_splits = splits};
  }
  return best;
}

ProjectionTiling ProjectionChooser::own_tiling(const ProjectionParams& params) const {
  return wide_tiling(params).value_or(params.tiling);
}

std::vector<ProjectionChooser::Way> ProjectionChooser::own_ways(
    const ProjectionParams& params) const {
  std::vector<Way> ways = {{.name = "many_rows"}};
  if (wide_tiling(params).has_value()) ways.push_back({.name = "wide_rows", .is_wide = true});
  return ways;
}

std::vector<ProjectionChooser::Way> ProjectionChooser::ways_for(const ProjectionParams& params) {
  std::vector<Way> ways = own_ways(params);
  if (!UnpackedGemm::serves(params)) return ways;
  for (const std::unique_ptr<Gemm>& gemm : gemms_) {
    const int num_ways = unpacked_gemm_.num_ways(*gemm, params);
    for (int i = 0; i < num_ways; ++i) {
      ways.push_back({.name = gemm->name_of(i), .gemm = gemm.get(), .gemm_way = i});
    }
  }
  return ways;
}

void ProjectionChooser::run_way(const Way& way, const ProjectionParams& params,
                                const Launch& launch) {
  if (way.gemm != nullptr) return unpacked_gemm_.run(*way.gemm, way.gemm_way, params);
  ProjectionParams tiled = params;
  if (way.is_wide) tiled.tiling = own_tiling(params);
  launch(tiled);
}

void ProjectionChooser::rehearse(const ProjectionParams& params, const Launch& launch) {
  for (const Way& way : own_ways(params)) run_way(way, params, launch);
  if (params.finish.accumulate) timed_out_for(params);
  if (!UnpackedGemm::serves(params)) return;
  for (const std::unique_ptr<Gemm>& gemm : gemms_) unpacked_gemm_.reserve(*gemm, params);
}

float* ProjectionChooser::timed_out_for(const ProjectionParams& params) {
  return timed_out_.get<float>(static_cast<size_t>(params.rows.num_rows) *
                               static_cast<size_t>(params.finish.out_features));
}

double ProjectionChooser::seconds_of(const Way& way, ProjectionParams params,
                                     const Launch& launch) {
  FinishParams& finish = params.finish;
  // Timed runs must not add to the output: each would add again.
  if (finish.accumulate) finish.out = timed_out_for(params);
  try {
    return timer_(device_, stream_, way.name, [&] { run_way(way, params, launch); });
  } catch (const DeviceError& error) {
    if (way.gemm == nullptr) throw;
    log_warning(way.name, " is not used for ", params.rows.num_rows, " rows of ",
                finish.out_features, " outputs: ", error.what());
    return std::numeric_limits<double>::infinity();
  }
}

}  // namespace specdec::cuda
