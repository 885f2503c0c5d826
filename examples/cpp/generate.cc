// Loads a checkpoint by path and continues a prompt of token ids, which it prints as they come:
//   generate /path/to/checkpoint 1 2 3
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "specdec/engine.h"
#include "specdec/error.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: generate CHECKPOINT TOKEN_ID ...\n";
    return 2;
  }
  std::vector<int32_t> prompt;
  for (int i = 2; i < argc; ++i) prompt.push_back(std::atoi(argv[i]));

  try {
    specdec::EngineConfig config;
    config.model = argv[1];
    specdec::Engine engine(config);

    specdec::SamplingParams params;
    params.temperature = 0.0f;
    params.max_tokens = 16;
    engine.generate({prompt}, params, [](const specdec::RequestOutput& output) {
      for (int32_t token : output.outputs[0].new_token_ids) std::cout << token << ' ' << std::flush;
      return true;  // go on
    });
    std::cout << '\n';
  } catch (const specdec::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
