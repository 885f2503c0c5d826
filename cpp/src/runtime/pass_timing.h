// Measures the time of a model's passes, by running some before there are requests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/block_table.h"
#include "runtime/model_runner.h"
#include "speculation/pass_cost.h"

namespace specdec {

// Which clock times a pass. Where the calling thread computes, its own clock leaves out other work
// on the machine while the engine loads, which would make some passes look too expensive.
enum class PassClock : uint8_t { kWall, kThread };

// Runs passes of 1, 2, 4, ... rows on blocks that hold no sequence, sampling from every row as
// verification does, and keeps the shortest time of each count, since other work of the machine
// only adds to a time. All counts are run up to three times, the most informative ones first. No
// pass begins once the passes have taken eight times as long as one of one row, or a tenth of a
// second if that is longer, so timing stays a small part of loading. Returns rising numbers of
// rows; empty where `blocks` are not enough for two.
std::vector<TimedPass> time_passes(ModelRunner& runner, int max_rows, const BlockTable& blocks,
                                   PassClock clock);

// The same for a draft head or draft model, for the numbers of rows that its target was timed at
// before, on the same blocks: a draft head reads the features that the target left there.
std::vector<TimedPass> time_draft_passes(ModelRunner& runner, bool is_draft_head,
                                         std::span<const TimedPass> target,
                                         const BlockTable& blocks, PassClock clock);

// The schedule of time_passes(): which counts to run, and until when. `run` runs a pass of that
// many rows and returns its seconds; `counts` begins with one row.
std::vector<TimedPass> time_counts(std::span<const int> counts,
                                   const std::function<double(int num_rows)>& run);

}  // namespace specdec
