// Mutated checkpoints of targets and of draft heads.
#include "testing/hostile_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/log.h"
#include "engine/sizes.h"
#include "model/decoder.h"
#include "model/draft_heads/draft_head_config.h"
#include "testing/checkpoint_files.h"
#include "testing/tiny_draft_heads.h"
#include "testing/tiny_llama.h"

namespace specdec {
namespace {

using testing::Mutator;
using testing::safetensors_bytes;
using testing::TempDirectory;

class HostileFiles : public ::testing::Test {
 protected:
  HostileFiles() {
    set_log_sink([](LogLevel, const std::string&) {});
    testing::tiny_llama::write_checkpoint(directory_, testing::tiny_llama::llama_tensors());
    backend_ = make_backend({.device = "cpu", .num_threads = 1, .act_dtype = DType::kF32});
  }
  ~HostileFiles() override { set_log_sink(nullptr); }

  // Reads a checkpoint's files as an engine does.
  void load() {
    const ModelConfig config = load_model_config(directory_.path());
    const int max_model_len = std::min(32, max_positions(config));
    const Decoder decoder(config, directory_.path(), *backend_, max_model_len, /*max_rows=*/8);
  }

  template <class Write>
  void fuzz(const Write& write) {
    testing::fuzz_files(write, [&] { load(); });
  }

  std::string content(const std::string& name) const {
    std::ifstream stream(directory_.file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  TempDirectory directory_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(HostileFiles, MutatedHeaders) {
  const std::string good = content("model.safetensors");
  size_t length = 0;
  std::memcpy(&length, good.data(), 8);
  const std::string header = good.substr(8, length), data = good.substr(8 + length);
  fuzz([&](Mutator& mutator) {
    const bool whole = mutator.below(4) == 0;  // the length before the header is mutated, too
    const std::string bytes = whole ? mutator.mutate(good.substr(0, 200)) + good.substr(200)
                                    : safetensors_bytes(mutator.mutate(header), data);
    directory_.write("model.safetensors", bytes);
    return bytes.substr(0, 8 + length);
  });
}

TEST_F(HostileFiles, MutatedConfigs) {
  std::string llama = content("config.json");
  llama.pop_back();
  const std::vector<std::string> seeds = {
      llama + "}",
      llama +
          R"(,"rope_scaling":{"rope_type":"yarn","factor":4,"beta_fast":32},"eos_token_id":[1]})",
      llama + R"(,"rope_scaling":{"rope_type":"dynamic","factor":4.0},"attention_bias":false})",
      llama + R"(,"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,
              "high_freq_factor":4,"original_max_position_embeddings":64},"model_type":"llama"})",
      llama + R"(,"architectures":["MistralForCausalLM"],"sliding_window":8})",
      llama + R"(,"architectures":["Qwen2ForCausalLM"],"use_sliding_window":true,
              "layer_types":["full_attention","sliding_attention"]})",
      llama + R"(,"quantization_config":{"quant_method":"fp8","weight_block_size":[8,8]}})"};
  fuzz([&](Mutator& mutator) {
    const std::string text = mutator.mutate(seeds[mutator.below(seeds.size())]);
    directory_.write("config.json", text);
    return text;
  });
}

TEST_F(HostileFiles, MutatedIndexesAndGenerationConfigs) {
  const std::string weights = content("model.safetensors");
  directory_.write("shard", weights);
  std::filesystem::remove(directory_.file("model.safetensors"));
  std::string index;
  for (const auto& [name, tensor] : testing::tiny_llama::llama_tensors()) {
    index += (index.empty() ? R"({"weight_map":{")" : R"(,")") + name + R"(":"shard")";
  }
  index += "}}";
  fuzz([&](Mutator& mutator) {
    const std::string mutated = mutator.mutate(index);
    const std::string generation = mutator.mutate(R"({"eos_token_id":[1,2]})");
    const bool both = mutator.below(2) == 0;
    directory_.write("model.safetensors.index.json", both ? mutated : index);
    directory_.write("generation_config.json", generation);
    return mutated + generation;
  });
}

// ---- draft heads

namespace heads = testing::tiny_draft_heads;

struct HeadFile {
  const char* name;
  DraftMethod method;
  void (*write)(const TempDirectory& directory);
};

class HostileHeads : public HostileFiles, public ::testing::WithParamInterface<HeadFile> {
 protected:
  HostileHeads() : target_(load_model_config(directory_.path())) {
    // Layer inputs 0 to 2 are all that the target has.
    decoder_ = std::make_unique<Decoder>(target_, directory_.path(), *backend_, 32, 8);
    GetParam().write(head_);
  }

  // Reads a head's files as an engine does.
  void load_head_files() {
    DrafterConfig drafter;
    drafter.method = GetParam().method;
    drafter.model = head_.path();
    const DraftHeadTarget target = {.config = target_, .directory = directory_.path()};
    const DraftHeadConfig config = load_draft_head_config(drafter, target);
    const auto head = load_draft_head(config, {.target = target,
                                               .target_parts = decoder_->parts(),
                                               .backend = *backend_,
                                               .max_model_len = 32,
                                               .max_rows = 8});
  }

  std::string head_content(const std::string& name) const {
    std::ifstream stream(head_.file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  TempDirectory head_;
  ModelConfig target_;
  std::unique_ptr<Decoder> decoder_;
};

TEST_P(HostileHeads, MutatedConfigs) {
  const std::string good = head_content("config.json");
  testing::fuzz_files(
      [&](Mutator& mutator) {
        const std::string text = mutator.mutate(good);
        head_.write("config.json", text);
        return text;
      },
      [&] { load_head_files(); });
}

TEST_P(HostileHeads, MutatedTensors) {
  const std::string good = head_content("model.safetensors");
  size_t length = 0;
  std::memcpy(&length, good.data(), 8);
  const std::string header = good.substr(8, length), data = good.substr(8 + length);
  testing::fuzz_files(
      [&](Mutator& mutator) {
        // Bytes of the data are numbers: ids of a draft vocabulary are looked at, weights are not.
        const bool of_data = mutator.below(2) == 0;
        std::string bytes = data;
        for (int i = 0; of_data && i < 200; ++i) {
          bytes[mutator.below(bytes.size())] = static_cast<char>(mutator.below(256));
        }
        head_.write("model.safetensors",
                    safetensors_bytes(of_data ? header : mutator.mutate(header), bytes));
        return header;
      },
      [&] { load_head_files(); });
}

INSTANTIATE_TEST_SUITE_P(
    Methods, HostileHeads,
    ::testing::Values(HeadFile{"eagle", DraftMethod::kEagle, heads::write_eagle},
                      HeadFile{"eagle3", DraftMethod::kEagle3,
                               [](const TempDirectory& directory) {
                                 heads::write_eagle3(
                                     directory,
                                     R"(,"norm_output":true,"norm_before_residual":false)");
                               }},
                      HeadFile{"dspark", DraftMethod::kDspark,
                               [](const TempDirectory& directory) {
                                 heads::write_dflash(directory, /*is_dspark=*/true);
                               }},
                      HeadFile{"mlp_speculator", DraftMethod::kMlpSpeculator,
                               heads::write_mlp_speculator}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace specdec
