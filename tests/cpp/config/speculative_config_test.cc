#include "specdec/speculative_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/draft_sampling.h"
#include "specdec/error.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using testing::refused_field;

class NoDrafts : public CustomDrafter {
 public:
  std::vector<std::vector<int32_t>> propose(std::span<const int32_t>, int) override { return {}; }
};

SpeculativeConfig config_of(DraftMethod method) {
  SpeculativeConfig config;
  config.num_speculative_tokens = 3;
  config.drafters.resize(1);
  config.drafters[0].method = method;
  if (has_model(method)) config.drafters[0].model = "some/checkpoint";
  if (method == DraftMethod::kCustom) config.drafters[0].custom = std::make_shared<NoDrafts>();
  return config;
}

struct BadValue {
  std::string key;
  DraftMethod method;
  std::function<void(SpeculativeConfig&)> spoil;
};

void expect_refused(const BadValue& bad, int index) {
  SpeculativeConfig config = config_of(bad.method);
  ASSERT_NO_THROW(config.validate()) << bad.key << " " << index;
  bad.spoil(config);
  EXPECT_EQ(refused_field([&] { config.validate(); }), bad.key) << index;
}

void expect_all_refused(const std::vector<BadValue>& bad) {
  for (size_t i = 0; i < bad.size(); ++i) expect_refused(bad[i], static_cast<int>(i));
}

const double kNan = std::nan("");

TEST(SpeculativeConfig, DefaultsAreNoSpeculation) {
  const SpeculativeConfig config;
  EXPECT_FALSE(config.enabled());
  EXPECT_NO_THROW(config.validate());
}

TEST(SpeculativeConfig, EveryMethodIsAcceptedWithItsDefaults) {
  for (const auto& [method, name] : kEnumNames<DraftMethod>) {
    EXPECT_NO_THROW(config_of(method).validate()) << name;
  }
}

TEST(SpeculativeConfig, LimitsThemselvesAreAccepted) {
  SpeculativeConfig config = config_of(DraftMethod::kSuffix);
  config.num_speculative_tokens = 128;
  config.tree_width = 4;
  config.max_draft_nodes = 512;
  config.drafters[0].suffix_max_cached_requests = 0;
  config.drafters[0].suffix_max_spec_factor = 0;
  config.drafters[0].suffix_min_token_prob = 1;
  config.num_speculative_tokens_per_batch_size = {{1, 4, 128}, {5, 5, 0}};
  EXPECT_NO_THROW(config.validate());
  config.max_draft_nodes = 128;
  config.tree_width = 16;
  EXPECT_NO_THROW(config.validate());
}

TEST(SpeculativeConfig, BadNumbersOfTokensAreRefused) {
  const auto tokens = [](int value) {
    return [value](SpeculativeConfig& c) { c.num_speculative_tokens = value; };
  };
  expect_all_refused({
      {"num_speculative_tokens", DraftMethod::kNgram, tokens(0)},
      {"num_speculative_tokens", DraftMethod::kNgram, tokens(-1)},
      {"num_speculative_tokens", DraftMethod::kNgram, tokens(129)},
      {"method", DraftMethod::kNgram, [](auto& c) { c.drafters.clear(); }},
      {"num_speculative_tokens_per_batch_size", DraftMethod::kNgram,
       [](auto& c) { c.num_speculative_tokens_per_batch_size = {{2, 4, 3}}; }},
  });
}

TEST(SpeculativeConfig, BadTreesAreRefused) {
  expect_all_refused({
      {"tree_width", DraftMethod::kNgram, [](auto& c) { c.tree_width = 0; }},
      {"tree_width", DraftMethod::kNgram, [](auto& c) { c.tree_width = 17; }},
      {"max_draft_nodes", DraftMethod::kNgram, [](auto& c) { c.max_draft_nodes = -1; }},
      {"max_draft_nodes", DraftMethod::kNgram, [](auto& c) { c.max_draft_nodes = 513; }},
      {"max_draft_nodes", DraftMethod::kNgram, [](auto& c) { c.max_draft_nodes = 2; }},
      {"max_draft_nodes", DraftMethod::kNgram,
       [](auto& c) {
         c.num_speculative_tokens = 128;
         c.tree_width = 8;  // 1024 nodes by default
       }},
  });
}

TEST(SpeculativeConfig, GivenTreesSayHowMuchIsDrafted) {
  SpeculativeConfig config = config_of(DraftMethod::kEagle3);
  config.speculative_token_tree = {{1}, {0}, {0, 0, 0}, {0, 0}, {1, 0}};
  config.tree_width = 2;
  EXPECT_NO_THROW(config.validate());
  EXPECT_EQ(config.max_nodes(), 5);
}

TEST(SpeculativeConfig, BadGivenTreesAreRefused) {
  using Tree = std::vector<std::vector<int>>;
  const auto tree = [](Tree paths, int num_tokens = 3) {
    return [paths, num_tokens](SpeculativeConfig& c) {
      c.speculative_token_tree = paths;
      c.num_speculative_tokens = num_tokens;
    };
  };
  const std::string key = "speculative_token_tree";
  const Tree chain = {{0}, {0, 0}, {0, 0, 0}};
  expect_refused({key, DraftMethod::kNgram, tree(chain)}, 0);
  Tree large;
  for (int depth = 1; depth <= 2; ++depth) {
    for (int i = 0; i < 300; ++i) large.emplace_back(depth, 0).back() = i;
  }
  expect_all_refused({
      {key, DraftMethod::kEagle, tree({{}, {0}}, 1)},
      {key, DraftMethod::kEagle, tree({{0}, {0}}, 1)},
      {key, DraftMethod::kEagle, tree({{-1}, {0}}, 1)},
      {key, DraftMethod::kEagle, tree({{0}, {0, 0, 0}})},          // no (0, 0)
      {key, DraftMethod::kEagle, tree({{0}, {0, 0}, {0, 2}}, 2)},  // no (0, 1)
      {key, DraftMethod::kEagle, tree({{1}}, 1)},
      {key, DraftMethod::kEagle, tree(chain, 2)},
      {key, DraftMethod::kEagle, tree({{0}, {1}, {0, 0}}, 2)},  // two wide
      {key, DraftMethod::kEagle, tree(large, 2)},
      {key, DraftMethod::kEagle,
       [&](auto& c) {
         c.speculative_token_tree = chain;
         c.max_draft_nodes = 3;
       }},
      {key, DraftMethod::kEagle,
       [&](auto& c) {
         c.speculative_token_tree = chain;
         c.drafters.push_back(c.drafters[0]);
       }},
  });
}

TEST(SpeculativeConfig, BadDrafterValuesAreRefused) {
  const auto drafter = [](auto member, auto value) {
    return [member, value](SpeculativeConfig& c) { c.drafters[0].*member = value; };
  };
  using D = DrafterConfig;
  expect_all_refused({
      {"prompt_lookup_min", DraftMethod::kNgram, drafter(&D::prompt_lookup_min, 0)},
      {"prompt_lookup_max", DraftMethod::kNgram, drafter(&D::prompt_lookup_max, 0)},
      {"prompt_lookup_max", DraftMethod::kNgram, drafter(&D::prompt_lookup_min, 6)},
      {"prompt_lookup_max", DraftMethod::kNgram, drafter(&D::prompt_lookup_max, 129)},
      {"suffix_decoding_max_tree_depth", DraftMethod::kSuffix,
       drafter(&D::suffix_max_tree_depth, 0)},
      {"suffix_decoding_max_cached_requests", DraftMethod::kSuffix,
       drafter(&D::suffix_max_cached_requests, -1)},
      {"suffix_decoding_max_spec_factor", DraftMethod::kSuffix,
       drafter(&D::suffix_max_spec_factor, -0.5)},
      {"suffix_decoding_max_spec_factor", DraftMethod::kSuffix,
       drafter(&D::suffix_max_spec_factor, kNan)},
      {"suffix_decoding_min_token_prob", DraftMethod::kSuffix,
       drafter(&D::suffix_min_token_prob, 1.1)},
      {"suffix_decoding_min_token_prob", DraftMethod::kSuffix,
       drafter(&D::suffix_min_token_prob, kNan)},
      {"model", DraftMethod::kDraftModel, drafter(&D::model, std::string())},
      {"quantization", DraftMethod::kDraftModel, drafter(&D::quantization, std::string("hqq"))},
      {"min_confidence", DraftMethod::kDraftModel, drafter(&D::min_confidence, -0.1)},
      {"min_confidence", DraftMethod::kDraftModel, drafter(&D::min_confidence, kNan)},
      {"method", DraftMethod::kCustom, drafter(&D::custom, std::shared_ptr<CustomDrafter>())},
  });
}

TEST(SpeculativeConfig, HeadsAreCheckedAsDraftModelsAre) {
  const auto drafter = [](auto member, auto value) {
    return [member, value](SpeculativeConfig& c) { c.drafters[0].*member = value; };
  };
  using D = DrafterConfig;
  for (const auto& [method, name] : kEnumNames<DraftMethod>) {
    if (!is_draft_head(method)) continue;
    if (method == DraftMethod::kMtp) {  // is in the target's checkpoint
      SpeculativeConfig config = config_of(method);
      config.drafters[0].model = "";
      EXPECT_NO_THROW(config.validate());
    } else {
      expect_all_refused({{"model", method, drafter(&D::model, std::string())}});
    }
    expect_all_refused({
        {"quantization", method, drafter(&D::quantization, std::string("hqq"))},
        {"min_confidence", method, drafter(&D::min_confidence, 1.1)},
        {"max_model_len", method, drafter(&D::max_model_len, -1)},
    });
  }
}

TEST(SpeculativeConfig, OnlyDraftModelsAndEagle3DraftInParallel) {
  for (const auto& [method, name] : kEnumNames<DraftMethod>) {
    if (!has_model(method)) continue;
    if (method == DraftMethod::kDraftModel || method == DraftMethod::kEagle3) {
      SpeculativeConfig config = config_of(method);
      config.drafters[0].parallel_drafting = true;
      config.tree_width = 2;
      EXPECT_NO_THROW(config.validate()) << name;
    } else {
      expect_all_refused(
          {{"parallel_drafting", method, [](auto& c) { c.drafters[0].parallel_drafting = true; }}});
    }
  }
}

TEST(SpeculativeConfig, OnlyHeadsThatBorrowAnOutputMatrixTakeATokenMap) {
  for (const auto& [method, name] : kEnumNames<DraftMethod>) {
    if (!has_model(method)) continue;
    if (method == DraftMethod::kEagle || method == DraftMethod::kMedusa ||
        method == DraftMethod::kMtp || method == DraftMethod::kDflash) {
      SpeculativeConfig config = config_of(method);
      config.drafters[0].token_map = {0, 7};
      EXPECT_NO_THROW(config.validate()) << name;
    } else {
      expect_all_refused(
          {{"speculative_token_map", method, [](auto& c) { c.drafters[0].token_map = {0, 7}; }}});
    }
  }
  expect_all_refused({{"speculative_token_map", DraftMethod::kEagle,
                       [](auto& c) { c.drafters[0].token_map = {0, -7}; }}});
}

TEST(SpeculativeConfig, EveryDrafterOfAListIsChecked) {
  SpeculativeConfig config = config_of(DraftMethod::kNgram);
  config.drafters.push_back(config_of(DraftMethod::kSuffix).drafters[0]);
  EXPECT_NO_THROW(config.validate());
  config.drafters[1].suffix_max_tree_depth = 0;
  EXPECT_THROW(config.validate(), InvalidArgument);
}

TEST(SpeculativeConfig, BlockVerificationTakesChainsOnly) {
  const auto block = [](SpeculativeConfig& c) { c.verification = Verification::kBlock; };
  SpeculativeConfig chain = config_of(DraftMethod::kNgram);
  block(chain);
  EXPECT_NO_THROW(chain.validate());
  expect_all_refused({
      {"tree_width", DraftMethod::kNgram,
       [&](auto& c) {
         block(c);
         c.tree_width = 2;
       }},
      {"merge_drafters", DraftMethod::kNgram,
       [&](auto& c) {
         block(c);
         c.merge_drafters = true;
         c.drafters.resize(2);
       }},
  });
}

TEST(SpeculativeConfig, DraftsAreDrawnAsVerificationNeedsThem) {
  using enum DraftSampleMethod;
  for (const auto& [verification, name] : kEnumNames<Verification>) {
    EXPECT_EQ(draft_sampling(kGreedy, verification), DraftSampling::kArgmax) << name;
    const bool is_weighed =
        verification == Verification::kStandard || verification == Verification::kBlock;
    EXPECT_EQ(draft_sampling(kProbabilistic, verification),
              is_weighed ? DraftSampling::kIndependent : DraftSampling::kCoupled)
        << name;
  }
}

TEST(SpeculativeConfig, TheLengthAdaptsWhereTokensDoNotDependOnIt) {
  SpeculativeConfig config = config_of(DraftMethod::kNgram);
  EXPECT_TRUE(config.adapts());
  config.draft_length_policy = DraftLengthPolicy::kFixed;
  EXPECT_FALSE(config.adapts());
  for (const Verification verification :
       {Verification::kStandard, Verification::kBlock, Verification::kSynthetic}) {
    config = config_of(DraftMethod::kNgram);
    config.verification = verification;
    EXPECT_FALSE(config.adapts());
  }
}

SpeculativeConfig synthetic(std::vector<double> rates, double length = 0.0) {
  SpeculativeConfig config = config_of(DraftMethod::kNgram);
  config.verification = Verification::kSynthetic;
  config.num_speculative_tokens = rates.empty() ? 3 : static_cast<int>(rates.size());
  config.synthetic_acceptance_rates = std::move(rates);
  config.synthetic_acceptance_length = length;
  return config;
}

TEST(SpeculativeConfig, SyntheticNeedsRatesOrALength) {
  EXPECT_NO_THROW(synthetic({1.0, 0.5, 0.0}).validate());
  EXPECT_NO_THROW(synthetic({}, 2.5).validate());
  const auto refused = [](const std::string& field, SpeculativeConfig config) {
    config.num_speculative_tokens = 3;
    EXPECT_EQ(refused_field([&] { config.validate(); }), field);
  };
  refused("rejection_sample_method", synthetic({}));
  refused("rejection_sample_method", synthetic({1.0, 0.5, 0.0}, 2.5));
  for (const std::vector<double>& rates :
       {std::vector<double>{0.5, 0.5}, {0.5, 0.6, 0.5}, {1.5, 0.5, 0.5}, {0.5, kNan, 0.5}}) {
    refused("synthetic_acceptance_rates", synthetic(rates));
  }
  for (const double length : {0.99, 4.01, -1.0, kNan}) {
    refused("synthetic_acceptance_length", synthetic({}, length));
  }
}

TEST(SpeculativeConfig, SyntheticOptionsAreRefusedElsewhere) {
  for (const auto& [verification, name] : kEnumNames<Verification>) {
    if (verification == Verification::kSynthetic) continue;
    for (SpeculativeConfig config : {synthetic({0.5, 0.5, 0.5}), synthetic({}, 2.0)}) {
      config.verification = verification;
      EXPECT_THROW(config.validate(), InvalidArgument) << name;
    }
  }
}

TEST(SpeculativeConfig, AcceptanceRatesBecomeConditional) {
  const auto conditional = synthetic({0.8, 0.4, 0.4, 0.1}).conditional_acceptance_rates();
  ASSERT_EQ(conditional.size(), 4U);
  EXPECT_DOUBLE_EQ(conditional[0], 0.8);
  EXPECT_DOUBLE_EQ(conditional[1], 0.5);
  EXPECT_DOUBLE_EQ(conditional[2], 1.0);
  EXPECT_DOUBLE_EQ(conditional[3], 0.25);
  EXPECT_EQ(synthetic({0.5, 0.0, 0.0}).conditional_acceptance_rates(),
            (std::vector<double>{0.5, 0.0, 0.0}));
}

TEST(SpeculativeConfig, RatesOfALengthHaveThatMeanAndTheLeastVariance) {
  for (int num_tokens = 1; num_tokens <= 8; ++num_tokens) {
    for (double length = 1.0; length <= num_tokens + 1.0; length += 0.125) {
      SpeculativeConfig config = synthetic({}, length);
      config.num_speculative_tokens = num_tokens;
      const auto rates = config.conditional_acceptance_rates();
      ASSERT_EQ(rates.size(), static_cast<size_t>(num_tokens));
      double expected = 1.0, survival = 1.0, previous = 1.0, second_moment = 0.0;
      for (size_t i = 0; i < rates.size(); ++i) {
        ASSERT_TRUE(rates[i] >= 0.0 && rates[i] <= previous);
        previous = rates[i];
        survival *= rates[i];
        expected += survival;
        second_moment += survival * static_cast<double>(2 * i + 1);  // of the number accepted
      }
      ASSERT_NEAR(expected, length, 1e-12);
      // No law on whole numbers with this mean varies less.
      const double fraction = length - std::floor(length);
      const double variance = second_moment - (length - 1.0) * (length - 1.0);
      ASSERT_NEAR(variance, fraction * (1.0 - fraction), 1e-9);
    }
  }
}

TEST(SpeculativeConfig, BadBatchSizeTablesAreRefusedByName) {
  const std::vector<std::vector<BatchSizeRange>> bad = {
      {{2, 4, 3}},             // does not start at 1
      {{0, 4, 3}},             // starts below 1
      {{1, 4, 3}, {4, 8, 2}},  // both ends count
      {{5, 8, 2}, {1, 6, 3}},  // overlap after sorting
      {{1, 4, -1}},            // negative
      {{1, 8, 3}, {7, 5, 2}},  // backwards
  };
  for (const auto& ranges : bad) {
    SpeculativeConfig config;
    config.num_speculative_tokens = 5;
    config.drafters.resize(1);
    config.num_speculative_tokens_per_batch_size = ranges;
    EXPECT_EQ(refused_field([&] { config.validate(); }), "num_speculative_tokens_per_batch_size")
        << ranges[0].first << ", " << ranges[0].last;
  }
}

}  // namespace
}  // namespace specdec
