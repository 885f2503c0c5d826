#include "speculation/draft_policy.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/check.h"

namespace specdec {
namespace {

constexpr double kCaution = 0.1;      // extra seconds are weighed so much heavier
constexpr double kWaryCaution = 0.5;  // ... while past drafts have lost more than was earned
constexpr double kOutlier = 2;        // times the seconds expected
constexpr double kReplace = 1.05;     // by how much a draft must beat the one it would replace

constexpr double kLossShare = 0.01;  // of all seconds that may be lost to drafts that do not pay
constexpr double kFirstCredit = 3;   // steps without drafts
constexpr double kMostCredit = 8;
constexpr double kMostDebt = 64;

constexpr int64_t kFirstProbeInterval = 4;  // steps
constexpr int64_t kLongestProbeInterval = 1024;
constexpr int kProbeDepth = 2;

// Steps with drafts until one with fewer or none is run to measure it: the more drafts gain, the
// more that costs.
constexpr int64_t kShortestInterval = 8;
constexpr int64_t kLongestInterval = 256;
constexpr double kIntervalByGain = 100;

constexpr int kFirstSlots = 4;           // of a request nothing is known of
constexpr int kCatchUpRows = 4;          // of a usual pass; what is beyond is caught up once
constexpr double kTokensPerStep = 2;     // with drafts, to spread the cost of catching up
constexpr double kShortestHorizon = 32;  // tokens
constexpr double kOutputMemory = 8;      // requests

}  // namespace

class DraftPolicy::DraftingCost {
 public:
  // `width`: rows of a request in the passes after the first.
  DraftingCost(const DraftPolicy& policy, int drafter, int width = 1)
      : policy_(policy), drafter_(drafter), width_(width) {}

  void add(const Ask& ask, int depth) {
    const bool sequential = policy_.drafters_[drafter_].has_model();
    if (depth > 1 && !sequential) return;
    if (static_cast<int>(rows_.size()) < depth) {
      rows_.resize(depth, 0);
      seconds_.resize(depth, 0.0);
    }
    int& rows = rows_[depth - 1];
    rows += depth > 1 ? width_ : sequential ? std::clamp(ask.num_unseen, 1, kCatchUpRows) : 1;
    total_ -= seconds_[depth - 1];
    seconds_[depth - 1] = policy_.passes_[drafter_].seconds(rows);
    total_ += seconds_[depth - 1];
    if (depth == 1) total_ += policy_.catch_up_share(drafter_, ask);
  }
  double seconds() const { return total_; }

 private:
  const DraftPolicy& policy_;
  int drafter_;
  int width_;
  std::vector<int> rows_;        // by level
  std::vector<double> seconds_;  // by level
  double total_ = 0;
};

DraftPolicy::DraftPolicy(std::vector<DrafterTraits> drafters)
    : drafters_(std::move(drafters)),
      acceptance_(static_cast<int>(drafters_.size())),
      passes_(drafters_.size()),
      probing_(drafters_.size(), {.last = 0, .interval = kFirstProbeInterval}) {}

DraftPolicy::RequestState& DraftPolicy::state_of(uint64_t sequence) {
  const auto [it, is_new] = requests_.try_emplace(sequence);
  if (is_new) {
    it->second.acceptance = acceptance_.new_request();
    it->second.match_lengths.assign(drafters_.size(), 0);
  }
  return it->second;
}

// --- costs

double DraftPolicy::caution() const { return 1.0 + (credit_ < 0 ? kWaryCaution : kCaution); }

double DraftPolicy::verify_seconds(int num_drafts) const {
  return target_.seconds(num_decoding_ + num_prompt_rows_ + num_drafts);
}

double DraftPolicy::rate(double gain, double verify, double draft) const {
  const double plain = verify_seconds(0);
  return (num_decoding_ + gain) / (plain + caution() * (verify - plain + draft));
}

// What is out of all proportion was not the drafts' doing.
double DraftPolicy::without_outliers(const PassCost& cost, int num_rows, double seconds) {
  return cost.is_measured() ? std::min(seconds, kOutlier * cost.seconds(num_rows)) : seconds;
}

// A long way to catch up pays off over what is left of the request, if at all.
double DraftPolicy::catch_up_share(int drafter, const Ask& ask) const {
  if (!drafters_[drafter].has_model() || ask.num_unseen <= kCatchUpRows) return 0.0;
  const auto it = requests_.find(ask.sequence);
  const double done = it == requests_.end() ? 0.0 : it->second.num_output_tokens;
  // Outputs that are already long tend to stay on.
  const double expected = std::max({typical_output_ - done, kShortestHorizon, done / 2});
  const double horizon = std::min(expected, std::max<double>(ask.num_remaining, 1));
  const PassCost& pass = passes_[drafter];
  return (pass.seconds(ask.num_unseen) - pass.seconds(kCatchUpRows)) * kTokensPerStep / horizon;
}

void DraftPolicy::record_pass(int drafter, int num_rows, double seconds) {
  draft_seconds_ += without_outliers(passes_[drafter], num_rows, seconds);
  passes_[drafter].record(num_rows, seconds);
}

// --- what drafts are worth

void DraftPolicy::record_match(uint64_t sequence, int drafter, int match_length) {
  state_of(sequence).match_lengths[drafter] = match_length;
}

DraftEvidence DraftPolicy::evidence_of(const RequestState& state, const DraftTree& tree,
                                       int node) const {
  const int parent = tree.parents()[node];
  const int drafter = tree.drafter(node);
  const int match = state.match_lengths[drafter];
  const float above = tree.survival(parent);
  return {.drafter = drafter,
          .strength = tree.depth(node) + std::max(match - 1, 0),
          .confidence = above > 0 ? tree.survival(node) / above : 0.0,
          .is_first = tree.attempts(parent).front().child == node};
}

void DraftPolicy::survivals_of(const RequestState& state, const DraftTree& tree,
                               std::vector<double>& survivals) const {
  survivals.assign(tree.num_nodes(), 1.0);
  for (int node = 1; node < tree.num_nodes(); ++node) {
    survivals[node] = survivals[tree.parents()[node]] *
                      acceptance_.probability(state.acceptance, evidence_of(state, tree, node));
  }
}

// --- asking a drafter

// Expected survival at every depth of a draft of each request, those not worth replacing left out.
std::vector<DraftPolicy::Candidate> DraftPolicy::depths_of(int drafter, std::span<const Ask> asks) {
  std::vector<Candidate> depths;
  for (size_t i = 0; i < asks.size(); ++i) {
    const Ask& ask = asks[i];
    const RequestState& state = state_of(ask.sequence);
    if (ask.tree != nullptr && ask.tree->num_drafts() > 0 && !own_draft_is_better(drafter, ask)) {
      continue;
    }
    double survival = 1.0;
    for (int depth = 1; depth <= ask.max_depth; ++depth) {
      survival *=
          acceptance_.probability(state.acceptance, {.drafter = drafter, .strength = depth});
      depths.push_back({.survival = survival, .request = static_cast<int>(i), .node = depth});
    }
  }
  std::ranges::stable_sort(depths, std::ranges::greater{}, &Candidate::survival);
  return depths;
}

// Of the best lengths of both, each on its own.
bool DraftPolicy::own_draft_is_better(int drafter, const Ask& ask) {
  const RequestState& state = state_of(ask.sequence);
  const double plain = verify_seconds(0);
  const double share = plain / num_decoding_;
  std::vector<double> survivals;
  survivals_of(state, *ask.tree, survivals);
  std::sort(survivals.begin() + 1, survivals.end(), std::greater<>());
  double others = 0;
  double gain = 1.0;
  for (size_t n = 1; n < survivals.size(); ++n) {
    gain += survivals[n];
    const double extra = verify_seconds(static_cast<int>(n)) - plain;
    others = std::max(others, gain / (share + caution() * extra));
  }

  DraftingCost cost(*this, drafter);
  double own = 0;
  double survival = gain = 1.0;
  for (int depth = 1; depth <= ask.max_depth; ++depth) {
    cost.add(ask, depth);
    survival *= acceptance_.probability(state.acceptance, {.drafter = drafter, .strength = depth});
    gain += survival;
    const double extra = verify_seconds(depth) - plain + cost.seconds();
    own = std::max(own, gain / (share + caution() * extra));
  }
  return own > kReplace * others;
}

void DraftPolicy::plan(int drafter, std::span<Ask> asks) {
  for (Ask& ask : asks) ask.is_chosen = false;
  if (measuring_ == Measuring::kPlain || !target_.is_measured() || num_decoding_ == 0) return;
  const double relative_cost = drafters_[drafter].relative_pass_cost;
  if (relative_cost > 0) passes_[drafter].assume(relative_cost * target_.seconds(1));

  const std::vector<Candidate> depths = depths_of(drafter, asks);
  DraftingCost cost(*this, drafter);
  double best = rate(0, verify_seconds(0), 0);
  size_t num_best = 0;
  double gain = 0;
  for (size_t n = 0; n < depths.size(); ++n) {
    cost.add(asks[depths[n].request], depths[n].node);
    gain += depths[n].survival;
    const double now = rate(gain, verify_seconds(static_cast<int>(n) + 1), cost.seconds());
    if (now <= best) continue;
    best = now;
    num_best = n + 1;
  }
  if (num_best == 0) {
    plan_probe(drafter, asks);
    return;
  }
  planned_rate_ = best;
  for (size_t n = 0; n < num_best; ++n) asks[depths[n].request].is_chosen = true;
  for (const Ask& ask : asks) {
    if (!ask.is_chosen) continue;
    RequestState& state = state_of(ask.sequence);
    state.asked_drafter = drafter;
    state.probe_depth = 0;
  }
  probing_[drafter].interval = kFirstProbeInterval;
}

// One request, the one that is cheapest to try.
void DraftPolicy::plan_probe(int drafter, std::span<Ask> asks) {
  Probing& probing = probing_[drafter];
  if (asks.empty() || num_steps_ - probing.last < probing.interval) return;
  const auto ask = std::ranges::min_element(asks, {}, &Ask::num_unseen);
  const int depth = std::min(ask->max_depth, kProbeDepth);
  if (depth < 1) return;
  const PassCost& pass = passes_[drafter];
  double cost = verify_seconds(depth) - verify_seconds(0);
  if (drafters_[drafter].has_model()) {
    cost += pass.seconds(ask->num_unseen) + (depth - 1) * pass.seconds(1);
  } else if (pass.is_measured()) {
    cost += pass.seconds(1);
  }
  if (cost > credit_) return;
  ask->is_chosen = true;
  RequestState& state = state_of(ask->sequence);
  state.asked_drafter = drafter;
  state.probe_depth = depth;
  probing.last = num_steps_;
  probing.interval = std::clamp(2 * probing.interval, kFirstProbeInterval, kLongestProbeInterval);
  ++stats_.num_probes;
}

int DraftPolicy::plan_levels(int drafter, std::span<const Ask> asks, const TreeShape& shape) {
  if (measuring_ == Measuring::kPlain || !target_.is_measured() || asks.empty()) return 0;
  const double relative_cost = drafters_[drafter].relative_pass_cost;
  if (relative_cost > 0) passes_[drafter].assume(relative_cost * target_.seconds(1));
  int deepest = 0;
  for (const Ask& ask : asks) deepest = std::max(deepest, ask.max_depth);

  DraftingCost cost(*this, drafter, shape.width);
  std::vector<double> survivals(asks.size(), 1.0);
  const double plain = rate(0, verify_seconds(0), 0);
  double best = plain;
  int best_depth = 0;
  double gain = 0;
  int num_drafts = 0;
  for (int depth = 1; depth <= deepest; ++depth) {
    for (size_t i = 0; i < asks.size(); ++i) {
      if (asks[i].max_depth < depth) continue;
      survivals[i] *= acceptance_.probability(state_of(asks[i].sequence).acceptance,
                                              {.drafter = drafter, .strength = depth});
      cost.add(asks[i], depth);
      gain += survivals[i];
      num_drafts += shape.num_nodes(depth) - shape.num_nodes(depth - 1);
    }
    const double now = rate(gain, verify_seconds(num_drafts), cost.seconds());
    if (now <= best) continue;
    best = now;
    best_depth = depth;
  }
  if (best_depth == 0) return probe_levels(drafter, asks, shape, deepest);
  last_gain_ = best / plain - 1.0;
  probing_[drafter].interval = kFirstProbeInterval;
  if (measuring_ == Measuring::kHalf) return (best_depth + 1) / 2;
  if (measuring_ == Measuring::kMost) return (3 * best_depth + 3) / 4;
  return best_depth;
}

// All requests at once: a graph's passes have rows for each.
int DraftPolicy::probe_levels(int drafter, std::span<const Ask> asks, const TreeShape& shape,
                              int deepest) {
  Probing& probing = probing_[drafter];
  const int depth = std::min(deepest, kProbeDepth);
  if (depth == 0 || num_steps_ - probing.last < probing.interval) return 0;
  int num_unseen = 0;
  for (const Ask& ask : asks) num_unseen += ask.num_unseen;
  const int num_requests = static_cast<int>(asks.size());
  const PassCost& pass = passes_[drafter];
  const double cost = verify_seconds(shape.num_nodes(depth) * num_requests) - verify_seconds(0) +
                      pass.seconds(num_unseen) +
                      (depth - 1) * pass.seconds(num_requests * shape.width);
  if (cost > credit_) return 0;
  probing.last = num_steps_;
  probing.interval = std::clamp(2 * probing.interval, kFirstProbeInterval, kLongestProbeInterval);
  ++stats_.num_probes;
  return depth;
}

void DraftPolicy::record_levels(int drafter, const Levels& levels) {
  ++stats_.num_decisions;
  stats_.num_drafted_tokens += levels.num_drafts;
  stats_.num_verified_tokens += levels.num_drafts;
  if (levels.num_drafts == 0) ++stats_.num_without_drafts;
  num_verified_ += levels.num_drafts;
  RequestState& state = state_of(levels.sequence);
  state.recent_length = levels.num_drafts;
  state.pending.clear();
  const int num_right = std::min(levels.num_accepted, levels.num_tokens);
  for (int level = 1; level <= levels.num_levels; ++level) {
    if (level > num_right + 1 || level > levels.num_tokens) break;
    acceptance_.record(state.acceptance, {.drafter = drafter, .strength = level},
                       level <= num_right);
  }
}

// The nodes whose children are likeliest to survive, as many as bring most beside what the pass and
// their verification cost at the planned rate.
void DraftPolicy::plan_pass(int drafter, std::span<FrontierNode> frontier) const {
  std::vector<Candidate> candidates;
  int num_drafts = 0;
  for (size_t i = 0; i < frontier.size(); ++i) {
    const auto& [sequence, tree, node, goes_on] = frontier[i];
    const RequestState& state = requests_.at(sequence);
    const int depth = tree->depth(node);
    frontier[i].goes_on = state.probe_depth > depth;
    num_drafts += tree->num_drafts();
    if (state.probe_depth > 0) continue;
    double survival =
        acceptance_.probability(state.acceptance, {.drafter = drafter, .strength = depth + 1});
    for (int above = node; above != DraftTree::kRoot; above = tree->parents()[above]) {
      survival *= acceptance_.probability(state.acceptance, evidence_of(state, *tree, above));
    }
    candidates.push_back({.survival = survival, .request = static_cast<int>(i), .node = node});
  }
  std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::survival);
  // A row's share of a pass is taken over several: single rows may fall on a step of its cost.
  constexpr int kStretch = 8;
  const double row =
      (verify_seconds(num_drafts + kStretch) - verify_seconds(num_drafts)) / kStretch;
  double best = 0;
  size_t num_best = 0;
  double gain = 0;
  for (size_t n = 1; n <= candidates.size(); ++n) {
    gain += candidates[n - 1].survival;
    const int count = static_cast<int>(n);
    const double seconds = passes_[drafter].seconds(count) + count * row;
    const double worth = gain - planned_rate_ * caution() * seconds;
    if (worth <= best) continue;
    best = worth;
    num_best = n;
  }
  for (size_t n = 0; n < num_best; ++n) frontier[candidates[n].request].goes_on = true;
}

// --- choosing what to verify

DraftPolicy::Rate DraftPolicy::best_rate(std::span<const Candidate> candidates) const {
  const double plain = verify_seconds(0);
  const double margin = caution();
  Rate best{.tokens_per_second = num_decoding_ / (plain + draft_seconds_), .num_candidates = 0};
  double gain = num_decoding_;
  for (size_t n = 0; n < candidates.size(); ++n) {
    gain += candidates[n].survival;
    const double extra = verify_seconds(static_cast<int>(n) + 1) - plain;
    const double now = gain / (plain + draft_seconds_ + margin * extra);
    if (now <= best.tokens_per_second) continue;
    best = {.tokens_per_second = now, .num_candidates = static_cast<int>(n) + 1};
  }
  return best;
}

void DraftPolicy::choose(std::span<const Draft> drafts) {
  candidates_.clear();
  for (size_t i = 0; i < drafts.size(); ++i) {
    const DraftTree& tree = *drafts[i].tree;
    survivals_of(state_of(drafts[i].sequence), tree, survivals_);
    for (int node = 1; node < tree.num_nodes(); ++node) {
      candidates_.push_back(
          {.survival = survivals_[node], .request = static_cast<int>(i), .node = node});
    }
    stats_.num_drafted_tokens += tree.num_drafts();
  }
  stats_.num_decisions += static_cast<int64_t>(drafts.size());
  std::ranges::stable_sort(candidates_, std::ranges::greater{}, &Candidate::survival);
  counts_.assign(drafts.size(), 0);
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return ++counts_[candidate.request] > drafts[candidate.request].max_nodes;
  });

  int num_chosen = 0;
  if (measuring_ != Measuring::kPlain && target_.is_measured() && !candidates_.empty()) {
    const Rate best = best_rate(candidates_);
    num_chosen = best.num_candidates;
    const double plain = num_decoding_ / verify_seconds(0);
    if (num_chosen > 0) last_gain_ = best.tokens_per_second / plain - 1.0;
    if (measuring_ == Measuring::kHalf) num_chosen = (num_chosen + 1) / 2;
    if (measuring_ == Measuring::kMost) num_chosen = (3 * num_chosen + 3) / 4;
  }
  num_verified_ = num_chosen;
  stats_.num_verified_tokens += num_chosen;
  for (size_t i = 0; i < drafts.size(); ++i) {
    chosen_.assign(drafts[i].tree->num_nodes(), 0);
    chosen_[DraftTree::kRoot] = 1;
    for (int n = 0; n < num_chosen; ++n) {
      if (candidates_[n].request == static_cast<int>(i)) chosen_[candidates_[n].node] = 1;
    }
    keep(state_of(drafts[i].sequence), *drafts[i].tree, chosen_);
  }
}

// The whole draft is remembered: how far the text would have followed it is known later.
void DraftPolicy::keep(RequestState& state, DraftTree& tree, std::span<const char> chosen) {
  const auto num_chosen = static_cast<int>(std::ranges::count(chosen, 1)) - 1;
  if (num_chosen == 0) ++stats_.num_without_drafts;
  if (tree.num_drafts() > 0 && (num_chosen > 0 || state.pending.empty())) {
    state.pending.clear();
    state.pending_node = DraftTree::kRoot;
    state.pending.push_back({.token = tree.tokens()[0], .parent = -1, .evidence = {}});
    for (int node = 1; node < tree.num_nodes(); ++node) {
      state.pending.push_back({.token = tree.tokens()[node],
                               .parent = tree.parents()[node],
                               .evidence = evidence_of(state, tree, node)});
    }
  }
  const int asked = std::exchange(state.asked_drafter, -1);
  if (asked >= 0 && tree.num_drafts() == 0) {
    acceptance_.record(state.acceptance, {.drafter = asked, .strength = 1}, false);
  }
  state.recent_length = std::max(num_chosen, state.recent_length - (state.recent_length + 3) / 4);
  if (num_chosen < tree.num_drafts()) tree.keep_only(chosen);
}

// --- the step

int DraftPolicy::num_slots(uint64_t sequence, int limit) const {
  const auto it = requests_.find(sequence);
  const int recent = it == requests_.end() ? 0 : it->second.recent_length;
  return std::min(limit, kFirstSlots + 2 * recent);
}

void DraftPolicy::begin_step(int num_decoding, int num_prompt_rows) {
  num_decoding_ = num_decoding;
  num_prompt_rows_ = num_prompt_rows;
  draft_seconds_ = 0;
  num_verified_ = 0;
  num_tokens_ = 0;
  planned_rate_ = 0;
  const int64_t by_gain = std::clamp(
      kShortestInterval + static_cast<int64_t>(kIntervalByGain * std::max(last_gain_, 0.0)),
      kShortestInterval, kLongestInterval);
  const int64_t interval = std::min(by_gain, 4 * (1 + stats_.num_measuring_steps));
  measuring_ = Measuring::kNothing;
  if (num_prompt_rows > 0 || steps_since_measured_ < interval) return;
  constexpr std::array kTurns = {Measuring::kPlain, Measuring::kHalf, Measuring::kPlain,
                                 Measuring::kMost};
  measuring_ = kTurns[stats_.num_measuring_steps++ % kTurns.size()];
  steps_since_measured_ = 0;
}

void DraftPolicy::record_tokens(uint64_t sequence, std::span<const int32_t> tokens) {
  if (tokens.empty()) return;
  RequestState& state = state_of(sequence);
  state.num_output_tokens += static_cast<int>(tokens.size());
  num_tokens_ += static_cast<int>(tokens.size());
  acceptance_.forget(state.acceptance, static_cast<int>(tokens.size()));
  for (const int32_t token : tokens) {
    if (state.pending.empty()) return;
    int next = -1;
    bool is_leaf = true;
    for (int node = state.pending_node + 1; node < static_cast<int>(state.pending.size()); ++node) {
      const Pending& pending = state.pending[node];
      if (pending.parent != state.pending_node) continue;
      is_leaf = false;
      if (pending.token == token) next = node;
      if (std::exchange(state.probe_depth, 0) > 0 && pending.token == token) {
        probing_[pending.evidence.drafter].interval = 1;
      }
      acceptance_.record(state.acceptance, pending.evidence, pending.token == token);
    }
    if (is_leaf || next < 0) {
      state.pending.clear();
    } else {
      state.pending_node = next;
    }
  }
}

void DraftPolicy::end_step(double seconds) {
  ++num_steps_;
  const double plain = verify_seconds(0);
  if (num_decoding_ > 0 && num_prompt_rows_ == 0) {
    if (target_.is_measured()) {
      // Without drafts the difference to what was expected is noise.
      const double verify = without_outliers(target_, num_decoding_ + num_verified_, seconds);
      const double saved = num_verified_ == 0
                               ? -draft_seconds_
                               : plain * num_tokens_ / num_decoding_ - verify - draft_seconds_;
      credit_ += saved;
      stats_.saved_seconds += saved;
    }
    const bool was_measured = target_.is_measured();
    target_.record(num_decoding_ + num_verified_, seconds);
    if (!was_measured && target_.is_measured()) credit_ = kFirstCredit * verify_seconds(0);
    steps_since_measured_ = num_verified_ > 0 ? steps_since_measured_ + 1 : 0;
  }
  if (!target_.is_measured()) return;
  credit_ = std::clamp(credit_ + kLossShare * (seconds + draft_seconds_), -kMostDebt * plain,
                       kMostCredit * plain);
}

void DraftPolicy::finish(uint64_t sequence, int num_output_tokens) {
  requests_.erase(sequence);
  typical_output_ += (num_output_tokens - typical_output_) / kOutputMemory;
}

}  // namespace specdec
