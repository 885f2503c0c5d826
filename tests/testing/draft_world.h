// A world in which a DraftPolicy acts: requests whose drafts are accepted with known probabilities,
// and passes of known cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "speculation/draft_policy.h"

namespace specdec::testing {

struct DraftWorldOptions {
  int num_requests = 1;
  int max_depth = 8;
  bool has_model = true;  // a draft model; else a cheap drafter
  // Seconds of the target's pass over a number of rows, and of the drafter's over one.
  std::function<double(int num_rows)> verify_seconds = [](int rows) {
    return 0.01 * (1.0 + 0.02 * (rows - 1));
  };
  double pass_seconds = 0.003;
  int num_prompt_tokens = 0;  // that the draft model has not seen
  // Probability that the drafted token at a depth is accepted once those above are. Requests are
  // numbered as they come.
  std::function<double(int request, int64_t token, int depth)> acceptance = [](int, int64_t, int) {
    return 0.7;
  };
  // Probability that the cheap drafter has a draft.
  std::function<double(int request, int64_t token)> hit_rate = [](int, int64_t) { return 1.0; };
  bool levels = false;   // of a draft model: as deep for every request, decided before the step
  int width = 1;         // nodes per level; at most one is right
  int fixed_depth = -1;  // >= 0: drafts of that depth throughout, the policy is not asked
  double noise = 0.03;   // standard deviation of measured seconds, as a share
  double outlier_rate = 0.0;  // of measurements that take up to ten times as long
  // Passes of these many rows are timed before the first step.
  std::vector<int> timed_rows = {};
  uint32_t seed = 1;
  DraftTuning tuning = {};
};

class DraftWorld {
 public:
  explicit DraftWorld(DraftWorldOptions options)
      : options_(std::move(options)),
        random_(options_.seed),
        policy_({options_.has_model ? DrafterTraits{.cost = DrafterTraits::Cost::kPerLevel,
                                                    .relative_pass_cost = 0.3}
                                    : DrafterTraits{}},
                options_.tuning),
        states_(options_.num_requests) {
    for (State& state : states_) begin(state);
    std::vector<TimedPass> target;
    std::vector<TimedPass> drafter;
    for (const int rows : options_.timed_rows) {
      target.push_back({.num_rows = rows, .seconds = timed(options_.verify_seconds(rows))});
      drafter.push_back({.num_rows = rows, .seconds = timed(draft_pass_seconds(rows))});
    }
    policy_.start_from(target);
    if (options_.has_model) policy_.start_from(0, drafter);
  }

  struct Total {
    double seconds = 0;
    int64_t tokens = 0;
    double tokens_per_second() const { return tokens / seconds; }
  };

  // Runs until even the slowest request has emitted this many more tokens.
  Total run(int64_t tokens_per_request) {
    Total total;
    std::vector<int64_t> goals;
    for (const State& state : states_) goals.push_back(state.tokens + tokens_per_request);
    const auto done = [&] {
      for (size_t i = 0; i < states_.size(); ++i) {
        if (states_[i].tokens < goals[i]) return false;
      }
      return true;
    };
    while (!done()) step(total);
    return total;
  }

  // All requests end, and as many others come.
  void begin_anew() {
    for (State& state : states_) {
      policy_.finish(static_cast<uint64_t>(state.request), static_cast<int>(state.tokens));
      begin(state);
    }
  }

  const DraftPolicy& policy() const { return policy_; }
  const std::vector<int>& lengths() const { return lengths_; }  // verified, of every decision

 private:
  struct State {
    int request = 0;
    DraftTree tree;
    int64_t tokens = 0;
    int64_t seen = 0;  // by the draft model; less than 0 before it has seen the prompt
    // The text to come; a draft is right where it agrees with it.
    std::map<int64_t, int32_t> text;
  };

  void begin(State& state) {
    state = {.request = num_begun_++, .tree = {}, .seen = -options_.num_prompt_tokens, .text = {}};
  }

  bool is_fixed() const { return options_.fixed_depth >= 0; }

  double measured(double seconds) {
    std::normal_distribution<double> noise(0.0, options_.noise);
    std::uniform_real_distribution<double> uniform;
    double result = seconds * std::exp(noise(random_));
    if (uniform(random_) < options_.outlier_rate) result *= 1 + 9 * uniform(random_);
    return result;
  }

  // The quickest of several passes, as the engine times them.
  double timed(double seconds) {
    return std::min({measured(seconds), measured(seconds), measured(seconds)});
  }

  double draft_pass_seconds(int rows) const {
    return options_.pass_seconds * (1 + 0.02 * (rows - 1));
  }

  int32_t text_at(State& state, int64_t position) {
    const auto [it, is_new] = state.text.try_emplace(position, 0);
    if (is_new) it->second = static_cast<int32_t>(random_() % 1000);
    return it->second;
  }

  // A child that is right with the probability of its depth, and wrong below a wrong node.
  int extend(int request, int node) {
    State& state = states_[request];
    const int depth = state.tree.depth(node) + 1;
    const int32_t truth = text_at(state, state.tokens + depth - 1);
    std::uniform_real_distribution<double> uniform;
    const bool right = uniform(random_) < options_.acceptance(state.request, state.tokens, depth);
    return state.tree.add(node, right ? truth : 1000 + depth, state.tree.survival(node) * 0.9f, 0);
  }

  TreeShape shape() const {
    return {.width = options_.width, .max_nodes = options_.width * options_.max_depth};
  }

  // The others of a level, all wrong.
  void add_others(int request, int node) {
    DraftTree& tree = states_[request].tree;
    const int parent = tree.parents()[node];
    for (int i = 1; i < options_.width; ++i) {
      tree.add(parent, 1000 * (i + 1) + tree.depth(node), tree.survival(node), 0);
    }
  }

  void draft_cheap() {
    std::uniform_real_distribution<double> uniform;
    for (int i = 0; i < options_.num_requests; ++i) {
      if (uniform(random_) >= options_.hit_rate(states_[i].request, states_[i].tokens)) continue;
      int node = 0;
      const int depth = is_fixed() ? options_.fixed_depth : options_.max_depth;
      for (int j = 0; j < depth; ++j) node = extend(i, node);
    }
  }

  double draft_passes(DraftPlan& plan) {
    std::vector<DraftPolicy::Ask> asks;
    for (int i = 0; i < options_.num_requests; ++i) {
      asks.push_back({.sequence = static_cast<uint64_t>(states_[i].request),
                      .max_depth = options_.max_depth,
                      .num_unseen = static_cast<int>(states_[i].tokens - states_[i].seen) + 1,
                      .num_remaining = 1000000,
                      .tree = nullptr});
    }
    if (options_.levels) {
      num_levels_ = policy_.plan(plan, 0, asks, {.same_depth = true, .shape = shape()});
    } else if (!is_fixed()) {
      policy_.plan(plan, 0, asks, {.same_depth = false});
    }
    const int length = options_.levels ? num_levels_ : options_.fixed_depth;
    for (auto& ask : asks) ask.depth = std::max(ask.depth, length);
    double total = 0;
    std::vector<int> frontier(asks.size(), -1);
    for (size_t i = 0; i < asks.size(); ++i) frontier[i] = asks[i].depth > 0 ? 0 : -1;
    for (int depth = 1; depth <= options_.max_depth; ++depth) {
      int rows = 0;
      for (size_t i = 0; i < asks.size(); ++i) {
        if (frontier[i] < 0) continue;
        rows += depth == 1 ? asks[i].num_unseen : options_.width;
        states_[i].seen = states_[i].tokens + depth;
      }
      if (rows == 0) break;
      const double seconds = draft_pass_seconds(rows);
      if (!is_fixed()) policy_.record_pass(plan, 0, rows, measured(seconds));
      total += seconds;
      std::vector<FrontierNode> grown;
      std::vector<size_t> of_grown;
      for (size_t i = 0; i < asks.size(); ++i) {
        if (frontier[i] < 0) continue;
        frontier[i] = extend(static_cast<int>(i), frontier[i]);
        add_others(static_cast<int>(i), frontier[i]);
        grown.push_back({.sequence = static_cast<uint64_t>(states_[i].request),
                         .tree = &states_[i].tree,
                         .node = frontier[i]});
        of_grown.push_back(i);
      }
      if (is_fixed() || options_.levels) {
        if (depth == length) break;
        continue;
      }
      policy_.plan_pass(plan, 0, grown);
      for (size_t i = 0; i < grown.size(); ++i) {
        if (!grown[i].goes_on) frontier[of_grown[i]] = -1;
      }
    }
    return total;
  }

  void step(Total& total) {
    DraftPlan plan = policy_.begin_step(options_.num_requests, 0);
    for (State& state : states_) state.tree.reset(0);
    double seconds = 0;
    if (options_.has_model) {
      seconds += draft_passes(plan);
    } else {
      draft_cheap();
    }
    std::vector<DraftPolicy::Draft> drafts;
    for (int i = 0; i < options_.num_requests; ++i) {
      drafts.push_back({.sequence = static_cast<uint64_t>(states_[i].request),
                        .tree = &states_[i].tree,
                        .max_nodes = options_.max_depth});
    }
    if (!options_.levels && !is_fixed()) policy_.choose(plan, drafts);
    int rows = options_.num_requests;
    for (int i = 0; i < options_.num_requests; ++i) {
      State& state = states_[i];
      rows += state.tree.num_drafts();
      lengths_.push_back(state.tree.num_drafts());
      std::vector<int32_t> tokens;
      int node = 0;
      while (true) {
        const int64_t position = state.tokens + static_cast<int64_t>(tokens.size());
        tokens.push_back(text_at(state, position));
        node = state.tree.find_child(node, tokens.back());
        if (node < 0) break;
      }
      state.text.erase(state.text.begin(), state.text.lower_bound(state.tokens));
      state.tokens += static_cast<int64_t>(tokens.size());
      state.seen = std::min(state.seen, state.tokens);
      total.tokens += static_cast<int64_t>(tokens.size());
      DraftPolicy::Outcome outcome{.sequence = static_cast<uint64_t>(state.request),
                                   .tokens = tokens};
      if (options_.levels) {
        outcome.levels = {.num_levels = num_levels_,
                          .num_drafts = state.tree.num_drafts(),
                          .num_accepted = static_cast<int>(tokens.size()) - 1};
      }
      if (!is_fixed()) policy_.record(plan, outcome);
    }
    const double verify = options_.verify_seconds(rows);
    if (!is_fixed()) policy_.end_step(plan, measured(verify));
    total.seconds += seconds + verify;
  }

  DraftWorldOptions options_;
  std::mt19937 random_;
  DraftPolicy policy_;
  std::vector<State> states_;
  int num_begun_ = 0;
  int num_levels_ = 0;  // of the step under way
  std::vector<int> lengths_;
};

// Tokens a second if every draft has this depth; 0: without drafts.
inline double fixed_rate(DraftWorldOptions options, int depth) {
  options.fixed_depth = depth;
  return DraftWorld(options).run(4000).tokens_per_second();
}

// ... of the best depth.
inline double best_fixed_rate(const DraftWorldOptions& options) {
  double best = 0;
  for (int depth = 0; depth <= options.max_depth; ++depth) {
    best = std::max(best, fixed_rate(options, depth));
  }
  return best;
}

}  // namespace specdec::testing
