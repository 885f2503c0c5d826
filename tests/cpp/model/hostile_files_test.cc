// Mutated checkpoints: each loads, or is a CheckpointError. A crash ends the test; the sanitizers
// see the rest. SPECDEC_FUZZ_CASES asks for more than the few that every run takes.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>

#include "backend/backend.h"
#include "core/log.h"
#include "engine/sizes.h"
#include "model/decoder.h"
#include "model/weight_store.h"
#include "specdec/error.h"
#include "testing/checkpoint_files.h"
#include "testing/tiny_llama.h"

namespace specdec {
namespace {

using testing::safetensors_bytes;
using testing::TempDirectory;

constexpr int kCases = 1500;
constexpr std::chrono::seconds kLongest{20};  // of one case, in milliseconds when nothing is wrong

int num_cases() {
  const char* text = std::getenv("SPECDEC_FUZZ_CASES");
  return text != nullptr ? std::atoi(text) : kCases;
}

// Pieces of JSON that parsers and sizes trip over.
const std::vector<std::string>& pieces() {
  static const std::vector<std::string> list = {"2147483647",
                                                "-1",
                                                "0",
                                                "1e300",
                                                "18446744073709551615",
                                                "4294967296",
                                                "0.5",
                                                "1e-320",
                                                "null",
                                                "true",
                                                "\"\"",
                                                "\"\\ud800\"",
                                                "\"\\u0000\"",
                                                "[]",
                                                "{}",
                                                "[[",
                                                "]]",
                                                "{\"a\":",
                                                "}",
                                                ",",
                                                ":",
                                                "\"",
                                                "\xff",
                                                "[0,0]",
                                                "\"x\":1,",
                                                "1e999",
                                                "99999",
                                                "\"BF16\"",
                                                "\"yarn\"",
                                                std::string(300, '['),
                                                std::string(3000, 'x')};
  return list;
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  size_t below(size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random_);
  }

  std::string mutate(std::string text) {
    for (size_t edits = 1 + below(4); edits > 0; --edits) edit(text);
    return text;
  }

 private:
  void edit(std::string& text) {
    if (text.empty()) return;
    const size_t at = below(text.size());
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        return;
      case 1:
        text.erase(at, 1 + below(8));
        return;
      case 2:
        text.insert(at, text.substr(below(text.size()), 1 + below(40)));
        return;
      case 3:
        text.insert(at, pieces()[below(pieces().size())]);
        return;
      default:
        replace_value(text, at);
    }
  }

  // The number, word or string that follows the first colon after `at`: well-formed all the same.
  void replace_value(std::string& text, size_t at) {
    const size_t colon = text.find(':', at);
    if (colon == std::string::npos) return;
    const size_t end = text.find_first_of(",}]", colon);
    if (end == std::string::npos) return;
    text.replace(colon + 1, end - colon - 1, pieces()[below(pieces().size())]);
  }

  std::mt19937 random_;
};

class HostileFiles : public ::testing::Test {
 protected:
  HostileFiles() {
    set_log_sink([](LogLevel, const std::string&) {});
    testing::tiny_llama::write_checkpoint(directory_, testing::tiny_llama::llama_tensors());
    backend_ = make_backend({.device = "cpu", .num_threads = 1, .act_dtype = DType::kF32});
  }
  ~HostileFiles() override { set_log_sink(nullptr); }

  // What an engine does with a checkpoint's files.
  void load() {
    const ModelConfig config = load_model_config(directory_.path());
    const int max_model_len = std::min(32, max_positions(config));
    const Decoder decoder(config, directory_.path(), *backend_, max_model_len, /*max_rows=*/8);
  }

  // Loads what `write(mutator)` has written, many times; names the case that fails.
  template <class Write>
  void fuzz(Write&& write) {
    int loaded = 0;
    for (int index = 0; index < num_cases(); ++index) {
      Mutator mutator(static_cast<unsigned>(index));
      const std::string written = write(mutator);
      const auto begin = std::chrono::steady_clock::now();
      try {
        load();
        ++loaded;
      } catch (const CheckpointError& error) {
        EXPECT_LT(std::string_view(error.what()).size(), 6000u) << index;
      } catch (const std::exception& error) {
        ADD_FAILURE() << "case " << index << ": " << error.what() << "\n" << written;
      }
      EXPECT_LT(std::chrono::steady_clock::now() - begin, kLongest) << index << "\n" << written;
    }
    EXPECT_GT(loaded, 0) << "nothing of the mutated files was still good: mutations are too wild";
    EXPECT_LT(loaded, num_cases());
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

}  // namespace
}  // namespace specdec
