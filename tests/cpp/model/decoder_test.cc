#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <random>

#include "core/log.h"
#include "specdec/error.h"
#include "testing/chain_batch.h"
#include "testing/checkpoint_files.h"
#include "testing/text.h"
#include "testing/tiny_llama.h"

namespace specdec {
namespace {

using testing::ChainBatch;
using testing::ChainRunner;
using testing::checkpoint_error_of;
using testing::has_text;
using testing::SafetensorsWriter;
using testing::TempDirectory;
using namespace testing::tiny_llama;

// ---- the reference: a Llama in double precision, one token after the other, no cache layout

using Vector = std::vector<double>;

Vector multiply(const Tensor& matrix, const Vector& x) {
  Vector result(matrix.shape[0], 0.0);
  for (int64_t row = 0; row < matrix.shape[0]; ++row) {
    for (size_t i = 0; i < x.size(); ++i) result[row] += matrix.values[row * x.size() + i] * x[i];
  }
  return result;
}

Vector rms_norm(const Tensor& weight, const Vector& x) {
  double mean_square = 0.0;
  for (double value : x) mean_square += value * value / static_cast<double>(x.size());
  Vector result(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    result[i] = weight.values[i] * x[i] / std::sqrt(mean_square + kEps);
  }
  return result;
}

void rotate(double* head, int position) {
  for (int i = 0; i < kHeadDim / 2; ++i) {
    const double angle = position * std::pow(kTheta, -2.0 * i / kHeadDim);
    const double first = head[i];
    const double second = head[i + kHeadDim / 2];
    head[i] = first * std::cos(angle) - second * std::sin(angle);
    head[i + kHeadDim / 2] = second * std::cos(angle) + first * std::sin(angle);
  }
}

class ReferenceLlama {
 public:
  explicit ReferenceLlama(const Tensors& tensors, const std::string& head = "lm_head.weight")
      : tensors_(tensors), head_(head), keys_(kLayers), values_(kLayers) {}

  // Logits after the next token.
  Vector next(int32_t token) {
    const Tensor& table = tensors_.at("model.embed_tokens.weight");
    Vector hidden(table.values.begin() + token * kHidden,
                  table.values.begin() + (token + 1) * kHidden);
    for (int layer = 0; layer < kLayers; ++layer) {
      add(hidden, attention(layer, norm(layer, "input_layernorm", hidden)));
      add(hidden, mlp(layer, norm(layer, "post_attention_layernorm", hidden)));
    }
    ++position_;
    return multiply(tensors_.at(head_), rms_norm(tensors_.at("model.norm.weight"), hidden));
  }

 private:
  const Tensor& weight(int layer, const std::string& name) const {
    return tensors_.at(str_cat("model.layers.", layer, ".", name, ".weight"));
  }
  Vector norm(int layer, const std::string& name, const Vector& x) const {
    return rms_norm(weight(layer, name), x);
  }
  static void add(Vector& to, const Vector& what) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += what[i];
  }

  Vector attention(int layer, const Vector& x) {
    Vector q = multiply(weight(layer, "self_attn.q_proj"), x);
    Vector k = multiply(weight(layer, "self_attn.k_proj"), x);
    for (int head = 0; head < kHeads; ++head) rotate(&q[head * kHeadDim], position_);
    for (int head = 0; head < kKvHeads; ++head) rotate(&k[head * kHeadDim], position_);
    keys_[layer].push_back(k);
    values_[layer].push_back(multiply(weight(layer, "self_attn.v_proj"), x));
    Vector mixed(kHeads * kHeadDim, 0.0);
    for (int head = 0; head < kHeads; ++head) {
      const int kv_offset = head / (kHeads / kKvHeads) * kHeadDim;
      Vector scores;
      double sum = 0.0;
      for (const Vector& key : keys_[layer]) {
        double dot = 0.0;
        for (int i = 0; i < kHeadDim; ++i) dot += q[head * kHeadDim + i] * key[kv_offset + i];
        scores.push_back(std::exp(dot / std::sqrt(double{kHeadDim})));
        sum += scores.back();
      }
      for (size_t t = 0; t < scores.size(); ++t) {
        for (int i = 0; i < kHeadDim; ++i) {
          mixed[head * kHeadDim + i] += scores[t] / sum * values_[layer][t][kv_offset + i];
        }
      }
    }
    return multiply(weight(layer, "self_attn.o_proj"), mixed);
  }

  Vector mlp(int layer, const Vector& x) const {
    Vector gate = multiply(weight(layer, "mlp.gate_proj"), x);
    const Vector up = multiply(weight(layer, "mlp.up_proj"), x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1.0 + std::exp(-gate[i]));
    return multiply(weight(layer, "mlp.down_proj"), gate);
  }

  const Tensors& tensors_;
  std::string head_;
  int position_ = 0;
  std::vector<std::vector<Vector>> keys_, values_;  // by layer, by position
};

std::vector<int32_t> some_tokens(int count, int seed = 1) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * i * 5 + i * 3 + seed * 11) % kVocab);
  return tokens;
}

void expect_reference_logits(ReferenceLlama reference, const std::vector<int32_t>& tokens,
                             const std::vector<float>& logits) {
  ASSERT_EQ(logits.size(), tokens.size() * kVocab);
  for (size_t t = 0; t < tokens.size(); ++t) {
    const Vector expected = reference.next(tokens[t]);
    for (int v = 0; v < kVocab; ++v) {
      EXPECT_NEAR(logits[t * kVocab + v], expected[v], 2e-5) << "token " << t << " vocab " << v;
    }
  }
}

class DecoderTest : public ::testing::Test {
 protected:
  TempDirectory directory_;
  std::unique_ptr<Backend> backend_ = make_backend({.num_threads = 2});
};

TEST_F(DecoderTest, LogitsEqualDoublePrecisionReference) {
  const Tensors tensors = llama_tensors();
  write_checkpoint(directory_, tensors);
  ChainRunner runner(directory_.path(), *backend_, 64, 64);
  const std::vector<int32_t> tokens = some_tokens(50);
  expect_reference_logits(ReferenceLlama(tensors), tokens, runner.run(tokens, 64));
}

TEST_F(DecoderTest, ChunksGiveTheSameBitsAsTheWhole) {
  write_checkpoint(directory_, llama_tensors());
  ChainRunner runner(directory_.path(), *backend_, 64, 64);
  const std::vector<int32_t> tokens = some_tokens(50);
  const std::vector<float> whole = runner.run(tokens, 64);
  for (int chunk : {1, 7, 33}) EXPECT_EQ(runner.run(tokens, chunk), whole) << "chunk " << chunk;
}

TEST_F(DecoderTest, BatchMatesDoNotChangeARequest) {
  write_checkpoint(directory_, llama_tensors());
  ChainRunner runner(directory_.path(), *backend_, 32, 64, 2);
  const std::vector<int32_t> first = some_tokens(17, 1);
  const std::vector<int32_t> second = some_tokens(29, 2);
  std::vector<float> expected = runner.run(first, 64);
  const std::vector<float> second_alone = runner.run(second, 64);
  expected.insert(expected.end(), second_alone.begin(), second_alone.end());
  const std::vector<ChainBatch::Request> both = {
      {.first_block = runner.first_block(0), .tokens = first},
      {.first_block = runner.first_block(1), .tokens = second}};
  EXPECT_EQ(runner.step(both), expected);
}

TEST_F(DecoderTest, LogitsOfChosenRowsComeInTheOrderAsked) {
  write_checkpoint(directory_, llama_tensors());
  ChainRunner runner(directory_.path(), *backend_, 32, 32);
  const std::vector<int32_t> tokens = some_tokens(10);
  const std::vector<float> all = runner.run(tokens, 32);
  std::vector<float> chosen(3 * kVocab);
  const std::vector<int32_t> row_ids = {9, 0, 4};
  runner.decoder().compute_logits(row_ids.data(), 3, chosen.data());
  for (int v = 0; v < kVocab; ++v) {
    EXPECT_EQ(chosen[v], all[9 * kVocab + v]);
    EXPECT_EQ(chosen[kVocab + v], all[v]);
    EXPECT_EQ(chosen[2 * kVocab + v], all[4 * kVocab + v]);
  }
}

TEST_F(DecoderTest, TiedHeadIsResidentOnce) {
  Tensors tensors = llama_tensors();
  write_checkpoint(directory_, tensors);
  const Decoder untied(load_model_config(directory_.path()), directory_.path(), *backend_, 32, 8);
  tensors.erase("lm_head.weight");
  write_checkpoint(directory_, tensors, R"(,"tie_word_embeddings":true)");
  ChainRunner tied(directory_.path(), *backend_, 32, 32);
  EXPECT_EQ(untied.num_parameters() - tied.decoder().num_parameters(), kVocab * kHidden);
  EXPECT_GE(untied.weight_bytes() - tied.decoder().weight_bytes(),
            int64_t{kVocab} * kHidden * sizeof(float));
  int64_t parameters = 0;
  for (const auto& [name, tensor] : tensors) parameters += tensor.values.size();
  EXPECT_EQ(tied.decoder().num_parameters(), parameters);
  const std::vector<int32_t> tokens = some_tokens(20);
  expect_reference_logits(ReferenceLlama(tensors, "model.embed_tokens.weight"), tokens,
                          tied.run(tokens, 32));
}

// A decoder like a draft head: its own layers between another model's embedding and LM head.
TEST_F(DecoderTest, PartsMayBeAnotherDecoders) {
  Tensors tensors = llama_tensors();
  write_checkpoint(directory_, tensors);
  const std::vector<int32_t> tokens = some_tokens(20);
  ChainRunner whole(directory_.path(), *backend_, 32, 32);
  const std::vector<float> expected = whole.run(tokens, 32);
  ModelParts borrowed;
  borrowed.embedding = whole.decoder().parts().embedding;
  borrowed.lm_head = whole.decoder().parts().lm_head;
  tensors.erase("model.embed_tokens.weight");
  tensors.erase("lm_head.weight");
  write_checkpoint(directory_, tensors);
  ChainRunner layers(directory_.path(), *backend_, 32, 32, 1, borrowed);
  EXPECT_EQ(layers.run(tokens, 32), expected);
  EXPECT_EQ(whole.decoder().num_parameters() - layers.decoder().num_parameters(),
            2 * kVocab * kHidden);
}

TEST_F(DecoderTest, HeadThatContradictsTheTieIsUsed) {
  const Tensors tensors = llama_tensors();
  write_checkpoint(directory_, tensors, R"(,"tie_word_embeddings":true)");
  ChainRunner runner(directory_.path(), *backend_, 32, 32);
  const std::vector<int32_t> tokens = some_tokens(20);
  expect_reference_logits(ReferenceLlama(tensors), tokens, runner.run(tokens, 32));
}

TEST_F(DecoderTest, AcceptsNamesWithoutTheModelPrefix) {
  const Tensors tensors = llama_tensors();
  Tensors bare;
  for (const auto& [name, tensor] : tensors) {
    bare.emplace(name.starts_with("model.") ? name.substr(6) : name, tensor);
  }
  write_checkpoint(directory_, bare);
  ChainRunner runner(directory_.path(), *backend_, 32, 32);
  const std::vector<int32_t> tokens = some_tokens(20);
  expect_reference_logits(ReferenceLlama(tensors), tokens, runner.run(tokens, 32));
}

TEST_F(DecoderTest, MissingTensorIsNamed) {
  Tensors tensors = llama_tensors();
  tensors.erase("model.layers.1.self_attn.v_proj.weight");
  write_checkpoint(directory_, tensors);
  const CheckpointError error =
      checkpoint_error_of([&] { ChainRunner(directory_.path(), *backend_, 32, 32); });
  EXPECT_EQ(error.tensor(), "model.layers.1.self_attn.v_proj.weight");
  EXPECT_EQ(error.file(), directory_.file("model.safetensors"));
}

TEST_F(DecoderTest, WrongShapeNamesTensorAndBothShapes) {
  Tensors tensors = llama_tensors();
  tensors.at("model.layers.0.mlp.up_proj.weight").shape = {kHidden, kInner};
  write_checkpoint(directory_, tensors);
  const CheckpointError error =
      checkpoint_error_of([&] { ChainRunner(directory_.path(), *backend_, 32, 32); });
  EXPECT_EQ(error.tensor(), "model.layers.0.mlp.up_proj.weight");
  EXPECT_TRUE(has_text(error.what(), "expected shape [40, 24], found [24, 40]"));
}

TEST_F(DecoderTest, SizesOfTheConfigAreComparedWithTheTensorsFirst) {
  struct Case {
    const char* member;  // what it asks for would take hundreds of gigabytes, or hours
    const char* tensor;
    const char* message;
  };
  const std::vector<Case> cases = {
      {R"(,"num_hidden_layers":65536)", "model.layers.65535.input_layernorm.weight",
       "num_hidden_layers of config.json is 65536"},
      {R"(,"intermediate_size":2147483647)", "model.layers.0.mlp.gate_proj.weight",
       "expected shape [2147483647, 24]"},
      {R"(,"vocab_size":2147483647)", "model.embed_tokens.weight",
       "expected shape [2147483647, 24]"},
      {R"(,"num_attention_heads":2147483646,"head_dim":2147483646)",
       "model.layers.0.self_attn.q_proj.weight", "expected shape [4611686009837453316, 24]"},
  };
  for (const Case& bad : cases) {
    write_checkpoint(directory_, llama_tensors(), bad.member);
    const CheckpointError error =
        checkpoint_error_of([&] { ChainRunner(directory_.path(), *backend_, 32, 1 << 20); });
    EXPECT_EQ(error.tensor(), bad.tensor);
    EXPECT_TRUE(has_text(error.what(), bad.message)) << error.what();
  }
}

// Collects warnings while it lives.
class WarningCapture {
 public:
  WarningCapture() {
    set_log_sink([this](LogLevel level, const std::string& message) {
      if (level == LogLevel::kWarning) messages_ += message + "\n";
    });
  }
  ~WarningCapture() { set_log_sink({}); }
  const std::string& messages() const { return messages_; }

 private:
  std::string messages_;
};

TEST_F(DecoderTest, WarnsAboutTensorsItDoesNotUse) {
  Tensors tensors = llama_tensors();
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{1}, {1.0f}};
  {
    write_checkpoint(directory_, tensors);
    const WarningCapture warnings;
    ChainRunner(directory_.path(), *backend_, 32, 32);
    EXPECT_EQ(warnings.messages(), "");
  }
  tensors["model.layers.0.adapter.weight"] = {{1}, {1.0f}};
  write_checkpoint(directory_, tensors);
  const WarningCapture warnings;
  ChainRunner(directory_.path(), *backend_, 32, 32);
  EXPECT_TRUE(has_text(warnings.messages(), "model.layers.0.adapter.weight"));
}

TEST_F(DecoderTest, WarnsOnceAboutAKeyThatIsNotKnown) {
  write_checkpoint(directory_, llama_tensors(), R"(,"note":1)");
  const WarningCapture warnings;
  ChainRunner(directory_.path(), *backend_, 32, 32);
  EXPECT_EQ(warnings.messages(), str_cat(directory_.file("config.json"),
                                         ": note is not known, and taken to change nothing that is "
                                         "computed\n"));
}

TEST_F(DecoderTest, MoreRowsThanTheWorkspaceHoldsIsABug) {
  write_checkpoint(directory_, llama_tensors());
  ChainRunner runner(directory_.path(), *backend_, 32, 8);
  const std::vector<int32_t> tokens = some_tokens(9);
  const ChainBatch::Request request{.tokens = tokens};
  EXPECT_THROW(runner.step({&request, 1}), InternalError);
}

TEST_F(DecoderTest, LearnedPositionsBoundTheModelLength) {
  directory_.write("config.json",
                   R"({"architectures":["OPTForCausalLM"],"vocab_size":16,"hidden_size":16,
                   "ffn_dim":16,"num_hidden_layers":1,"num_attention_heads":2,
                   "max_position_embeddings":32})");
  EXPECT_EQ(testing::refused_field([&] {
              Decoder(load_model_config(directory_.path()), directory_.path(), *backend_, 33, 8);
            }),
            "max_model_len");
}

}  // namespace
}  // namespace specdec
