// Which outputs ClusterLogitsArgs keeps, by definition.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "testing/values.h"

namespace specdec::testing {

struct ClusterShape {
  int num_clusters, size, num_kept;
};
// Clusters of whole blocks of a weight and of parts of them; some, one, all and few are kept.
inline constexpr ClusterShape kClusterShapes[] = {{20, 8, 7}, {5, 16, 1}, {7, 13, 7}, {96, 48, 3}};

// Scores of each row, with equal ones and NaN among them.
inline std::vector<float> cluster_scores(int rows, int num_clusters) {
  std::vector<float> scores = random_values(int64_t{rows} * num_clusters, 5);
  for (float& score : scores) score = std::round(4 * score);
  for (size_t i = 3; i < scores.size(); i += 11) scores[i] = NAN;
  return scores;
}

// Whether output `i` of [rows, outputs] is kept.
inline bool is_kept(const ClusterShape& shape, std::span<const float> scores, int64_t i) {
  const int64_t num_outputs = int64_t{shape.num_clusters} * shape.size;
  const auto count = static_cast<size_t>(shape.num_clusters);
  const std::span<const float> own =
      scores.subspan(static_cast<size_t>(i / num_outputs) * count, count);
  const auto cluster = static_cast<size_t>(i % num_outputs / shape.size);
  const auto value = [&](size_t c) { return std::isnan(own[c]) ? -INFINITY : own[c]; };
  int order = 0;
  for (size_t c = 0; c < count; ++c) {
    if (value(c) > value(cluster) || (value(c) == value(cluster) && c < cluster)) ++order;
  }
  return order < shape.num_kept;
}

}  // namespace specdec::testing
