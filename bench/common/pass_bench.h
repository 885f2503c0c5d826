// Shared by benchmarks of a model's whole passes on a GPU: the model's config, a buffer for logits,
// and the choice of tokens after a pass.
#pragma once

#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "common/gpu.h"
#include "common/gpu_requests.h"
#include "common/report.h"
#include "common/timing.h"
#include "core/str_cat.h"
#include "model/model.h"

namespace specdec::bench {

struct PassOptions {
  Options shared;
  std::string model;  // a directory
  LoadFormat load_format = LoadFormat::kAuto;
  bool greedy = false;

  void parse(int argc, char** argv, std::vector<Argument> own) {
    own.insert(own.end(), {{"--model", &model, 1, /*is_needed=*/true},
                           {"--load_format", &load_format},
                           {"--greedy", &greedy}});
    shared = parse_options(argc, argv, {"cuda", "emulated"}, own);
  }
};

class PassBench {
 protected:
  PassBench(const char* name, const PassOptions& options, int max_rows)
      : config_(load_model_config(options.model)),
        options_(options),
        gpu_(options.shared),
        report_(name, options.shared) {
    config_.random_weights = options.load_format == LoadFormat::kDummy;
    const size_t num_logits = static_cast<size_t>(max_rows) * config_.vocab_size;
    logits_ = gpu_.device().allocate(sizeof(float) * num_logits, "a bench");
    read_rate_ = gpu_.read_rate(options.shared.smoke ? 1 << 18 : int64_t{2} << 30, samples());
  }

  int samples() const { return options_.shared.samples(15); }
  // Whether there is time for the case `name`; prints a line if not.
  bool has_time(const std::string& name) const {
    if (watch_.seconds() <= options_.shared.budget_seconds) return true;
    std::printf("%s: not run: no time left\n", name.c_str());
    return false;
  }
  // The ids of rows 0 to num_rows - 1, on the device.
  const int32_t* stage_first_rows(int num_rows) {
    std::vector<int32_t> row_ids(num_rows);
    std::iota(row_ids.begin(), row_ids.end(), 0);
    return gpu_.backend().stage_ids(row_ids);
  }
  // The last part of a pass: the likeliest tokens with --greedy where the model finds them without
  // logits and they are wanted, else the logits.
  void choose(Model& model, const int32_t* staged_ids, int num_rows, bool wants_best = true,
              int level = 0) {
    if (options_.greedy && wants_best &&
        model.best_tokens(staged_ids, num_rows, logits_.as<int32_t>())) {
      return;
    }
    model.compute_logits(staged_ids, num_rows, logits_.as<float>(), level);
  }
  // Seconds to sample `num_rows` rows with the same parameters.
  double sample_seconds(int num_rows, const SampleRow& row, int vocab_size,
                        const DraftVocabulary& own = {}) {
    const std::vector<SampleRow> rows(num_rows, row);
    std::vector<SampleResult> results(num_rows);
    return gpu_.host_seconds(options_.shared.samples(5), [&] {
      gpu_.backend().begin_step();
      gpu_.backend().sample({.logits = logits_.as<float>(),
                             .rows = rows,
                             .vocab_size = vocab_size,
                             .token_ids = own.token_ids,
                             .target_vocab_size = own.target_vocab_size,
                             .results = results});
    });
  }

  ModelConfig config_;
  PassOptions options_;
  Stopwatch watch_;
  Gpu gpu_;
  Report report_;
  Buffer logits_;
  double read_rate_ = 0;
};

}  // namespace specdec::bench
