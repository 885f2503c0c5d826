#include "specdec/tapped_states.h"

#include <algorithm>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "core/str_cat.h"
#include "engine/sizes.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "runtime/model_runner.h"
#include "specdec/error.h"

namespace specdec {
namespace {

void check(const ModelConfig& model, const std::vector<int32_t>& tokens,
           const std::vector<int>& layer_inputs) {
  if (tokens.empty()) throw InvalidArgument("tokens", "there are none");
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model.vocab_size) {
      throw InvalidArgument(
          "tokens", str_cat(token, " is not in the vocabulary of ", model.vocab_size, " tokens"));
    }
  }
  for (const int layer : layer_inputs) {
    if (layer < 0 || layer > model.num_layers) {
      throw InvalidArgument("layer_inputs",
                            str_cat("must be 0 to ", model.num_layers, ", not ", layer));
    }
  }
}

// The rows at the slots of the first `num_tokens` tokens.
std::vector<float> read_features(Backend& backend, const PagedRowsView& features,
                                 const BlockTable& blocks, int num_tokens) {
  const DType act = backend.act_dtype();
  const auto width = static_cast<size_t>(features.width);
  const size_t row_bytes = width * size_of(act);
  std::vector<std::byte> row(row_bytes);
  std::vector<float> states(static_cast<size_t>(num_tokens) * width);
  for (int i = 0; i < num_tokens; ++i) {
    const size_t offset = static_cast<size_t>(blocks.slot(i)) * row_bytes;
    backend.read(static_cast<const std::byte*>(features.rows) + offset, row);
    to_floats(row.data(), act, width, &states[static_cast<size_t>(i) * width]);
  }
  return states;
}

}  // namespace

std::vector<float> tapped_states(const EngineConfig& given, const std::vector<int32_t>& tokens,
                                 const std::vector<int>& layer_inputs, bool final_hidden) {
  EngineConfig config = given;
  config.validate();
  const DeviceChoice device = resolve_device(config.device);
  fill_defaults(config, device.kind);
  const ModelConfig model = load_model_config(config.model, config.hf_overrides);
  check(model, tokens, layer_inputs);
  const std::unique_ptr<Backend> backend =
      make_backend({.device = device.name,
                    .cpu_isa = config.cpu_isa,
                    .num_threads = config.num_threads,
                    .act_dtype = resolve_dtype(config, model, device.kind),
                    .enforce_eager = config.enforce_eager,
                    .deterministic = config.deterministic});
  const int num_tokens = static_cast<int>(tokens.size());
  const int most_rows = std::min(config.max_num_batched_tokens, num_tokens);
  ModelRunner runner(model, config.model, *backend,
                     {.max_model_len = num_tokens, .max_rows = most_rows, .max_logit_rows = 1},
                     parse_quantization(config.quantization),
                     TapSpec{.layer_inputs = layer_inputs, .final_hidden = final_hidden});
  const int num_blocks = num_blocks_for(num_tokens, config.block_size);
  runner.allocate_cache(num_blocks, resolve_kv_format(config, backend->act_dtype()));
  BlockPool pool(num_blocks);
  BlockTable blocks(config.block_size);
  blocks.reserve(pool, num_tokens);
  for (int begin = 0; begin < num_tokens; begin += most_rows) {
    const int count = std::min(most_rows, num_tokens - begin);
    BatchInputs inputs;
    inputs.add_chain(
        std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), begin,
        blocks);
    backend->begin_step();
    runner.forward(inputs);
    backend->end_step();
  }
  return read_features(*backend, runner.features(), blocks, num_tokens);
}

}  // namespace specdec
