// The parts of a checkpoint that a rank reads, and their order.
#include "model/tensor_loader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/thread_communicator.h"
#include "model/gathered_rows.h"
#include "model/parts.h"
#include "testing/checkpoint_files.h"
#include "testing/text.h"

namespace specdec {
namespace {

using testing::checkpoint_error_of;
using testing::has_text;
using testing::SafetensorsWriter;
using testing::TempDirectory;

// A Llama of one layer that 1, 2 and 4 ranks share equally, as files may store it.
class StoredLlama {
 public:
  static constexpr int64_t kVocab = 96, kHidden = 64, kInner = 512, kHeads = 32, kKvHeads = 8,
                           kHeadDim = 16;

  StoredLlama(const TempDirectory& directory, const std::string& dtype, bool has_lm_head)
      : dtype_(dtype) {
    add_matrix("model.embed_tokens.weight", kVocab, kHidden, "F32", has_lm_head);
    if (has_lm_head) add_matrix("lm_head.weight", kVocab, kHidden, "F32", false);
    add_vector("model.norm.weight");
    const std::string layer = "model.layers.0.";
    add_vector(layer + "input_layernorm.weight");
    add_vector(layer + "post_attention_layernorm.weight");
    for (const auto& [name, rows] : {std::pair{"self_attn.q_proj", kHeads * kHeadDim},
                                     {"self_attn.k_proj", kKvHeads * kHeadDim},
                                     {"self_attn.v_proj", kKvHeads * kHeadDim},
                                     {"mlp.gate_proj", kInner},
                                     {"mlp.up_proj", kInner}}) {
      add_matrix(layer + name + ".weight", rows, kHidden, dtype_, false);
    }
    add_matrix(layer + "self_attn.o_proj.weight", kHidden, kHeads * kHeadDim, dtype_, true);
    add_matrix(layer + "mlp.down_proj.weight", kHidden, kInner, dtype_, true);
    const std::string file = writer_.bytes();
    header_bytes_ = file.size() - shared_bytes_ - everybodys_bytes_;
    directory.write("model.safetensors", file);
  }

  static ModelConfig config(bool has_lm_head) {
    ModelConfig config;
    config.architecture = "LlamaForCausalLM";
    config.vocab_size = kVocab;
    config.hidden_size = kHidden;
    config.num_layers = 1;
    config.tie_word_embeddings = !has_lm_head;
    config.layers = {LayerSpec{.heads = {kHeads, kKvHeads, kHeadDim}, .inner_size = kInner}};
    return config;
  }

  size_t bytes_of_rank(int size) const {
    return header_bytes_ + everybodys_bytes_ + shared_bytes_ / size;
  }

 private:
  void add_vector(const std::string& name) {
    writer_.add(name, {kHidden}, std::vector<float>(kHidden, 1.0f));
    everybodys_bytes_ += kHidden * sizeof(float);
  }

  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
           const std::string& bytes, bool is_everybodys) {
    writer_.add(name, dtype, shape, bytes);
    (is_everybodys ? everybodys_bytes_ : shared_bytes_) += bytes.size();
  }

  void add_matrix(const std::string& name, int64_t rows, int64_t columns, const std::string& dtype,
                  bool is_everybodys) {
    const int64_t groups = columns / kQuantGroup;
    const auto add_groups = [&](const char* suffix) {
      add(name + suffix, "F16", {rows, groups}, std::string(rows * groups * 2, '\x2c'),
          is_everybodys);
    };
    if (dtype == "F32") {
      add(name, dtype, {rows, columns}, std::string(rows * columns * 4, '\x3c'), is_everybodys);
    } else if (dtype == "U8") {
      add(name, dtype, {rows, columns / 2}, std::string(rows * columns / 2, '\x71'), is_everybodys);
      add_groups(".scales");
      add_groups(".mins");
    } else {
      add(name, dtype, {rows, columns}, std::string(rows * columns, '\x31'), is_everybodys);
      if (dtype == "I8") add_groups(".scales");
      // Block scales are few, so that every rank reads them all.
      const int64_t blocks = rows / 32 * (columns / 32);
      if (dtype == "F8_E4M3") {
        add(name + "_scale_inv", "F32", {rows / 32, columns / 32}, std::string(blocks * 4, '\x3c'),
            true);
      }
    }
  }

  SafetensorsWriter writer_;
  std::string dtype_;
  size_t header_bytes_ = 0;
  size_t everybodys_bytes_ = 0;
  size_t shared_bytes_ = 0;
};

TEST(TensorLoader, ARankReadsItsRowsOfWhatIsCutByOutputs) {
  const auto backend = make_backend({.device = "cpu", .num_threads = 1, .act_dtype = DType::kF32});
  for (const std::string dtype : {"F32", "I8", "U8", "F8_E4M3"}) {
    for (const bool has_lm_head : {false, true}) {
      const TempDirectory directory;
      const StoredLlama model(directory, dtype, has_lm_head);
      ModelConfig config = StoredLlama::config(has_lm_head);
      if (dtype == "F8_E4M3") config.scheme.block = {.rows = 32, .cols = 32};
      int64_t whole_parameters = 0;
      for (const int size : {1, 2, 4}) {
        const auto ranks = make_thread_communicators(size, std::chrono::seconds(1));
        for (const auto& rank : ranks) {
          const LoadedParts loaded = load_parts(config, directory.path(), Quantization::kAuto,
                                                *backend, {}, {.ranks = rank.get()});
          EXPECT_EQ(loaded.bytes_read, model.bytes_of_rank(size)) << dtype << " " << size;
          if (size == 1) whole_parameters = loaded.num_parameters;
          EXPECT_EQ(loaded.num_parameters, whole_parameters);
        }
      }
    }
  }
}

class TensorLoaderTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 12, kColumns = 4;

  TensorLoaderTest() {
    SafetensorsWriter writer;
    std::vector<float> values(kRows * kColumns);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    writer.add("w", {kRows, kColumns}, values);
    writer.add("stack", {3, 4, kColumns}, values);
    writer.add("f8", "F8_E4M3", {kRows, kColumns}, std::string(kRows * kColumns, '\x38'));
    writer.add("f8_scale_inv", {3, 1}, {1, 2, 3});
    directory_.write("model.safetensors", writer.bytes());
  }

  TensorLoader loader() {
    return TensorLoader(config_, directory_.path(), Quantization::kAuto, *backend_);
  }

  // The row of "w" or "stack" that a piece begins with.
  static float first_row(const WeightView& piece) {
    return *static_cast<const float*>(piece.values.data) / kColumns;
  }

  TempDirectory directory_;
  ModelConfig config_ = [] {
    ModelConfig config = StoredLlama::config(true);
    config.scheme.block = {.rows = 4, .cols = 4};
    return config;
  }();
  std::unique_ptr<Backend> backend_ =
      make_backend({.device = "cpu", .num_threads = 1, .act_dtype = DType::kF32});
};

void expect_row(const WeightView& a, int64_t row_of_a, const WeightView& b, int64_t row_of_b) {
  ASSERT_EQ(a.in_features(), b.in_features());
  std::vector<float> expected(a.in_features()), found(b.in_features());
  if (a.is_quantized()) {
    dequantize_row(a, row_of_a, expected.data());
    dequantize_row(b, row_of_b, found.data());
  } else {
    const size_t count = expected.size();
    std::copy_n(static_cast<const float*>(a.values.data) + row_of_a * a.in_features(), count,
                expected.begin());
    std::copy_n(static_cast<const float*>(b.values.data) + row_of_b * b.in_features(), count,
                found.begin());
  }
  EXPECT_EQ(expected, found);
}
// `matrix` has the rows of `pieces` one after another.
void expect_rows_of(const std::vector<WeightView>& pieces, const WeightView& matrix) {
  int64_t next = 0;
  for (const WeightView& piece : pieces) {
    for (int64_t row = 0; row < piece.rows(); ++row) expect_row(piece, row, matrix, next++);
  }
  EXPECT_EQ(matrix.rows(), next);
}

TEST_F(TensorLoaderTest, PiecesComeInTheOrderAskedFor) {
  TensorLoader loader = this->loader();
  const std::vector<RowRange> order = {{9, 2}, {1, 3}, {4, 1}, {11, 1}, {1, 1}};
  const auto pieces = loader.read_rows({"w", kRows, order}, kColumns);
  ASSERT_EQ(pieces.size(), order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(pieces[i].rows(), order[i].count);
    EXPECT_EQ(first_row(pieces[i]), order[i].begin);
    const WeightView stacked = loader.read_stack("stack", {3, 4, kColumns}, order[i]);
    EXPECT_EQ(stacked.rows(), order[i].count);
    EXPECT_EQ(first_row(stacked), order[i].begin);
  }
}

TEST_F(TensorLoaderTest, GatheredRowsKeepTheirValues) {
  TensorLoader loader = this->loader();
  const std::vector<RowRange> order = {{9, 2}, {1, 3}, {4, 1}, {11, 1}, {8, 1}};
  for (const char* name : {"w", "f8"}) {
    const auto pieces = loader.read_rows({name, kRows, order}, kColumns);
    const GatheredRows gathered(pieces);
    expect_rows_of(pieces, gathered.view());
    const WeightView whole = loader.read_matrix(name, kRows, kColumns);
    expect_rows_of(every_row(whole, 1, 3), GatheredRows(every_row(whole, 1, 3)).view());
  }
}

TEST(GatheredRowsTest, KeepWhatBelongsToCodes) {
  constexpr int64_t kRows = 5, kInputs = 64, kGroups = 2;
  std::vector<uint8_t> codes(kRows * kInputs / 2), zeros(kRows * kGroups);
  std::vector<uint16_t> scales(kRows * kGroups), mins(kRows * kGroups);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37);
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = float_to_half(0.5f + static_cast<float>(i));
    mins[i] = float_to_half(-3.0f - static_cast<float>(i));
    zeros[i] = static_cast<uint8_t>(i % 16);
  }
  WeightView matrix = {
      .values = {.data = codes.data(), .dtype = DType::kU8, .shape = {kRows, kInputs / 2}},
      .scales = scales.data(),
      .group_size = 32};
  for (const bool has_mins : {true, false}) {
    matrix.mins = has_mins ? mins.data() : nullptr;
    matrix.zeros = has_mins ? nullptr : zeros.data();
    const auto rows = every_row(matrix, 1, 2);
    ASSERT_EQ(rows.size(), 2u);
    expect_row(matrix, 3, rows[1], 0);
    const GatheredRows gathered(rows);
    expect_rows_of(rows, gathered.view());
  }
}

TEST_F(TensorLoaderTest, PiecesOfEightBitFloatsHaveTheirBlocksScales) {
  TensorLoader loader = this->loader();
  const std::vector<RowRange> order = {{8, 4}, {5, 2}, {7, 1}, {4, 8}};
  const auto pieces = loader.read_rows({"f8", kRows, order}, kColumns);
  const std::vector<float> scales = {3, 2, 2, 2};
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(*pieces[i].block_scales, scales[i]);
    EXPECT_EQ(pieces[i].rows(), order[i].count);
  }
  EXPECT_TRUE(has_text(
      checkpoint_error_of([&] { loader.read_rows({"f8", kRows, {{6, 4}}}, kColumns); }).what(),
      "its rows from 6 on are used by themselves"));
}

}  // namespace
}  // namespace specdec
