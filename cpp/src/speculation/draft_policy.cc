#include "speculation/draft_policy.h"

#include <algorithm>
#include <array>
#include <utility>

namespace specdec {
namespace {

using Measuring = DraftPlan::Measuring;

int cut_to_measure(const DraftPlan& step, int count) {
  if (step.measuring == Measuring::kHalf) return (count + 1) / 2;
  if (step.measuring == Measuring::kMost) return (3 * count + 3) / 4;
  return count;
}

}  // namespace

class DraftPolicy::DraftingCost {
 public:
  // `width`: rows of a request in the passes after the first.
  DraftingCost(const DraftPolicy& policy, int drafter, int width)
      : policy_(policy), drafter_(drafter), width_(width) {}

  void add(const Ask& ask, int depth) {
    const DrafterTraits& traits = policy_.drafters_[drafter_];
    const bool has_model = traits.has_model();
    if (depth > 1 && traits.cost != DrafterTraits::Cost::kPerLevel) return;
    if (static_cast<int>(rows_.size()) < depth) {
      rows_.resize(depth, 0);
      seconds_.resize(depth, 0.0);
    }
    int& rows = rows_[depth - 1];
    rows += depth > 1   ? width_
            : has_model ? std::clamp(ask.num_unseen, 1, policy_.tuning_.catch_up_rows)
                        : 1;
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

template <class Value>
DraftPolicy::Prefix DraftPolicy::best_prefix(std::span<const Candidate> candidates,
                                             double value_of_none, const Value& value) {
  Prefix best{.size = 0, .value = value_of_none};
  Gain gain;
  for (size_t size = 1; size <= candidates.size(); ++size) {
    gain.expected += candidates[size - 1].survival;
    gain.least += candidates[size - 1].least_survival;
    const double now = value(static_cast<int>(size), gain);
    if (now > best.value) best = {.size = size, .value = now};
  }
  return best;
}

DraftPolicy::DraftPolicy(std::vector<DrafterTraits> drafters, const DraftTuning& tuning)
    : tuning_(tuning),
      drafters_(std::move(drafters)),
      beliefs_(static_cast<int>(drafters_.size())),
      credit_(tuning_),
      passes_(drafters_.size()),
      probing_(drafters_.size(), {.last = 0, .interval = tuning_.first_probe_interval}) {}

void DraftPolicy::start_from(std::span<const TimedPass> target) { target_.start_from(target); }

void DraftPolicy::start_from(int drafter, std::span<const TimedPass> passes) {
  passes_[drafter].start_from(passes);
}

void DraftPolicy::record_match(uint64_t sequence, int drafter, int match_length) {
  beliefs_.of(sequence).match_lengths[drafter] = match_length;
}

void DraftPolicy::add_depths(int drafter, const Ask& ask, int index,
                             std::vector<Candidate>& candidates) {
  const DraftTree* others = ask.replaces ? nullptr : ask.tree;
  beliefs_.add_depths(beliefs_.of(ask.sequence), drafter, ask.max_depth, others, index, candidates);
}

// --- costs

double DraftPolicy::verify_seconds(const DraftPlan& step, int num_drafts) const {
  return target_.seconds(step.num_decoding + step.num_prompt_rows + num_drafts);
}

double DraftPolicy::extra_seconds(const DraftPlan& step, int num_drafts) const {
  return verify_seconds(step, num_drafts) - verify_seconds(step, 0);
}

double DraftPolicy::decode_seconds(const DraftPlan& step) const {
  return target_.seconds(step.num_decoding);
}

double DraftPolicy::rate(const DraftPlan& step, double gain, int num_drafts,
                         double draft_seconds) const {
  const double extra = extra_seconds(step, num_drafts) + draft_seconds;
  return (step.num_decoding + gain) /
         (decode_seconds(step) + step.draft_seconds + caution() * extra);
}

double DraftPolicy::safe_rate(const DraftPlan& step, const Gain& gain, int num_drafts) const {
  const double extra = extra_seconds(step, num_drafts);
  const double loss = extra - gain.least * decode_seconds(step) / step.num_decoding;
  return loss <= credit_.seconds() ? rate(step, gain.expected, num_drafts, 0.0) : 0.0;
}

// Clips a measurement at a multiple of what was expected: a longer one is due to preemption by
// other processes, not to drafts.
double DraftPolicy::without_outliers(const PassCost& cost, int num_rows, double seconds) const {
  return cost.is_measured() ? std::min(seconds, tuning_.outlier * cost.seconds(num_rows)) : seconds;
}

// A model that has many tokens to catch up on runs them once. Their cost is spread over the tokens
// that the request has yet to get.
double DraftPolicy::catch_up_share(int drafter, const Ask& ask) const {
  if (!drafters_[drafter].has_model() || ask.num_unseen <= tuning_.catch_up_rows) return 0.0;
  const Request* request = beliefs_.find(ask.sequence);
  const double done = request == nullptr ? 0.0 : request->num_output_tokens;
  // A long output tends to get longer still.
  const double expected = std::max({typical_output_ - done, done / 2, 1.0});
  const double horizon = std::min(expected, std::max<double>(ask.num_remaining, 1));
  const PassCost& pass = passes_[drafter];
  return (pass.seconds(ask.num_unseen) - pass.seconds(tuning_.catch_up_rows)) *
         tuning_.tokens_per_step / horizon;
}

void DraftPolicy::record_pass(DraftPlan& step, int drafter, int num_rows, double seconds) {
  step.draft_seconds += without_outliers(passes_[drafter], num_rows, seconds);
  passes_[drafter].record(num_rows, seconds);
}

// --- what to draft

double DraftPolicy::request_rate(const DraftPlan& step, double gain, int num_drafts,
                                 double draft_seconds) const {
  const double plain = decode_seconds(step) / step.num_decoding;
  return (1.0 + gain) / (plain + caution() * (extra_seconds(step, num_drafts) + draft_seconds));
}

double DraftPolicy::worth(const DraftPlan& step, uint64_t sequence, const DraftTree& tree) {
  std::vector<Candidate> nodes;
  beliefs_.add_nodes(beliefs_.of(sequence), tree, 0, nodes);
  std::ranges::sort(nodes, std::ranges::greater{}, &Candidate::survival);
  const bool is_measured = target_.is_measured();
  return best_prefix(nodes, 0.0,
                     [&](int size, Gain gain) {
                       return is_measured ? request_rate(step, gain.expected, size, 0.0)
                                          : gain.expected;
                     })
      .value;
}

// Compares the rate of the best length of the other drafters' drafts with that of this drafter's
// best length.
bool DraftPolicy::own_draft_is_better(const DraftPlan& step, int drafter, const Ask& ask) {
  std::vector<Candidate> own;
  add_depths(drafter, ask, 0, own);
  DraftingCost cost(*this, drafter, 1);
  const Prefix best_of_own = best_prefix(own, 0.0, [&](int size, Gain gain) {
    cost.add(ask, size);
    return request_rate(step, gain.expected, size, cost.seconds());
  });
  return best_of_own.value > tuning_.replace * worth(step, ask.sequence, *ask.tree);
}

std::pair<int, DraftPolicy::Gain> DraftPolicy::best_of_others(const DraftPlan& step,
                                                              std::span<const Ask> asks) {
  std::vector<Candidate> others;
  for (const Ask& ask : asks) {
    if (ask.tree != nullptr && !ask.replaces) {
      beliefs_.add_nodes(beliefs_.of(ask.sequence), *ask.tree, 0, others);
    }
  }
  std::ranges::sort(others, std::ranges::greater{}, &Candidate::survival);
  const Prefix best = best_prefix(others, rate(step, 0, 0, 0),
                                  [&](int size, Gain gain) { return safe_rate(step, gain, size); });
  Gain gain;
  for (size_t i = 0; i < best.size; ++i) {
    gain.expected += others[i].survival;
    gain.least += others[i].least_survival;
  }
  return {static_cast<int>(best.size), gain};
}

DraftPolicy::Prefix DraftPolicy::best_to_draft(const DraftPlan& step, const Drafting& drafting,
                                               std::span<const Candidate> nodes,
                                               double hope) const {
  const auto& [drafter, asks, constraint, num_others, gain_of_others] = drafting;
  DraftingCost cost(*this, drafter, constraint.shape.width);
  int num_drafts = num_others;
  const double without = rate(step, gain_of_others, num_others, 0);
  return best_prefix(nodes, without, [&](size_t size, Gain gain) {
    const int depth = nodes[size - 1].node;
    cost.add(asks[nodes[size - 1].request], depth);
    num_drafts += constraint.shape.num_nodes(depth) - constraint.shape.num_nodes(depth - 1);
    const bool splits_level =
        constraint.same_depth && size < nodes.size() && nodes[size].node == depth;
    if (splits_level) return 0.0;
    const double own = gain.expected + hope * (gain.expected - gain.least);
    return rate(step, gain_of_others + own, num_drafts, cost.seconds());
  });
}

// A level costs a pass, so the surest nodes are not always the best ones: one deep node among them
// may make all that come after it too dear. So each number of levels is tried.
DraftPolicy::Prefix DraftPolicy::best_levels(const DraftPlan& step, const Drafting& drafting,
                                             std::vector<Candidate>& nodes) const {
  Prefix best = best_to_draft(step, drafting, nodes, 0.0);
  int deepest = 0;
  for (const Candidate& node : nodes) deepest = std::max(deepest, node.node);
  std::vector<Candidate> shallow = nodes;
  for (int depth = deepest - 1; depth >= 1; --depth) {
    std::erase_if(shallow, [depth](const Candidate& node) { return node.node > depth; });
    const Prefix prefix = best_to_draft(step, drafting, shallow, 0.0);
    if (prefix.value <= best.value) continue;
    best = prefix;
    nodes = shallow;
  }
  return best;
}

int DraftPolicy::plan(DraftPlan& step, int drafter, std::span<Ask> asks,
                      const Constraint& constraint) {
  for (Ask& ask : asks) ask.depth = 0;
  if (step.measuring == Measuring::kPlain || !target_.is_measured() || asks.empty()) return 0;
  const double relative_cost = drafters_[drafter].relative_pass_cost;
  if (relative_cost > 0) passes_[drafter].assume(relative_cost * target_.seconds(1));

  std::vector<Candidate> nodes;
  for (size_t i = 0; i < asks.size(); ++i) {
    const bool has_drafts = asks[i].tree != nullptr && asks[i].tree->num_drafts() > 0;
    if (has_drafts && asks[i].replaces && !own_draft_is_better(step, drafter, asks[i])) continue;
    add_depths(drafter, asks[i], static_cast<int>(i), nodes);
  }
  const auto [num_others, gain_of_others] = best_of_others(step, asks);
  const Drafting drafting = {.drafter = drafter,
                             .asks = asks,
                             .constraint = constraint,
                             .num_others = num_others,
                             .gain_of_others = gain_of_others.expected};
  Prefix best;
  if (constraint.same_depth) {
    std::ranges::stable_sort(nodes, {}, &Candidate::node);
    best = best_to_draft(step, drafting, nodes, 0.0);
  } else {
    std::ranges::stable_sort(nodes, std::ranges::greater{}, &Candidate::survival);
    best = best_levels(step, drafting, nodes);
  }
  if (best.size == 0) {
    if (!nodes.empty()) {
      DraftingCost first(*this, drafter, constraint.shape.width);
      first.add(asks[nodes.front().request], 1);
      refuse(step, nodes.front().survival, first.seconds() + extra_seconds(step, 1), false);
      // What cannot pay even if drafts are as good as they might be is tried more seldom.
      const bool is_measured = passes_[drafter].is_measured();
      if (is_measured && best_to_draft(step, drafting, nodes, 1.0).size == 0) {
        int64_t& interval = probing_[drafter].interval;
        interval = std::max(interval, tuning_.hopeless_probe_interval);
      }
    }
    return probe(step, drafter, asks, constraint);
  }

  step.planned_rate = best.value;
  probing_[drafter].interval = tuning_.first_probe_interval;
  int deepest = 0;
  for (size_t n = 0; n < best.size; ++n) {
    Ask& ask = asks[nodes[n].request];
    ask.depth = std::max(ask.depth, nodes[n].node);
    deepest = std::max(deepest, ask.depth);
    Request& request = beliefs_.of(ask.sequence);
    request.asked_drafter = drafter;
    request.probe_depth = 0;
  }
  if (!constraint.same_depth) return deepest;
  // Drafts are not pruned later.
  last_gain_ = best.value / rate(step, gain_of_others.expected, num_others, 0) - 1.0;
  deepest = cut_to_measure(step, deepest);
  for (Ask& ask : asks) ask.depth = std::min(ask.depth, deepest);
  return deepest;
}

// The seconds that a probe of some requests may lose: its cost, less what is certain to be gained.
double DraftPolicy::probe_loss(const DraftPlan& step, int drafter, std::span<const Ask> asks,
                               int depth, const TreeShape& shape) {
  const auto num_asked = static_cast<int>(asks.size());
  const PassCost& pass = passes_[drafter];
  double loss = extra_seconds(step, shape.num_nodes(depth) * num_asked);
  if (drafters_[drafter].has_model()) {
    int num_unseen = 0;
    for (const Ask& ask : asks) num_unseen += ask.num_unseen;
    const bool has_levels = drafters_[drafter].cost == DrafterTraits::Cost::kPerLevel;
    loss += pass.seconds(num_unseen);
    if (has_levels) loss += (depth - 1) * pass.seconds(shape.width * num_asked);
  } else if (pass.is_measured()) {
    loss += pass.seconds(1);
  }
  std::vector<Candidate> nodes;
  for (Ask ask : asks) {
    ask.max_depth = std::min(ask.max_depth, depth);
    add_depths(drafter, ask, 0, nodes);
  }
  double gain = 0;
  for (const Candidate& node : nodes) gain += node.least_survival;
  return loss - gain * decode_seconds(step) / step.num_decoding;
}

// Drafts a few tokens with a drafter that is not expected to pay, to measure it. All requests share
// the cost of its passes and tell more than one; where that could lose too much, only the request
// that is cheapest to try is asked.
int DraftPolicy::probe(const DraftPlan& step, int drafter, std::span<Ask> asks,
                       const Constraint& constraint) {
  Probing& probing = probing_[drafter];
  if (num_steps_ - probing.last < probing.interval) return 0;
  const auto covered_depth = [&](std::span<const Ask> some) {
    int depth = 0;
    for (const Ask& ask : some) {
      depth = std::max(depth, std::min(ask.max_depth, tuning_.probe_depth));
    }
    while (depth > 0 && !credit_.covers(probe_loss(step, drafter, some, depth, constraint.shape))) {
      --depth;
    }
    return depth;
  };
  int depth = covered_depth(asks);
  if (depth == 0 && !constraint.same_depth) {
    const auto cheapest = std::ranges::min_element(asks, {}, &Ask::num_unseen);
    asks = asks.subspan(cheapest - asks.begin(), 1);
    depth = covered_depth(asks);
  }
  if (depth == 0) return 0;
  for (Ask& ask : asks) {
    ask.depth = std::min(ask.max_depth, depth);
    Request& request = beliefs_.of(ask.sequence);
    request.asked_drafter = drafter;
    request.probe_depth = depth;
  }
  probing.last = num_steps_;
  probing.interval = std::clamp(2 * probing.interval, tuning_.first_probe_interval,
                                tuning_.longest_probe_interval);
  ++stats_.num_probes;
  return depth;
}

// Chooses the nodes whose children are likeliest to survive: as many as pay best, given the cost of
// the pass and of verifying their children, at the planned rate.
void DraftPolicy::plan_pass(const DraftPlan& step, int drafter,
                            std::span<FrontierNode> frontier) const {
  std::vector<Candidate> candidates;
  int num_drafts = 0;
  for (size_t i = 0; i < frontier.size(); ++i) {
    const auto& [sequence, tree, node, goes_on] = frontier[i];
    const Request& request = *beliefs_.find(sequence);
    const int depth = tree->depth(node);
    frontier[i].goes_on = request.probe_depth > depth;
    num_drafts += tree->num_drafts();
    if (request.probe_depth > 0) continue;
    double missed = 1.0;  // chance that every existing child is wrong
    for (const DraftTree::Attempt& attempt : tree->attempts(node)) {
      missed -= beliefs_.acceptance_of(request, *tree, attempt.child).expected;
    }
    const double child = beliefs_.acceptance_at(request, drafter, depth + 1);
    candidates.push_back(
        {.survival = survival(sequence, *tree, node) * child * std::max(missed, 0.0),
         .request = static_cast<int>(i),
         .node = node});
  }
  std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::survival);
  // The cost of a row is averaged over several rows: the cost of a pass rises in steps, and a
  // single row may fall on such a step.
  const double row =
      (verify_seconds(step, num_drafts + tuning_.stretch) - verify_seconds(step, num_drafts)) /
      tuning_.stretch;
  const double token_seconds = step.planned_rate * caution();
  const Prefix best = best_prefix(candidates, 0.0, [&](int size, Gain gain) {
    return gain.expected - token_seconds * (passes_[drafter].seconds(size) + size * row);
  });
  for (size_t n = 0; n < best.size; ++n) frontier[candidates[n].request].goes_on = true;
}

// --- what to verify

void DraftPolicy::choose(DraftPlan& step, std::span<const Draft> drafts) {
  candidates_.clear();
  for (size_t i = 0; i < drafts.size(); ++i) {
    beliefs_.add_nodes(beliefs_.of(drafts[i].sequence), *drafts[i].tree, static_cast<int>(i),
                       candidates_);
  }
  std::ranges::stable_sort(candidates_, std::ranges::greater{}, &Candidate::survival);
  std::vector<int> counts(drafts.size(), 0);
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return ++counts[candidate.request] > drafts[candidate.request].max_nodes;
  });

  int num_chosen = 0;
  if (step.measuring != Measuring::kPlain && target_.is_measured()) {
    const Prefix best = best_prefix(candidates_, rate(step, 0, 0, 0), [&](int size, Gain gain) {
      return safe_rate(step, gain, size);
    });
    if (best.size > 0) {
      last_gain_ = best.value * decode_seconds(step) / step.num_decoding - 1.0;
    } else if (!candidates_.empty()) {
      const Prefix wanted = best_prefix(candidates_, rate(step, 0, 0, 0), [&](int size, Gain gain) {
        return rate(step, gain.expected, size, 0.0);
      });
      refuse(step, candidates_.front().survival, extra_seconds(step, 1), wanted.size > 0);
    }
    num_chosen = cut_to_measure(step, static_cast<int>(best.size));
  }
  for (size_t i = 0; i < drafts.size(); ++i) {
    chosen_.assign(drafts[i].tree->num_nodes(), 0);
    chosen_[DraftTree::kRoot] = 1;
    for (int n = 0; n < num_chosen; ++n) {
      if (candidates_[n].request == static_cast<int>(i)) chosen_[candidates_[n].node] = 1;
    }
    keep(step, drafts[i], chosen_);
  }
}

void DraftPolicy::refuse(DraftPlan& step, double survival, double seconds, bool is_worth_it) const {
  step.refusal = {
      .reason = is_worth_it ? DraftRefusal::Reason::kNoCredit : DraftRefusal::Reason::kTooCostly,
      .acceptance = survival,
      .step_factor = 1.0 + seconds / verify_seconds(step, 0)};
}

bool DraftPolicy::record_pause(const DraftPlan& step) {
  const bool has_drafts = step.num_verified > 0;
  if (!has_drafts && !step.refusal.has_value()) return false;
  const bool is_news = pause_.record(has_drafts ? std::nullopt : step.refusal);
  stats_.is_paused = pause_.is_paused();
  stats_.num_pauses_too_costly = pause_.num_pauses(DraftRefusal::Reason::kTooCostly);
  stats_.num_pauses_no_credit = pause_.num_pauses(DraftRefusal::Reason::kNoCredit);
  return is_news;
}

void DraftPolicy::keep(DraftPlan& step, const Draft& draft, std::span<const char> chosen) {
  Request& request = beliefs_.of(draft.sequence);
  DraftTree& tree = *draft.tree;
  const auto num_chosen = static_cast<int>(std::ranges::count(chosen, 1)) - 1;
  if (tree.num_drafts() > 0 && (num_chosen > 0 || request.pending.empty())) {
    beliefs_.expect(request, tree, draft.others);
  }
  const int asked = std::exchange(request.asked_drafter, -1);
  if (asked >= 0 && !tree.has_child_of(DraftTree::kRoot, asked)) {
    beliefs_.record_no_draft(request, asked);
  }
  count_decision(step, request, tree.num_drafts(), num_chosen);
  if (num_chosen < tree.num_drafts()) tree.keep_only(chosen);
}

// The greater of the current value and most of the recent one.
void DraftPolicy::fade(int& recent, int now) { recent = std::max(now, recent - (recent + 3) / 4); }

void DraftPolicy::count_decision(DraftPlan& step, Request& request, int num_drafted,
                                 int num_verified) {
  ++stats_.num_decisions;
  stats_.num_drafted_tokens += num_drafted;
  stats_.num_verified_tokens += num_verified;
  if (num_verified == 0) ++stats_.num_without_drafts;
  step.num_verified += num_verified;
  fade(request.recent_length, num_verified);
}

// --- the step

void DraftPolicy::record(DraftPlan& step, const Outcome& outcome) {
  if (outcome.tokens.empty()) return;
  Request& request = beliefs_.of(outcome.sequence);
  const int num_tokens = static_cast<int>(outcome.tokens.size());
  request.num_output_tokens += num_tokens;
  step.num_tokens += num_tokens;
  if (outcome.levels.has_value()) {
    const auto& [drafter, num_levels, num_drafts, num_accepted] = *outcome.levels;
    count_decision(step, request, num_drafts, num_drafts);
    request.asked_drafter = -1;
    const auto right = outcome.tokens.first(std::min(num_accepted, num_tokens));
    DraftBeliefs::expect_levels(request, drafter, num_levels, right);
  }
  beliefs_.record(request, outcome.tokens, [&](int drafter) {
    const bool is_probed = request.probe_depth > 0 && !drafters_[drafter].is_cheap();
    if (is_probed) probing_[drafter].interval = 1;
  });
}

int DraftPolicy::draft_budget(uint64_t sequence, int limit) const {
  const Request* request = beliefs_.find(sequence);
  const int recent = request == nullptr ? 0 : request->recent_length;
  return std::min(limit, tuning_.first_budget + 2 * recent);
}

int DraftPolicy::most_held() const { return tuning_.first_budget + 2 * recent_verified_; }

DraftPlan DraftPolicy::begin_step(int num_decoding, int num_prompt_rows) {
  DraftPlan step = {.num_decoding = num_decoding, .num_prompt_rows = num_prompt_rows};
  const int64_t by_gain =
      tuning_.shortest_interval +
      static_cast<int64_t>(tuning_.interval_by_gain * std::max(last_gain_, 0.0));
  const int64_t interval = std::min(by_gain, 4 * (1 + stats_.num_measuring_steps));
  if (num_prompt_rows > 0 || steps_since_measured_ < interval) return step;
  constexpr std::array kTurns = {Measuring::kPlain, Measuring::kHalf, Measuring::kPlain,
                                 Measuring::kMost};
  step.measuring = kTurns[stats_.num_measuring_steps++ % kTurns.size()];
  steps_since_measured_ = 0;
  return step;
}

bool DraftPolicy::end_step(const DraftPlan& step, double seconds) {
  ++num_steps_;
  const bool is_news = record_pause(step);
  if (step.num_decoding > 0) fade(recent_verified_, step.num_verified);
  const double plain = verify_seconds(step, 0);
  const int num_rows = step.num_decoding + step.num_verified;
  if (step.num_decoding > 0 && step.num_prompt_rows == 0) {
    const bool was_measured = target_.is_measured();
    if (was_measured) {
      // Without drafts, the difference from the expected seconds is noise.
      const double verify = without_outliers(target_, num_rows, seconds);
      const double without_drafts = plain * step.num_tokens / step.num_decoding;
      const double saved =
          (step.num_verified == 0 ? 0.0 : without_drafts - verify) - step.draft_seconds;
      credit_.add(saved);
      stats_.saved_seconds += saved;
    }
    target_.record(num_rows, seconds);
    if (!was_measured && target_.is_measured()) credit_.start(verify_seconds(step, 0));
    steps_since_measured_ = step.num_verified > 0 ? steps_since_measured_ + 1 : 0;
  }
  if (target_.is_measured()) credit_.earn(seconds + step.draft_seconds, plain);
  return is_news;
}

void DraftPolicy::finish(uint64_t sequence, int num_output_tokens) {
  beliefs_.finish(sequence);
  typical_output_ += (num_output_tokens - typical_output_) / tuning_.output_memory;
}

}  // namespace specdec
