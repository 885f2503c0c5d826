// decoder_dump DIRECTORY DTYPE CHUNK OUT TOKEN...: writes the logits of every position of a token
// sequence, float32 [num_tokens, vocab], for comparison with another implementation.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "testing/chain_batch.h"

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: decoder_dump DIRECTORY DTYPE CHUNK OUT TOKEN...\n");
    return 2;
  }
  try {
    const specdec::DType dtype =
        std::string(argv[2]) == "bfloat16" ? specdec::DType::kBF16 : specdec::DType::kF32;
    const int chunk = std::atoi(argv[3]);
    std::vector<int32_t> tokens;
    for (int i = 5; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
    const auto backend = specdec::make_backend({.act_dtype = dtype});
    specdec::testing::ChainRunner runner(argv[1], *backend, static_cast<int>(tokens.size()), chunk);
    const std::vector<float> logits = runner.run(tokens, chunk);
    std::ofstream(argv[4], std::ios::binary)
        .write(reinterpret_cast<const char*>(logits.data()),
               static_cast<std::streamsize>(logits.size() * sizeof(float)));
    std::fprintf(stderr, "%lld parameters, %lld bytes\n",
                 static_cast<long long>(runner.decoder().num_parameters()),
                 static_cast<long long>(runner.decoder().weight_bytes()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
