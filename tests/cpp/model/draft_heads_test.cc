// MLP speculators and Medusa heads against their formulas in double precision, and what their files
// are refused for.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/str_cat.h"
#include "model/decoder.h"
#include "model/draft_heads/draft_head_config.h"
#include "testing/checkpoint_files.h"
#include "testing/recurrent_models.h"
#include "testing/small_heads.h"
#include "testing/text.h"
#include "testing/tiny_llama.h"

namespace specdec {
namespace {

namespace tiny = testing::tiny_llama;
using testing::checkpoint_error_of;
using testing::medusa_config;
using testing::medusa_hidden;
using testing::medusa_tensors;
using testing::MedusaShape;
using testing::mlp_config;
using testing::mlp_tensors;
using testing::MlpShape;
using testing::multiply;
using testing::TempDirectory;
using testing::write_head;
using tiny::kHidden;
using tiny::kVocab;
using tiny::Tensor;
using tiny::Tensors;
using Vector = std::vector<double>;

constexpr int kSlots = 40;

::testing::AssertionResult says(const CheckpointError& error, std::string_view text) {
  return testing::has_text(error.what(), text);
}

// ---- the formulas

double inverse_root_mean_square(const Vector& x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6);
}

// The state of an MLP speculator after the token of step `step`.
Vector next_state(const Tensors& tensors, const MlpShape& shape, int step, Vector state,
                  int32_t token) {
  const auto tensor = [&](const std::string& kind, int index, const std::string& suffix) {
    return tensors.at(str_cat(shape.prefix, kind, index, suffix));
  };
  const int owner = shape.is_tied ? 0 : step;
  if (step == 0 && shape.scales_input) {
    const double scale = inverse_root_mean_square(state) / std::sqrt(2.0);
    for (double& value : state) value *= scale;
  }
  const double state_weight = std::pow(0.5, 0.5 / shape.num_steps);
  const double token_weight = std::sqrt((1 - state_weight * state_weight) * (shape.inner / 2.0));
  Vector z = multiply(tensor("proj.", shape.is_tied ? std::min(step, 1) : step, ".weight"), state);
  const Tensor embedding = tensor("emb.", owner, ".weight");
  for (int i = 0; i < shape.inner; ++i) {
    z[i] += token_weight / state_weight * embedding.values[token * shape.inner + i];
  }
  const double scale = inverse_root_mean_square(z);
  const Tensor weight = tensor("ln.", owner, ".weight"), bias = tensor("ln.", owner, ".bias");
  for (int i = 0; i < shape.inner; ++i) {
    const double normed = z[i] * scale * weight.values[i] + bias.values[i];
    z[i] = 0.5 * normed * (1.0 + std::erf(normed / std::sqrt(2.0)));
  }
  return z;
}

Vector mlp_logits(const Tensors& tensors, const MlpShape& shape, int step, const Vector& state) {
  return multiply(tensors.at(str_cat(shape.prefix, "head.", shape.is_tied ? 0 : step, ".weight")),
                  state);
}

// ---- a head, its target and rows of features

class HeadsTest : public ::testing::Test {
 protected:
  DraftHeadConfig parse(DraftMethod method, std::vector<int32_t> token_map = {}) {
    DrafterConfig drafter;
    drafter.method = method;
    drafter.model = files_.path();
    drafter.token_map = std::move(token_map);
    return load_draft_head_config(drafter, target_);
  }

  void load(const DraftHeadConfig& config, DType dtype = DType::kF32,
            Quantization quantization = Quantization::kNone) {
    head_.reset();
    decoder_.reset();
    backend_ = make_backend({.num_threads = 2, .act_dtype = dtype});
    decoder_ = std::make_unique<Decoder>(target_config_, target_files_.path(), *backend_, 64, 8);
    head_ = load_draft_head(config, {.target = target_,
                                     .target_parts = decoder_->parts(),
                                     .quantization = quantization,
                                     .backend = *backend_,
                                     .max_model_len = 64,
                                     .max_rows = 8});
    EXPECT_TRUE(config.taps.final_hidden);
    width_ = config.taps.width(kHidden);
    features_.assign(static_cast<size_t>(kSlots) * width_ * size_of(dtype), 0);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kSlots * width_; ++i) {
      const float value = normal(random);
      if (dtype == DType::kBF16) {
        reinterpret_cast<BFloat16*>(features_.data())[i] = to_bfloat16(value);
      } else {
        reinterpret_cast<float*>(features_.data())[i] = value;
      }
    }
  }

  Vector feature(int64_t slot) const {
    const float* row = reinterpret_cast<const float*>(features_.data()) + slot * width_;
    return Vector(row, row + kHidden);
  }

  struct Row {
    int32_t token;
    int64_t feature_slot;
    int64_t state_slot;
  };
  // Logits of all rows, one after another.
  std::vector<float> run(const std::vector<Row>& rows, int level) {
    std::vector<int32_t> tokens;
    std::vector<int64_t> feature_slots, state_slots;
    for (const Row& row : rows) {
      tokens.push_back(row.token);
      feature_slots.push_back(row.feature_slot);
      state_slots.push_back(row.state_slot);
    }
    const int count = static_cast<int>(rows.size());
    const BatchView batch = {.num_requests = 1,
                             .num_rows = count,
                             .token_ids = tokens.data(),
                             .feature_slots = feature_slots.data(),
                             .state_slots = state_slots.data()};
    head_->forward({.batch = batch,
                    .features = {.rows = features_.data(), .num_slots = kSlots, .width = width_},
                    .level = level});
    std::vector<int32_t> ids(rows.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<float> logits(rows.size() * head_->config().vocab_size);
    head_->compute_logits(ids.data(), count, logits.data(), level);
    return logits;
  }

  void expect_logits(const std::vector<float>& logits, size_t row, const Vector& expected) {
    const size_t size = head_->config().vocab_size;
    ASSERT_EQ(expected.size(), size);
    for (size_t i = 0; i < size; ++i) {
      ASSERT_NEAR(logits[row * size + i], expected[i], 1e-4 * (1.0 + std::abs(expected[i])))
          << "row " << row << " token " << i;
    }
  }

  // A root and two levels of drafts: the second level's rows have different parents.
  const std::vector<std::vector<Row>> levels_ = {
      {{4, 7, 8}, {30, 20, 21}},
      {{9, 8, 9}, {36, 21, 22}, {0, 8, 10}},
      {{11, 10, -1}, {12, 9, 11}, {13, 22, 23}, {11, 9, 12}}};

  void expect_rows_alone_to_equal_rows_in_a_batch(const DraftHeadConfig& config) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Quantization quantization : {Quantization::kNone, Quantization::kInt8}) {
        load(config, dtype, quantization);
        const size_t size = head_->config().vocab_size;
        for (size_t level = 0; level < levels_.size(); ++level) {
          const std::vector<float> all = run(levels_[level], static_cast<int>(level));
          const std::vector<uint8_t> left = features_;
          for (size_t row = 0; row < levels_[level].size(); ++row) {
            const std::vector<float> alone = run({levels_[level][row]}, static_cast<int>(level));
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row * size);
            EXPECT_EQ(alone, std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(size)));
            EXPECT_EQ(features_, left) << "level " << level << " row " << row;
          }
        }
      }
    }
  }

  TempDirectory files_, target_files_;
  const Tensors target_tensors_ = tiny::llama_tensors();
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Model> head_;
  int width_ = 0;
  std::vector<uint8_t> features_;

  ModelConfig target_config_ = read_target();
  DraftHeadTarget target_{.config = target_config_, .directory = target_files_.path()};

 private:
  ModelConfig read_target() {
    tiny::write_checkpoint(target_files_, target_tensors_);
    return load_model_config(target_files_.path());
  }
};

TEST_F(HeadsTest, WithDummyWeightsThereIsNoFileButTheConfig) {
  target_config_.random_weights = true;
  const auto expect_logits_of = [&](DraftMethod method, const std::string& config, int num_tokens) {
    files_.write("config.json", config);
    load(parse(method));
    for (int level = 0; level < 3; ++level) {
      const std::vector<float> logits = run(levels_[level], level);
      ASSERT_EQ(logits.size(), levels_[level].size() * num_tokens);
      for (const float logit : logits) ASSERT_TRUE(std::isfinite(logit));
      EXPECT_NE(logits[0], logits[1]);
    }
  };
  for (const bool tied : {false, true}) {
    expect_logits_of(DraftMethod::kMlpSpeculator, mlp_config({.inner = 20, .is_tied = tied}),
                     kVocab);
  }
  expect_logits_of(DraftMethod::kMedusa, medusa_config({}), kVocab);
  expect_logits_of(DraftMethod::kMedusa, medusa_config({.shares_output = true}), kVocab);
  expect_logits_of(DraftMethod::kMedusa, medusa_config({.token_map = {0, 1, 2, 3, 4}}), 5);
}

TEST_F(HeadsTest, KeysThatAreNotKnownAreRefusedOrNamed) {
  for (const bool is_medusa : {false, true}) {
    const auto read = [&](const std::string& extra) {
      std::string config = is_medusa ? medusa_config({}) : mlp_config({.inner = 20});
      config.insert(1, extra + ",");
      write_head(files_, is_medusa ? medusa_tensors({}) : mlp_tensors({.inner = 20}), config);
      return parse(is_medusa ? DraftMethod::kMedusa : DraftMethod::kMlpSpeculator).model;
    };
    EXPECT_EQ(read(R"("torch_dtype":"float16","n_candidates":5,"eos_token_id":2)").unknown_keys,
              "");
    EXPECT_TRUE(read(R"("author":"me")").unknown_keys.ends_with("config.json: author"));
    EXPECT_TRUE(says(checkpoint_error_of([&] { read(R"("residual_scale":0.5)"); }),
                     "residual_scale: is 0.5"));
    EXPECT_TRUE(
        says(checkpoint_error_of([&] { read(R"("quantization_config":{"quant_method":"hqq"})"); }),
             "quantization_config.quant_method: weights of 'hqq' are not read"));
    EXPECT_EQ(read(R"("quantization_config":{"quant_method":"fp8","weight_block_size":[8,16]})")
                  .scheme.block.cols,
              16);
  }
}

// ---- MLP speculators

class MlpSpeculatorTest : public HeadsTest {
 protected:
  void expect_the_formula(const MlpShape& shape) {
    const Tensors tensors = mlp_tensors(shape);
    write_head(files_, tensors, mlp_config(shape));
    const DraftHeadConfig config = parse(DraftMethod::kMlpSpeculator);
    EXPECT_EQ(config.model.num_layers, 0);  // no KV
    EXPECT_EQ(config.max_depth, shape.num_steps);
    load(config);
    std::map<int64_t, Vector> states;
    for (size_t level = 0; level < levels_.size(); ++level) {
      std::vector<Vector> expected;
      for (const Row& row : levels_[level]) {
        const Vector from = level == 0 ? feature(row.feature_slot) : states.at(row.feature_slot);
        expected.push_back(next_state(tensors, shape, static_cast<int>(level), from, row.token));
      }
      const std::vector<float> logits = run(levels_[level], static_cast<int>(level));
      for (size_t row = 0; row < expected.size(); ++row) {
        expect_logits(logits, row,
                      mlp_logits(tensors, shape, static_cast<int>(level), expected[row]));
        states[levels_[level][row].state_slot] = expected[row];
      }
    }
  }
};

TEST_F(MlpSpeculatorTest, LogitsOfEveryLevelEqualTheFormula) {
  for (const int inner : {20, 40}) {
    for (const bool tied : {false, true}) {
      for (const bool scaled : {false, true}) {
        expect_the_formula({.inner = inner, .is_tied = tied, .scales_input = scaled});
      }
    }
  }
}

TEST_F(MlpSpeculatorTest, NamesMayLackTheirPrefix) {
  expect_the_formula({.inner = 20, .scales_input = true, .prefix = ""});
}

TEST_F(MlpSpeculatorTest, ARowAloneEqualsTheRowInABatch) {
  const MlpShape shape = {.inner = 40, .scales_input = true};
  write_head(files_, mlp_tensors(shape), mlp_config(shape));
  expect_rows_alone_to_equal_rows_in_a_batch(parse(DraftMethod::kMlpSpeculator));
}

TEST_F(MlpSpeculatorTest, TiedWeightsAreHeldOnce) {
  const MlpShape tied = {.inner = 20, .is_tied = true};
  write_head(files_, mlp_tensors(tied), mlp_config(tied));
  load(parse(DraftMethod::kMlpSpeculator));
  EXPECT_EQ(head_->num_parameters(), 2 * kVocab * 20 + kHidden * 20 + 20 * 20 + 2 * 20);
}

TEST_F(MlpSpeculatorTest, FilesOfAnotherTargetAreRefused) {
  const MlpShape shape = {.inner = 20};
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string config = mlp_config(shape);
    config.replace(config.find(from), from.size(), to);
    write_head(files_, mlp_tensors(shape), config);
    return checkpoint_error_of([&] { parse(DraftMethod::kMlpSpeculator); });
  };
  const std::string path = files_.file("config.json");
  const CheckpointError size = refused(R"("emb_dim":24)", R"("emb_dim":32)");
  EXPECT_EQ(size.file(), path);
  EXPECT_TRUE(says(size, "emb_dim: 32, but the target's rows have 24 elements"));
  const CheckpointError vocabulary = refused(R"("vocab_size":37)", R"("vocab_size":38)");
  EXPECT_EQ(vocabulary.file(), path);
  EXPECT_TRUE(says(vocabulary, "vocab_size: 38"));
  const CheckpointError many = refused(R"("n_predict":3)", R"("n_predict":4)");
  EXPECT_EQ(many.file(), files_.file("model.safetensors"));
  EXPECT_EQ(many.tensor(), "speculator.proj.3.weight");
  EXPECT_TRUE(says(many, "n_predict"));
  const CheckpointError few = refused(R"("n_predict":3)", R"("n_predict":2)");
  EXPECT_EQ(few.tensor(), "speculator.emb.2.weight");
  EXPECT_TRUE(says(few, "n_predict"));
  EXPECT_TRUE(says(refused(R"("n_predict":3)", R"("n_predict":0)"), "n_predict"));
  EXPECT_TRUE(says(refused(R"("n_predict":3)", R"("n_predict":900)"), "n_predict"));
  const CheckpointError inner = refused(R"("inner_dim":20)", R"("inner_dim":21)");
  EXPECT_EQ(inner.tensor(), "speculator.emb.0.weight");
}

TEST_F(MlpSpeculatorTest, AMissingTensorIsNamed) {
  const MlpShape shape = {.inner = 20};
  for (const std::string name :
       {"emb.1.weight", "proj.2.weight", "ln.0.bias", "ln.1.weight", "head.2.weight"}) {
    Tensors tensors = mlp_tensors(shape);
    tensors.erase("speculator." + name);
    write_head(files_, tensors, mlp_config(shape));
    EXPECT_EQ(checkpoint_error_of([&] { parse(DraftMethod::kMlpSpeculator); }).tensor(),
              "speculator." + name);
  }
}

TEST_F(MlpSpeculatorTest, ItScoresAllTokens) {
  const MlpShape shape = {.inner = 20};
  write_head(files_, mlp_tensors(shape), mlp_config(shape));
  EXPECT_THROW(parse(DraftMethod::kMlpSpeculator, {1, 2}), InvalidArgument);
}

// ---- Medusa

class MedusaTest : public HeadsTest {
 protected:
  // `rows` of the output matrix are those the logits are of; empty: all.
  void expect_the_formula(const MedusaShape& shape, const std::vector<int>& rows = {},
                          std::vector<int32_t> token_map = {}) {
    const Tensors tensors = medusa_tensors(shape);
    write_head(files_, tensors, medusa_config(shape));
    const DraftHeadConfig config = parse(DraftMethod::kMedusa, std::move(token_map));
    EXPECT_EQ(config.model.num_layers, 0);  // no KV
    EXPECT_EQ(config.max_depth, shape.num_heads);
    load(config);
    std::map<int64_t, Vector> states;
    for (size_t level = 0; level < levels_.size(); ++level) {
      std::vector<Vector> xs;
      for (const Row& row : levels_[level]) {
        xs.push_back(level == 0 ? feature(row.feature_slot) : states.at(row.feature_slot));
      }
      const std::vector<float> logits = run(levels_[level], static_cast<int>(level));
      for (size_t row = 0; row < xs.size(); ++row) {
        const int head = static_cast<int>(level);
        const Tensor& output = shape.output_rows > 0 ? tensors.at(shape.output(head))
                                                     : target_tensors_.at("lm_head.weight");
        const Vector all = multiply(output, medusa_hidden(tensors, shape, head, xs[row]));
        Vector expected;
        for (const int id : rows) expected.push_back(all[id]);
        expect_logits(logits, row, rows.empty() ? all : expected);
        states[levels_[level][row].state_slot] = xs[row];
      }
    }
  }

  void expect_vocabulary(const std::vector<int>& token_ids) {
    const DraftVocabulary vocabulary = head_->draft_vocabulary();
    EXPECT_EQ(vocabulary.target_vocab_size, kVocab);
    EXPECT_EQ(std::vector<int>(vocabulary.token_ids, vocabulary.token_ids + token_ids.size()),
              token_ids);
  }
};

TEST_F(MedusaTest, LogitsOfEveryHeadEqualTheFormula) {
  for (const int num_layers : {1, 2}) {
    for (const bool has_bias : {false, true}) {
      expect_the_formula({.num_layers = num_layers, .has_bias = has_bias});
      expect_the_formula({.num_layers = num_layers, .has_bias = has_bias, .has_vllm_names = false});
      expect_the_formula({.num_layers = num_layers,
                          .has_bias = has_bias,
                          .has_vllm_names = false,
                          .prefix = "medusa_heads."});
    }
  }
  EXPECT_EQ(head_->draft_vocabulary().token_ids, nullptr);
}

TEST_F(MedusaTest, HeadsMayShareAnOutputMatrix) {
  expect_the_formula({.shares_output = true});
  expect_the_formula({.has_bias = true, .has_vllm_names = false, .output_rows = 0});
}

TEST_F(MedusaTest, AMapChoosesTheTokensThatAreScored) {
  const std::vector<int> map = {30, 2, 17, 0, 36};
  expect_the_formula({.output_rows = 5, .token_map = map});
  expect_vocabulary(map);
  expect_the_formula({.output_rows = kVocab, .token_map = map}, map);
  expect_vocabulary(map);
  expect_the_formula({.output_rows = 0, .token_map = map}, map);
  expect_vocabulary(map);
  // The option is for heads without output weights of their own.
  expect_the_formula({.output_rows = 0}, map, {map.begin(), map.end()});
  expect_vocabulary(map);
  write_head(files_, medusa_tensors({}), medusa_config({}));
  EXPECT_THROW(parse(DraftMethod::kMedusa, {1, 2}), InvalidArgument);
}

TEST_F(MedusaTest, ARowAloneEqualsTheRowInABatch) {
  const MedusaShape shape = {.num_layers = 2, .has_bias = true};
  write_head(files_, medusa_tensors(shape), medusa_config(shape));
  expect_rows_alone_to_equal_rows_in_a_batch(parse(DraftMethod::kMedusa));
}

TEST_F(MedusaTest, FilesOfAnotherTargetAreRefused) {
  const auto refused = [&](const MedusaShape& shape, const std::string& from,
                           const std::string& to) {
    std::string config = medusa_config(shape);
    if (!from.empty()) config.replace(config.find(from), from.size(), to);
    write_head(files_, medusa_tensors(shape), config);
    return checkpoint_error_of([&] { parse(DraftMethod::kMedusa); });
  };
  EXPECT_TRUE(says(refused({}, R"("hidden_size":24)", R"("hidden_size":32)"),
                   "hidden_size: 32, but the target's rows have 24 elements"));
  EXPECT_TRUE(says(refused({}, R"("vocab_size":37)", R"("vocab_size":38)"), "vocab_size: 38"));
  const CheckpointError heads = refused({}, R"("num_heads":3)", R"("num_heads":4)");
  EXPECT_EQ(heads.tensor(), "blocks.3.layers.0.weight");
  EXPECT_TRUE(says(heads, "num_heads"));
  EXPECT_TRUE(says(refused({}, R"("num_hidden_layers":1)", R"("num_hidden_layers":2)"),
                   "num_hidden_layers: 2"));
  EXPECT_EQ(refused({}, R"("num_heads":3)", R"("truncated_vocab_size":5,"num_heads":3)").tensor(),
            "token_map");
  EXPECT_EQ(refused({.output_rows = 5, .token_map = {1, 2, 3, 4, 37}}, "", "").tensor(),
            "token_map");
  EXPECT_EQ(refused({.output_rows = 5, .token_map = {1, 2, 3, 4, 2}}, "", "").tensor(),
            "token_map");
  EXPECT_EQ(refused({.output_rows = 6}, "", "").tensor(), "lm_heads.0.weight");
}

TEST_F(MedusaTest, AMissingTensorIsNamed) {
  const MedusaShape shape = {.has_bias = true};
  for (const std::string name : {"blocks.1.layers.0.bias", "lm_heads.1.weight"}) {
    Tensors tensors = medusa_tensors(shape);
    tensors.erase(name);
    write_head(files_, tensors, medusa_config(shape));
    EXPECT_EQ(checkpoint_error_of([&] { parse(DraftMethod::kMedusa); }).tensor(), name);
  }
  write_head(files_, {}, medusa_config(shape));
  EXPECT_TRUE(says(checkpoint_error_of([&] { parse(DraftMethod::kMedusa); }), "no heads"));
}

TEST_F(MedusaTest, FewerHeadsMayBeUsedThanThereAre) {
  MedusaShape shape;
  const Tensors tensors = medusa_tensors(shape);
  shape.num_heads = 2;
  write_head(files_, tensors, medusa_config(shape));
  EXPECT_EQ(parse(DraftMethod::kMedusa).max_depth, 2);
}

// ---- MTP layers

class MtpTest : public ::testing::Test {
 protected:
  using Shapes = std::map<std::string, std::vector<int64_t>>;

  MtpTest() { write_config(testing::recurrent_models::kGatedDelta, files_); }

  DraftHeadConfig parse(const Shapes& shapes) {
    testing::SafetensorsWriter writer;
    for (const auto& [name, shape] : shapes) {
      const int64_t count =
          std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      writer.add(name, shape, std::vector<float>(static_cast<size_t>(count)));
    }
    files_.write("model.safetensors", writer.bytes());
    const ModelConfig target = load_model_config(files_.path());
    DrafterConfig drafter;
    drafter.method = DraftMethod::kMtp;
    return load_draft_head_config(drafter, {.config = target, .directory = files_.path()});
  }

  CheckpointError error_of(const Shapes& shapes) {
    return checkpoint_error_of([&] { parse(shapes); });
  }

  // The layer of a target with rows of 64 elements, and a tensor of the target's own.
  const Shapes layer_ = {{"model.norm.weight", {64}},
                         {"mtp.fc.weight", {64, 128}},
                         {"mtp.pre_fc_norm_embedding.weight", {64}},
                         {"mtp.pre_fc_norm_hidden.weight", {64}},
                         {"mtp.norm.weight", {64}},
                         {"mtp.layers.0.input_layernorm.weight", {64}},
                         {"mtp.layers.0.post_attention_layernorm.weight", {64}},
                         {"mtp.layers.0.self_attn.q_proj.weight", {128, 64}},
                         {"mtp.layers.0.self_attn.k_proj.weight", {32, 64}},
                         {"mtp.layers.0.self_attn.v_proj.weight", {32, 64}},
                         {"mtp.layers.0.self_attn.o_proj.weight", {64, 64}},
                         {"mtp.layers.0.self_attn.q_norm.weight", {16}},
                         {"mtp.layers.0.self_attn.k_norm.weight", {16}},
                         {"mtp.layers.0.mlp.gate_proj.weight", {96, 64}},
                         {"mtp.layers.0.mlp.up_proj.weight", {96, 64}},
                         {"mtp.layers.0.mlp.down_proj.weight", {64, 96}}};
  TempDirectory files_;
};

TEST_F(MtpTest, ItIsALayerOfFullAttentionOverTheFinalState) {
  const DraftHeadConfig config = parse(layer_);
  ASSERT_EQ(config.model.layers.size(), 1u);
  EXPECT_FALSE(config.model.has_states());
  EXPECT_EQ(config.model.first_position, 1);
  EXPECT_EQ(config.model.vocab_size, testing::recurrent_models::kVocab);
  EXPECT_TRUE(config.taps.final_hidden);
  EXPECT_TRUE(config.taps.layer_inputs.empty());
  EXPECT_EQ(config.max_depth, 0);
}

TEST_F(MtpTest, ACheckpointWithoutItIsToldWhatWasLookedFor) {
  const CheckpointError error = error_of({{"model.norm.weight", {64}}});
  EXPECT_EQ(error.file(), files_.file("model.safetensors"));
  EXPECT_EQ(error.tensor(), "mtp.fc.weight");
  EXPECT_TRUE(says(error,
                   "the method 'mtp' drafts with mtp.fc, mtp.pre_fc_norm_embedding, "
                   "mtp.pre_fc_norm_hidden, mtp.layers.0.*, mtp.norm, which"));
}

TEST_F(MtpTest, EveryTensorIsNeeded) {
  for (const auto& [name, shape] : layer_) {
    if (!name.starts_with("mtp.")) continue;
    Shapes shapes = layer_;
    shapes.erase(name);
    EXPECT_EQ(error_of(shapes).tensor(), name);
    shapes[name] = {shape.front() + 1};
    EXPECT_TRUE(says(error_of(shapes), "expected shape")) << name;
  }
}

TEST_F(MtpTest, LayersOfOtherKindsAreRefused) {
  for (const std::string name :
       {"mtp.layers.0.linear_attn.out_proj.weight", "mtp.layers.1.input_layernorm.weight",
        "mtp.hc_head.weight", "language_model.mtp.layers.0.mixer.weight"}) {
    Shapes shapes = layer_;
    shapes[name] = {64};
    EXPECT_EQ(error_of(shapes).tensor(), name);
    EXPECT_TRUE(says(error_of(shapes), "the method 'mtp' knows no such tensor"));
  }
  Shapes with_router = layer_;
  with_router["mtp.layers.0.mlp.gate.weight"] = {4, 64};
  EXPECT_TRUE(says(error_of(with_router), "a layer with experts, and the target has none"));
}

TEST_F(HeadsTest, TargetsWithoutAnMtpLayerAreRefusedByName) {
  files_.write("config.json", "{}");
  EXPECT_TRUE(testing::has_text(
      testing::error_of<InvalidArgument>([&] { parse(DraftMethod::kMtp); }).what(),
      "'mtp' is not implemented for LlamaForCausalLM"));
}

}  // namespace
}  // namespace specdec
