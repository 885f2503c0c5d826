#include "config/option_checks.h"
#include "core/str_cat.h"
#include "specdec/config.h"
#include "specdec/error.h"
#include "specdec/quantization.h"

namespace specdec {

void EngineConfig::validate() const {
  if (model.empty()) {
    throw InvalidArgument("model", "is empty; give the directory of a checkpoint");
  }
  check_options(*this, kEngineOptions);
  parse_quantization(quantization);
  if (kv_cache_memory_bytes > 0 && num_kv_blocks > 0) {
    throw InvalidArgument("num_kv_blocks", "give it or kv_cache_memory_bytes, not both");
  }
  if (block_size % 16 != 0) {
    throw InvalidArgument("block_size", str_cat("must be a multiple of 16, got ", block_size));
  }
  speculative.validate();
}

}  // namespace specdec
