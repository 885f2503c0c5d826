#include <array>

#include "model/families/family.h"

namespace specdec {

std::span<const Family* const> families() {
  static constexpr std::array kFamilies = {
      &kLlama,  &kMistral, &kQwen2, &kQwen3,   &kOpt,   &kMixtral, &kQwen3Moe,
      &kGemma2, &kGemma3,  &kPhi3,  &kGranite, &kOlmo2, &kGptNeox,
  };
  return kFamilies;
}

}  // namespace specdec
