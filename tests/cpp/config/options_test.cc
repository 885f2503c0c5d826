#include "specdec/options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>

#include "config/option_checks.h"
#include "specdec/config.h"
#include "specdec/sampling_params.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using testing::refused_field;

struct Anything {
  template <class Value>
  operator Value() const;  // NOLINT: for counting members only
};

// Members of an aggregate: the most values that it can be made of.
template <class Struct, class... Values>
constexpr size_t num_members() {
  if constexpr (requires { Struct{Values{}..., Anything{}}; }) {
    return num_members<Struct, Values..., Anything>();
  } else {
    return sizeof...(Values);
  }
}

template <class Table>
constexpr size_t num_options(const Table&) {
  return std::tuple_size_v<Table>;
}

TEST(Options, EveryMemberHasARow) {
  // Beside the tables: model, hf_overrides, tapped_layers, tap_final_hidden, speculative,
  // rank_group.
  static_assert(num_members<EngineConfig>() == num_options(kEngineOptions) + 6);
  // drafters, num_speculative_tokens_per_batch_size, speculative_token_tree.
  static_assert(num_members<SpeculativeConfig>() == num_options(kSpeculativeOptions) + 3);
  // suffix_corpus, custom.
  static_assert(num_members<DrafterConfig>() == num_options(kDrafterOptions) + 2);
  // logits_processors, grammar.
  static_assert(num_members<SamplingParams>() == num_options(kSamplingOptions) + 2);
}

template <class Table>
void expect_well_written(const Table& table) {
  std::set<std::string> names;
  for_each_option(table, [&](const auto& option) {
    EXPECT_TRUE(names.insert(option.text.name).second) << option.text.name;
    const std::string help = option.text.help;
    EXPECT_FALSE(help.empty() || help.ends_with(".") || help.find('\n') != std::string::npos)
        << option.text.name;
  });
}

TEST(Options, NamesDifferAndHelpIsALine) {
  expect_well_written(kEngineOptions);
  expect_well_written(kSpeculativeOptions);
  expect_well_written(kDrafterOptions);
  expect_well_written(kSamplingOptions);
}

// Empty where it is accepted.
std::string message_of(const OptionText& option, double value) {
  if (refused_field([&] { check_number(option, value); }).empty()) return "";
  return testing::error_of<InvalidArgument>([&] { check_number(option, value); }).what();
}

TEST(Options, RangesAreAsWritten) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const OptionText share{.name = "share", .help = "", .range = above(0, 1)};
  EXPECT_EQ(message_of(share, 1), "");
  EXPECT_EQ(message_of(share, 1e-300), "");
  EXPECT_EQ(message_of(share, 0), "share: must be in (0, 1], got 0");
  EXPECT_NE(message_of(share, std::nan("")), "");
  const OptionText size{
      .name = "size", .help = "", .range = between(1, 1 << 24), .zero = "the default"};
  EXPECT_EQ(message_of(size, 0), "");
  EXPECT_EQ(message_of(size, 1 << 24), "");
  EXPECT_EQ(message_of(size, -1), "size: must be in [1, 16777216], or 0 for the default, got -1");
  const OptionText factor{.name = "factor", .help = "", .range = above(0)};
  EXPECT_EQ(message_of(factor, 1e308), "");
  EXPECT_EQ(message_of(factor, -0.5), "factor: must be finite and above 0, got -0.5");
  EXPECT_NE(message_of(factor, kInf), "");
  const OptionText count{.name = "count", .help = "", .range = at_least(-1)};
  EXPECT_EQ(message_of(count, -2), "count: must be at least -1, got -2");
  EXPECT_NE(message_of(count, kInf), "");
}

TEST(Options, EnumsHaveNames) {
  EXPECT_EQ(name_of(DraftMethod::kDraftModel), "draft_model");
  EXPECT_EQ(value_of<SchedulingPolicy>("priority"), SchedulingPolicy::kPriority);
  EXPECT_EQ(value_of<SchedulingPolicy>("lifo"), std::nullopt);
  EXPECT_EQ(value_of<LogprobsMode>("raw_logprobs"), LogprobsMode::kRaw);
  EXPECT_EQ(value_of<LogprobsMode>("processed_logprobs"), LogprobsMode::kProcessed);
  EXPECT_EQ(value_of<LogprobsMode>("raw_logits"), LogprobsMode::kRawLogits);
  EXPECT_EQ(value_of<LogprobsMode>("processed_logits"), LogprobsMode::kProcessedLogits);
}

}  // namespace
}  // namespace specdec
