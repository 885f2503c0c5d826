// Speculation with your own drafter; the answer is the same as with plain decoding:
//   custom_drafter /path/to/checkpoint 1 2 3
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <vector>

#include "specdec/engine.h"
#include "specdec/error.h"

// Expects the last token's previous occurrence to repeat itself.
class RepeatDrafter final : public specdec::CustomDrafter {
 public:
  std::vector<std::vector<int32_t>> propose(std::span<const int32_t> tokens,
                                            int max_tokens) override {
    const auto before = tokens.first(tokens.size() - 1);
    const auto match = std::find(before.rbegin(), before.rend(), tokens.back());
    if (match == before.rend()) return {};
    const auto next = match.base();
    const auto length = std::min<std::ptrdiff_t>(max_tokens, before.end() - next);
    return {std::vector<int32_t>(next, next + length)};
  }
};

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: custom_drafter CHECKPOINT TOKEN_ID ...\n";
    return 2;
  }
  std::vector<int32_t> prompt;
  for (int i = 2; i < argc; ++i) prompt.push_back(std::atoi(argv[i]));

  try {
    specdec::EngineConfig config;
    config.model = argv[1];
    specdec::DrafterConfig drafter;
    drafter.method = specdec::DraftMethod::kCustom;
    drafter.custom = std::make_shared<RepeatDrafter>();
    config.speculative.num_speculative_tokens = 4;
    config.speculative.drafters = {drafter};
    specdec::Engine engine(config);

    specdec::SamplingParams params;
    params.temperature = 0.0f;
    params.max_tokens = 32;
    const auto completions = engine.generate({prompt}, params);
    for (int32_t token : completions[0][0].token_ids) std::cout << token << ' ';
    const specdec::AcceptanceStats acceptance = engine.stats().acceptance;
    std::cout << "\ntokens a step with drafts: " << acceptance.mean_acceptance_length() << '\n';
  } catch (const specdec::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
