// What passes of a model take, by running some before there are requests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/block_table.h"
#include "runtime/model_runner.h"
#include "speculation/pass_cost.h"

namespace specdec {

// Which clock tells how long a pass took. Where the calling thread computes, its own clock leaves
// out what others do to the machine as the engine is loaded, which would make some passes look
// dear that are not.
enum class PassClock : uint8_t { kWall, kThread };

// Runs passes of 1, 2, 4, ... rows on blocks that hold no sequence, sampling from every row as
// verification does, and keeps the shortest time of each count: what else the machine does only
// adds to it. All counts are run up to three times, the most telling ones first. None is begun
// once all of this has taken eight passes of one row, or a tenth of a second if that is longer; so
// it stays a small part of loading, which reads the weights from a slower place than memory.
// Rising numbers of rows; none where `blocks` are not enough for two.
std::vector<TimedPass> time_passes(ModelRunner& runner, int max_rows, const BlockTable& blocks,
                                   PassClock clock);

// The same of a head or draft model for numbers of rows that its target was timed at before, on
// the same blocks: a head reads what the target left there.
std::vector<TimedPass> time_draft_passes(ModelRunner& runner, bool is_head,
                                         std::span<const TimedPass> target,
                                         const BlockTable& blocks, PassClock clock);

// The schedule of the above: which counts to run, until when. `run` runs a pass of so many rows
// and returns its seconds; `counts` begins with one row.
std::vector<TimedPass> time_counts(std::span<const int> counts,
                                   const std::function<double(int num_rows)>& run);

}  // namespace specdec
