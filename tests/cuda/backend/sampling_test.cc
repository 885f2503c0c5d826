// The device's sampler against the CPU's, row by row.
#include "cuda/kernels/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "testing/captured.h"
#include "testing/chi_square.h"
#include "testing/device_kinds.h"
#include "testing/draft_vocabulary.h"
#include "testing/oracle/sampler.h"
#include "testing/sampler_rows.h"
#include "testing/values.h"

namespace specdec::cuda {
namespace {

using specdec::testing::chi_square_test;
using specdec::testing::describe;
using specdec::testing::expect_draws_over_all_tokens;
using specdec::testing::random_values;
using specdec::testing::RandomRow;
using specdec::testing::SamplerHarness;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// A correct sampler has a p-value below kAccept once in ten thousand seeds; a wrong one must be
// below kRefuse.
constexpr double kAccept = 1e-4;
constexpr double kRefuse = 1e-12;

// The device's sampler, to which logits are copied.
class DeviceSampler final : public specdec::testing::RowSampler {
 public:
  explicit DeviceSampler(testing::DeviceKind kind) : world_(kind, DType::kBF16) {}

  CudaBackend& backend() { return *world_.backend; }
  void run(const SampleArgs& args) override {
    const size_t count = args.rows.size() * args.vocab_size;
    Buffer logits = world_.upload(std::vector<float>(args.logits, args.logits + count));
    SampleArgs on_device = args;
    on_device.logits = logits.as<float>();
    Buffer token_ids;
    if (args.token_ids != nullptr) {
      token_ids = world_.upload(std::vector(args.token_ids, args.token_ids + args.vocab_size));
      on_device.token_ids = token_ids.as<int32_t>();
    }
    world_.backend->sample(on_device);
  }

 private:
  testing::BackendWorld world_;
};

class Sampling : public ::testing::TestWithParam<testing::DeviceKind> {
 protected:
  DeviceSampler device_{GetParam()};
  SamplerHarness cpu_;
};

TEST_P(Sampling, AHeadOfSomeTokensDrawsAsOneThatGivesTheOthersNothing) {
  std::mt19937 random(29);
  for (const auto& [num_columns, size] : {std::pair(5, 70), {300, 9000}}) {
    expect_draws_over_all_tokens(device_, num_columns, size, LogprobsMode::kProcessed, random);
  }
}

// Random rows over one vocabulary, with the memory that they point to.
struct RandomRows {
  RandomRows(int vocab_size, int num_rows, std::mt19937& random) {
    const auto coin = [&] { return random() % 2 == 0; };
    distributions.resize(num_rows);
    for (int i = 0; i < num_rows; ++i) {
      auto& row = *storage.emplace_back(std::make_unique<RandomRow>(vocab_size, random));
      SampleRow params = row.params;
      params.want_logprobs = coin();
      params.num_logprobs = std::array{-1, 0, 1, 5, 20}[random() % 5];
      params.num_candidates = std::array{0, 0, 1, 2, 7}[random() % 5];
      params.noise_stream = coin() ? 0 : random();
      params.position += static_cast<int64_t>(random() % 4) << 31;
      params.seed |= static_cast<uint64_t>(random()) << 32;
      if (random() % 4 == 0) params.temperature = 0.0f;
      if (random() % 4 == 0) params.forced_token = static_cast<int32_t>(random() % vocab_size);
      if (random() % 4 == 0) {
        auto& allowed = *lists.emplace_back(std::make_unique<std::vector<int32_t>>());
        for (int t = 0; t < vocab_size; ++t) {
          if (random() % 3 == 0) allowed.push_back(t);
        }
        params.allowed_token_ids = allowed;
      }
      if (coin()) distributions[i].resize(vocab_size);
      params.distribution = distributions[i].empty() ? nullptr : distributions[i].data();
      rows.push_back(params);
      std::vector<float> some = random_values(vocab_size, random(), i % 4 == 3 ? 0.3f : 3.0f);
      if (i % 3 == 0) {  // ties
        for (float& x : some) x = std::round(x * 8) / 8;
      }
      if (i % 5 == 0) {
        for (float& x : some) {
          if (random() % 8 == 0) x = random() % 2 == 0 ? -kInf : kNan;
        }
      }
      logits.insert(logits.end(), some.begin(), some.end());
    }
  }

  std::vector<std::unique_ptr<RandomRow>> storage;
  std::vector<std::unique_ptr<std::vector<int32_t>>> lists;
  std::vector<std::vector<float>> distributions;
  std::vector<SampleRow> rows;
  std::vector<float> logits;
};

bool close(double a, double b, double tolerance) {
  return a == b || std::abs(a - b) <= tolerance * (1.0 + std::abs(b));
}

// Whether rounding decides where top_p ends: then either set is right, and the row is skipped.
bool is_ambiguous(const RandomRows& rows, size_t i, int vocab_size) {
  SampleRow less = rows.rows[i], more = rows.rows[i];
  if (more.top_p >= 1.0f) return false;
  less.top_p -= 2e-6f;
  more.top_p += 2e-6f;
  const std::span<const float> logits(&rows.logits[i * vocab_size], vocab_size);
  return reference::distribution(logits, less).logits !=
         reference::distribution(logits, more).logits;
}

void expect_same(const SampleResult& device, const SampleResult& cpu, const std::string& where) {
  EXPECT_EQ(device.token_id, cpu.token_id) << where;
  ASSERT_EQ(device.candidates.size(), cpu.candidates.size()) << where;
  for (size_t i = 0; i < cpu.candidates.size(); ++i) {
    EXPECT_EQ(device.candidates[i].token_id, cpu.candidates[i].token_id) << where << " " << i;
    EXPECT_TRUE(close(device.candidates[i].probability, cpu.candidates[i].probability, 2e-6));
  }
  ASSERT_EQ(device.logprobs.size(), cpu.logprobs.size()) << where;
  for (size_t i = 0; i < cpu.logprobs.size(); ++i) {
    EXPECT_EQ(device.logprobs[i].token_id, cpu.logprobs[i].token_id) << where << " " << i;
    EXPECT_EQ(device.logprobs[i].rank, cpu.logprobs[i].rank) << where << " " << i;
    EXPECT_TRUE(close(device.logprobs[i].logprob, cpu.logprobs[i].logprob, 1e-6))
        << where << " " << i << ": " << device.logprobs[i].logprob << " "
        << cpu.logprobs[i].logprob;
  }
}

TEST_P(Sampling, RandomRowsGiveWhatTheCpuGives) {
  std::mt19937 random(1);
  int num_rows = 0, num_ambiguous = 0;
  for (const auto& [vocab_size, count] :
       {std::pair{1, 6}, {2, 8}, {17, 16}, {65, 12}, {1000, 12}, {4099, 8}, {9001, 6}}) {
    for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
      RandomRows rows(vocab_size, count, random);
      const auto device = device_.sample(rows.logits, rows.rows, mode);
      const std::vector<std::vector<float>> distributions = rows.distributions;
      const auto cpu = cpu_.sample(rows.logits, rows.rows, mode);
      for (int i = 0; i < count; ++i) {
        ++num_rows;
        if (is_ambiguous(rows, i, vocab_size)) {
          ++num_ambiguous;
          continue;
        }
        expect_same(device[i], cpu[i],
                    "vocabulary " + std::to_string(vocab_size) + " row " + std::to_string(i));
        for (size_t t = 0; t < distributions[i].size(); ++t) {
          ASSERT_TRUE(close(distributions[i][t], rows.distributions[i][t], 2e-6))
              << "vocabulary " << vocab_size << " row " << i << " token " << t << ": "
              << distributions[i][t] << " " << rows.distributions[i][t];
        }
      }
    }
  }
  EXPECT_LE(num_ambiguous, num_rows / 20);
}

// Logits are at most divided by the temperature, so results must be equal.
TEST_P(Sampling, LogitsModesReportTheLogitsTheCpuReports) {
  std::mt19937 random(7);
  for (const auto& [vocab_size, count] : {std::pair{17, 10}, {1000, 8}, {4099, 4}}) {
    for (const LogprobsMode mode : {LogprobsMode::kRawLogits, LogprobsMode::kProcessedLogits}) {
      RandomRows rows(vocab_size, count, random);
      for (SampleRow& row : rows.rows) {
        row.want_logprobs = true;
        row.top_p = 1.0f;
      }
      const auto device = device_.sample(rows.logits, rows.rows, mode);
      const auto cpu = cpu_.sample(rows.logits, rows.rows, mode);
      for (int i = 0; i < count; ++i) {
        ASSERT_EQ(device[i].logprobs.size(), cpu[i].logprobs.size());
        for (size_t e = 0; e < cpu[i].logprobs.size(); ++e) {
          EXPECT_EQ(device[i].logprobs[e].token_id, cpu[i].logprobs[e].token_id) << i << " " << e;
          EXPECT_EQ(device[i].logprobs[e].rank, cpu[i].logprobs[e].rank) << i << " " << e;
          EXPECT_EQ(device[i].logprobs[e].logprob, cpu[i].logprobs[e].logprob) << i << " " << e;
        }
      }
    }
  }
}

TEST_P(Sampling, GivenLogitsAreProcessedInsteadOfTheRows) {
  std::mt19937 random(8);
  for (const auto& [vocab_size, count] : {std::pair{17, 12}, {4099, 6}}) {
    for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
      RandomRows rows(vocab_size, count, random);
      const auto given = random_values(vocab_size * count, random(), 3.0f);
      for (int i = 0; i < count; ++i) {
        rows.rows[i].top_p = 1.0f;
        if (i % 3 != 0) rows.rows[i].given_logits = given.data() + int64_t{i} * vocab_size;
      }
      const auto device = device_.sample(rows.logits, rows.rows, mode);
      const auto cpu = cpu_.sample(rows.logits, rows.rows, mode);
      for (int i = 0; i < count; ++i) {
        expect_same(device[i], cpu[i],
                    "vocabulary " + std::to_string(vocab_size) + " row " + std::to_string(i));
      }
    }
  }
}

TEST_P(Sampling, ARowDoesNotDependOnItsNeighbours) {
  std::mt19937 random(2);
  RandomRows rows(777, 9, random);
  const auto together = device_.sample(rows.logits, rows.rows, LogprobsMode::kProcessed);
  const std::vector<std::vector<float>> distributions = rows.distributions;
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    const std::vector<float> logits(rows.logits.begin() + i * 777,
                                    rows.logits.begin() + (i + 1) * 777);
    const auto alone = device_.sample_one(logits, rows.rows[i], LogprobsMode::kProcessed);
    EXPECT_EQ(describe(alone), describe(together[i])) << i;
    EXPECT_EQ(rows.distributions[i], distributions[i]) << i;
  }
}

TEST_P(Sampling, TruncationsWithMoreTokensThanAList) {
  // Equal logits: a flat row of far more tokens than the list of candidates holds.
  const int vocab_size = 5200;
  std::vector<float> logits(vocab_size, 0.5f);
  const auto flat = random_values(vocab_size, 3, 0.2f);
  logits.insert(logits.end(), flat.begin(), flat.end());
  for (const SampleRow& row :
       {SampleRow{.top_p = 0.25f, .seed = 4, .num_candidates = 3},
        SampleRow{.top_k = 4500, .top_p = 0.9f, .seed = 5, .num_candidates = 600},
        SampleRow{.top_k = 5000, .seed = 6, .num_logprobs = 9, .want_logprobs = true}}) {
    SampleRow params = row;
    params.num_candidates = std::min(row.num_candidates, kMaxListed);
    const std::vector<SampleRow> rows(2, params);
    const auto device = device_.sample(logits, rows, LogprobsMode::kProcessed);
    const auto cpu = cpu_.sample(logits, rows, LogprobsMode::kProcessed);
    for (int i = 0; i < 2; ++i) expect_same(device[i], cpu[i], std::to_string(i));
  }
}

TEST_P(Sampling, RowsWithoutAnythingToChooseFrom) {
  const std::vector<float> logits = {-kInf, kNan, -kInf, -kInf, kNan, -kInf, -kInf, -kInf, -kInf};
  std::vector<int32_t> all(9);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int32_t> banned = {1, 0, 3}, allowed = {3, 5, 8}, single = {3};
  std::vector<float> normal = random_values(9, 4);
  for (const std::vector<float>& row_logits : {logits, normal}) {
    for (const float temperature : {0.0f, 1.0f}) {
      for (const float top_p : {1.0f, 0.5f}) {
        for (const auto& [ban, allow] :
             {std::pair<std::span<const int32_t>, std::span<const int32_t>>{{}, {}},
              {banned, {}},
              {banned, allowed},
              {all, {}},
              {all, allowed},
              {banned, single}}) {
          std::vector<float> distribution(9), expected(9);
          SampleRow row = {.temperature = temperature,
                           .top_p = top_p,
                           .allowed_token_ids = allow,
                           .banned_token_ids = ban,
                           .seed = 1,
                           .num_candidates = 2,
                           .distribution = distribution.data(),
                           .num_logprobs = 4,
                           .want_logprobs = true};
          for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
            row.distribution = distribution.data();
            const auto device = device_.sample_one(row_logits, row, mode);
            row.distribution = expected.data();
            expect_same(device, cpu_.sample_one(row_logits, row, mode), "degenerate");
            for (int i = 0; i < 9; ++i) EXPECT_NEAR(distribution[i], expected[i], 1e-6);
          }
        }
      }
    }
  }
}

TEST_P(Sampling, GreedyTakesTheFirstMaximumWhereverItStands) {
  for (const int vocab_size : {1, 2, 15, 64, 65, 4096, 4097, 10007}) {
    std::vector<SampleRow> rows;
    std::vector<float> logits;
    std::vector<int> tokens;
    for (const int token : {0, 1, vocab_size / 2, vocab_size - 2, vocab_size - 1}) {
      if (token < 0 || token >= vocab_size) continue;
      std::vector<float> row = random_values(vocab_size, 3);
      for (int i = token; i < vocab_size; i += 40) row[i] = 9.0f;
      logits.insert(logits.end(), row.begin(), row.end());
      rows.push_back({.temperature = 0});
      tokens.push_back(token);
    }
    const auto results = device_.sample(logits, rows);
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(results[i].token_id, tokens[i]);
  }
}

TEST_P(Sampling, InfinitiesAndHugeLogitsAreNumbers) {
  const std::vector<float> logits = {3e38f, kInf, -3e38f, 1.0f, kNan, -kInf};
  for (const float temperature : {0.0f, 1e-4f, 1.0f, 100.0f}) {
    const SampleRow row = {.temperature = temperature,
                           .seed = 3,
                           .num_candidates = 2,
                           .num_logprobs = 6,
                           .want_logprobs = true};
    for (const LogprobsMode mode : {LogprobsMode::kRaw, LogprobsMode::kProcessed}) {
      expect_same(device_.sample_one(logits, row, mode), cpu_.sample_one(logits, row, mode),
                  "huge");
    }
  }
}

class Draws : public Sampling {
 protected:
  static constexpr int kNumDraws = 400;

  // The p-value of draws from the rows row_of(i).
  template <class RowOf>
  double p_value(const std::vector<float>& logits, const SampleRow& params, const RowOf& row_of) {
    std::vector<SampleRow> rows;
    std::vector<float> all;
    for (int i = 0; i < kNumDraws; ++i) {
      rows.push_back(row_of(params, i));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    std::vector<int64_t> counts(logits.size());
    for (const SampleResult& result : device_.sample(all, rows)) ++counts[result.token_id];
    const auto exact = reference::distribution(logits, params);
    return chi_square_test(counts, exact.probs).p_value;
  }

  static SampleRow next_position(SampleRow row, int i) {
    row.position = i;
    return row;
  }
};

TEST_P(Draws, FollowTheDistribution) {
  const auto logits = random_values(11, 8, 1.5f);
  EXPECT_GT(p_value(logits, {.temperature = 0.8f, .seed = 5}, next_position), kAccept);
  EXPECT_GT(p_value(logits, {.top_k = 7, .top_p = 0.9f, .seed = 6}, next_position), kAccept);
}

TEST_P(Draws, WithNoiseReusedAreRefused) {
  const auto logits = random_values(11, 8, 1.5f);
  const auto reuse = [](SampleRow row, int i) {
    row.position = i / 40;
    return row;
  };
  EXPECT_LT(p_value(logits, {.seed = 5}, reuse), kRefuse);
}

// Rows as a device step builds them: with a table of counts, and the drafts before each row.
class DeviceRows : public testing::CudaDeviceTest {
 protected:
  static constexpr int kVocab = 300, kRows = 12, kTop = 6;

  struct Row {
    SampleRow params;
    std::vector<int32_t> table, path;
    std::vector<TokenCount> counts;  // both together
  };

  void make_rows() {
    std::mt19937 random(21);
    for (int i = 0; i < kRows; ++i) {
      Row& row = rows_.emplace_back();
      row.params = {.temperature = i % 3 == 0 ? 0.0f : 0.7f,
                    .top_p = i % 2 == 0 ? 1.0f : 0.8f,
                    .repetition_penalty = 1.3f,
                    .presence_penalty = 0.2f,
                    .frequency_penalty = 0.4f,
                    .seed = random(),
                    .position = 50 + i,
                    .num_logprobs = kTop,
                    .want_logprobs = true};
      row.table.resize(kVocab);
      for (int j = 0; j < 40; ++j) row.table[random() % kVocab] = static_cast<int>(random() % 6);
      row.path.resize(random() % 6);
      for (int32_t& token : row.path) token = static_cast<int32_t>(random() % 8);
      std::vector<int32_t> counted = row.table;
      for (const int32_t token : row.path) counted[token] += 2;
      for (int token = 0; token < kVocab; ++token) {
        if (counted[token] != 0) row.counts.push_back({token, counted[token] / 2});
      }
    }
  }

  SampleRow host_row(const Row& row) const {
    SampleRow params = row.params;
    params.counts = row.counts;
    params.banned_token_ids = stops_;
    return params;
  }

  DeviceSampleRow device_row(const Row& row) {
    DeviceSampleRow params;
    params.temperature = row.params.temperature;
    params.top_p = row.params.top_p;
    params.repetition_penalty = row.params.repetition_penalty;
    params.presence_penalty = row.params.presence_penalty;
    params.frequency_penalty = row.params.frequency_penalty;
    params.seed = row.params.seed;
    params.position = row.params.position;
    params.want_logprobs = 1;
    params.num_logprobs = kTop;
    params.early_banned = {0, static_cast<int32_t>(stops_.size())};
    params.count_table = uploads_.emplace_back(upload(row.table)).as<int32_t>();
    if (row.path.empty()) return params;
    params.path = uploads_.emplace_back(upload(row.path)).as<int32_t>();
    params.num_path_tokens = static_cast<int32_t>(row.path.size());
    return params;
  }

  std::vector<Row> rows_;
  std::vector<int32_t> stops_ = {7, 3, 2};
  std::vector<Buffer> uploads_;
  SamplerHarness cpu_;
};

TEST_P(DeviceRows, AreSampledInAGraphAsTheHostWouldSampleThem) {
  make_rows();
  const int num_padded = kRows + 3;  // as a bucket has
  std::vector<float> logits = random_values(num_padded * kVocab, 22);
  std::vector<DeviceSampleRow> built;
  for (int row = 0; row < kRows; ++row) {
    for (int token = 0; token < 8; ++token) logits[row * kVocab + token] += 4.0f;
    built.push_back(device_row(rows_[row]));
  }
  built.resize(num_padded);
  Buffer rows = upload(built), stops = upload(stops_), device_logits = upload(logits);
  Buffer workspace = allocate<char>(sample_workspace_bytes(num_padded, kVocab));
  Buffer sampled = allocate<int32_t>(num_padded), num_logprobs = allocate<int32_t>(num_padded);
  Buffer logprobs = allocate<DeviceLogprob>(num_padded * (kTop + 1));
  const auto graph = testing::captured(device(), [&](Stream& stream) {
    kernels().sampling.sample(
        stream, {.rows = rows.as<DeviceSampleRow>(),
                 .logits = device_logits.as<float>(),
                 .processed = device_logits.as<float>(),
                 .token_lists = stops.as<int32_t>(),
                 .counts = nullptr,
                 .biases = nullptr,
                 .workspace = sample_workspace_at(workspace.data(), num_padded, kVocab),
                 .outputs = {.token_ids = sampled.as<int32_t>(),
                             .num_candidates = nullptr,
                             .candidates = nullptr,
                             .max_candidates = 0,
                             .num_logprobs = num_logprobs.as<int32_t>(),
                             .logprobs = logprobs.as<DeviceLogprob>(),
                             .max_logprobs = kTop},
                 .num_rows = num_padded,
                 .vocab_size = kVocab,
                 .raw_logprobs = false,
                 .logprobs_hold_logits = false,
                 .any_edits = true,
                 .any_vectors = false});
  });
  stream().launch(*graph);
  const auto found = download<int32_t>(sampled);
  const auto entries = download<DeviceLogprob>(logprobs);
  for (int row = 0; row < kRows; ++row) {
    const std::vector<float> here(logits.begin() + row * kVocab,
                                  logits.begin() + (row + 1) * kVocab);
    SampleResult device = {.token_id = found[row], .candidates = {}, .logprobs = {}, .error = {}};
    for (int i = 0; i <= kTop; ++i) {
      const DeviceLogprob& entry = entries[row * (kTop + 1) + i];
      device.logprobs.push_back({entry.token_id, entry.logprob, entry.rank});
    }
    expect_same(device, cpu_.sample_one(here, host_row(rows_[row]), LogprobsMode::kProcessed),
                "row " + std::to_string(row));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Sampling, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);
INSTANTIATE_TEST_SUITE_P(Devices, DeviceRows, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);
INSTANTIATE_TEST_SUITE_P(Devices, Draws, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
