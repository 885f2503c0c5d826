// The model, its cache and its sampler on one device: a packed batch in, sampled tokens out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "model/model.h"
#include "model/rank_coordinates.h"
#include "runtime/batch_inputs.h"
#include "runtime/feature_cache.h"
#include "runtime/kv_cache.h"
#include "runtime/row_processing.h"
#include "runtime/state_cache.h"
#include "specdec/quantization.h"
#include "specdec/request_output.h"

namespace specdec {

struct RunnerLimits {
  int max_model_len = 0;   // tokens of one sequence
  int max_rows = 0;        // rows of one step
  int max_logit_rows = 0;  // rows whose logits are held at once; more are done in turns
  int max_kept_rows = 0;   // of keep_logits()
};

// A pass's settings other than its batch; see ModelPass.
struct PassKind {
  int level = 0;
  bool kv_only = false;
  int num_levels = 1;
};

// What the cache of a draft head may need beside its own blocks under the pool's ids.
struct DraftCacheNeeds {
  std::span<const PagedKvView> target = {};  // the layers of the target's cache, which it reads
  int num_spare = 0;  // blocks for rows that no later pass reads (ModelRunner::spare_blocks)
};

// Is called before the runner's calls of the same names, with arrays on the host.
class RunnerObserver {
 public:
  virtual ~RunnerObserver() = default;
  virtual void begin_forward(const BatchView& batch) = 0;
  virtual void forward(const BatchView& batch, const PassKind& kind) = 0;
  virtual void compute_logits(std::span<const int32_t> row_ids, int level) = 0;
  virtual void compute_markov_logits(std::span<const int32_t> token_ids) = 0;
  virtual void move_kv(std::span<const std::pair<int64_t, int64_t>> slots) = 0;
};

class ModelRunner final : public StepModel {
 public:
  // Loads a model for passes of up to max_rows rows.
  using ModelMaker = std::function<std::unique_ptr<Model>(int max_rows)>;

  // Loads the weights. The backend is borrowed and must outlive the runner. The cache is allocated
  // later, when the remaining memory is known.
  ModelRunner(Backend& backend, const RunnerLimits& limits, const ModelMaker& make_model);
  // Loads the checkpoint in `directory`, or the share of the rank at `place`. Passes store the
  // states that `taps` names at their tokens' slots, for drafters to read.
  ModelRunner(const ModelConfig& config, const std::string& directory, Backend& backend,
              const RunnerLimits& limits, Quantization quantization = Quantization::kAuto,
              TapSpec taps = {}, const RankCoordinates& coordinates = {});

  ~ModelRunner() override { backend_.forget_recorded(this); }

  // The observer is borrowed; null: nobody observes.
  void set_observer(RunnerObserver* observer) { observer_ = observer; }
  // The backend's pool.
  ThreadPool& thread_pool() { return backend_.thread_pool(); }

  // Lets a backend that needs much memory for steps allocate it now; the cache gets the rest. Call
  // before allocate_cache().
  void rehearse(const KvFormat& format);
  void allocate_cache(int num_blocks, const KvFormat& format, const DraftCacheNeeds& needs = {});
  std::span<const BlockId> spare_blocks() const override { return spare_blocks_; }
  // For a model with recurrent layers: what each layer keeps, and the memory for so many states.
  std::vector<StateShape> state_shapes() const;
  void allocate_states(int num_slots, int num_records);
  // For a draft head: the rows that its target fills or, before caches exist, their shape. The last
  // row gets the features that the head reads where none are known.
  void set_features(const PagedRowsView& features);
  int64_t mask_slot() const { return taps_.features.num_slots - 1; }
  PagedRowsView feature_shape() const { return {.width = feature_width()}; }
  // Bytes of one block over all layers, features included.
  int64_t cache_block_bytes(const KvFormat& format) const;

  // Lets the stages before this rank's begin with the rows, while this one may do other work.
  // Passes that have begun are run by forward() in their order, each with its own inputs.
  void begin_forward(BatchInputs& inputs);
  // Runs the rows, writing their KV.
  void forward(BatchInputs& inputs, const PassKind& kind = {});
  // Runs a batch that another rank's runner has made. sample() cannot follow.
  void forward(const BatchView& batch, const PassKind& kind) { run_staged(batch, kind); }
  // Computes the logits that sample() reads, for rows of the last forward.
  void compute_logits(std::span<const int32_t> row_ids, int level);
  // Number of rows between two levels in the last forward.
  int rows_per_level() const { return rows_per_level_; }

  // Samples from rows of the last forward: row_ids[i] by rows[i] into results[i]. Processors of
  // rows are called by this thread. `levels_on`: from the pass's first level to the rows'; for
  // models with an output for each level.
  void sample(std::span<const int32_t> row_ids, std::span<const SampleRow> rows,
              LogprobsMode logprobs_mode, std::span<SampleResult> results, int levels_on = 0);
  // Keeps the logits of rows of the last forward; then samples from kept rows, by index, in draws
  // that follow tokens_before[i], which a Markov head reads.
  void keep_logits(std::span<const int32_t> row_ids);
  void sample_after(std::span<const int32_t> tokens_before, std::span<const int32_t> kept_ids,
                    std::span<const SampleRow> rows, LogprobsMode logprobs_mode,
                    std::span<SampleResult> results);
  // On another rank, along with the leader's.
  void compute_markov_logits(std::span<const int32_t> token_ids);

  // The same in a device step, whose batch and rows are made on the device.
  void forward(const BatchView& batch, int level = 0) override;
  void compute_logits(const int32_t* row_ids, int num_rows, float* logits) override;
  bool best_tokens(const int32_t* row_ids, int num_rows, int32_t* tokens) override {
    return model_->best_tokens(row_ids, num_rows, tokens);
  }
  bool has_markov_head() const override { return model_->has_markov_head(); }
  void compute_markov_logits(const int32_t* token_ids, int num_rows, float* out) override {
    model_->compute_markov_logits(token_ids, num_rows, out);
  }
  int vocab_size() const override { return model_->config().vocab_size; }
  DraftVocabulary draft_vocabulary() const override { return model_->draft_vocabulary(); }
  std::span<const PagedKvView> kv_layers() const override { return cache_->own_layers(); }
  PagedRowsView features() const override { return taps_.features; }

  // The tapped states of a sequence's first `num_tokens` tokens.
  TappedStates read_tapped(const BlockTable& blocks, int num_tokens) const;

  // Moves the KV and features of accepted drafts to where their positions belong: (from, to) slots,
  // in order.
  void move_kv(std::span<const std::pair<int64_t, int64_t>> slots);

  // Time spent in the final norm and the head so far.
  double lm_head_seconds() const { return lm_head_seconds_; }

  const RunnerLimits& limits() const { return limits_; }
  const Model& model() const { return *model_; }
  const KvCache& cache() const { return *cache_; }
  // Whether the model has recurrent layers, on whichever stage.
  bool has_states() const { return states_ != nullptr; }
  int64_t state_bytes() const { return states_ != nullptr ? states_->size_bytes() : 0; }

  // Tokens that samples may be of.
  int num_tokens() const {
    const DraftVocabulary own = draft_vocabulary();
    return own.token_ids != nullptr ? own.target_vocab_size : vocab_size();
  }

 private:
  // The rows of a batch on the host; returns the rows that were staged.
  int run_staged(const BatchView& batch, const PassKind& kind);
  void run(const BatchView& batch, const PassKind& kind);
  // Samples in turns of as many rows as logits are held of; `compute` writes the logits of rows
  // [begin, begin + count) to logits_.
  void sample_in_turns(std::span<const SampleRow> rows, LogprobsMode logprobs_mode,
                       std::span<SampleResult> results,
                       const std::function<void(size_t begin, size_t count)>& compute);
  KvCacheShape cache_shape(const KvFormat& format) const;
  int feature_width() const { return taps_.spec.width(model_->config().hidden_size); }
  std::unique_ptr<FeatureCache> make_features(int num_blocks, const KvFormat& format) const;

  Backend& backend_;
  RunnerLimits limits_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<BlockId> spare_blocks_;
  std::unique_ptr<StateCache> states_;  // null: no layer is recurrent
  Taps taps_;
  std::unique_ptr<FeatureCache> features_;  // null: nothing is tapped
  // State of the last forward().
  int num_rows_held_ = 0;
  int rows_per_level_ = 0;
  int level_held_ = 0;
  int num_kept_ = 0;  // rows of kept_logits_
  double lm_head_seconds_ = 0;
  RunnerObserver* observer_ = nullptr;
  Buffer logits_;       // [max_logit_rows, vocab_size] float32
  Buffer kept_logits_;  // [max_kept_rows, vocab_size] float32
  RowProcessing row_processing_;
};

}  // namespace specdec
