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

// With fewer rows the time is that of reading weights, and our other kernels read as fast.
constexpr int kFewestRows = 65;
constexpr int kTimedRuns = 3;

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
    return run_way(default_way(params), params, launch);
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

bool ProjectionChooser::has_wide_projection() const {
  return kernels_.project_wide != nullptr && device_.properties().compute_capability == 90;
}

std::vector<ProjectionChooser::Way> ProjectionChooser::own_ways() const {
  std::vector<Way> ways = {{.name = "many_rows"}};
  for (const int rows : kWideRows) {
    if (!has_wide_projection()) break;
    ways.push_back({.name = str_cat("wide_rows ", rows), .wide_rows = rows});
  }
  return ways;
}

std::vector<ProjectionChooser::Way> ProjectionChooser::ways_for(const ProjectionParams& params) {
  std::vector<Way> ways = own_ways();
  if (!UnpackedGemm::serves(params)) return ways;
  for (const std::unique_ptr<Gemm>& gemm : gemms_) {
    const int num_ways = unpacked_gemm_.num_ways(*gemm, params);
    for (int i = 0; i < num_ways; ++i) {
      ways.push_back({.name = gemm->name_of(i), .gemm = gemm.get(), .gemm_way = i});
    }
  }
  return ways;
}

ProjectionChooser::Way ProjectionChooser::default_way(const ProjectionParams& params) const {
  Way way = {.name = "many_rows"};
  if (!has_wide_projection()) return way;
  // The largest blocks that still fill the GPU, since they read least. If none does, many_rows can
  // split k into slices to fill it.
  for (const int rows : {kWideRows[1], kWideRows[0]}) {
    const int tiles = wide_tiles(rows);
    const int num_blocks =
        (params.num_tiles + tiles - 1) / tiles * ((params.rows.num_rows + rows - 1) / rows);
    if (num_blocks >= device_.properties().num_multiprocessors) {
      return {.name = str_cat("wide_rows ", rows), .wide_rows = rows};
    }
  }
  return way;
}

void ProjectionChooser::run_way(const Way& way, const ProjectionParams& params,
                                const Launch& launch) {
  if (way.gemm != nullptr) return unpacked_gemm_.run(*way.gemm, way.gemm_way, params);
  ProjectionParams tiled = params;
  if (way.wide_rows != 0) tiled.tiling = {.wide_rows = way.wide_rows};
  launch(tiled);
}

void ProjectionChooser::rehearse(const ProjectionParams& params, const Launch& launch) {
  for (const Way& way : own_ways()) run_way(way, params, launch);
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
