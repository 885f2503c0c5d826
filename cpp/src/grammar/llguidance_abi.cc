#include "grammar/llguidance_abi.h"

#include <dlfcn.h>

#include <string_view>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec::llguidance {
namespace {

template <class Function>
void find(void* handle, const std::string& library, const char* name, Function& function) {
  void* address = dlsym(handle, name);
  if (address == nullptr) {
    throw InvalidArgument("library", str_cat(library, " has no function ", name,
                                             "; give one of llguidance 1.7 or later"));
  }
  function = reinterpret_cast<Function>(address);
}

}  // namespace

Functions::Functions(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw InvalidArgument("library", str_cat("cannot open llguidance: ", dlerror()));
  }
  find(handle, library, "llg_get_version", get_version);
  find(handle, library, "llg_new_tokenizer_v2", new_tokenizer);
  find(handle, library, "llg_free_tokenizer", free_tokenizer);
  find(handle, library, "llg_constraint_init_set_defaults", set_defaults);
  find(handle, library, "llg_new_matcher", new_matcher);
  find(handle, library, "llg_clone_matcher", clone_matcher);
  find(handle, library, "llg_free_matcher", free_matcher);
  find(handle, library, "llg_matcher_get_error", get_error);
  find(handle, library, "llg_matcher_get_mask_byte_size", mask_byte_size);
  find(handle, library, "llg_matcher_compute_mask_into", compute_mask_into);
  find(handle, library, "llg_matcher_consume_token", consume_token);
  find(handle, library, "llg_matcher_is_accepting", is_accepting);
  find(handle, library, "llg_matcher_is_stopped", is_stopped);
  find(handle, library, "llg_matcher_compute_ff_tokens", compute_ff_tokens);
  if (!std::string_view(get_version()).starts_with("llguidance@1.")) {
    throw InvalidArgument("library", str_cat(library, " is ", get_version(),
                                             ", but version 1 of llguidance is needed"));
  }
}

}  // namespace specdec::llguidance
