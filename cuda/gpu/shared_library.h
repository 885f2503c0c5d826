// NVIDIA's libraries, looked for at run time.
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

#include "core/str_cat.h"

namespace specdec::cuda {

// Opens the first of some shared libraries that exists. A library that the process has open already
// (through torch, say) is found by its name alone. Never closed, because objects that use it may be
// destroyed last.
class SharedLibrary {
 public:
  explicit SharedLibrary(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      name_ = name;
      if (library_ != nullptr) break;
      problem_ += str_cat(problem_.empty() ? "there is no " : " or ", name);
    }
    if (library_ != nullptr) problem_.clear();
  }

  template <class Function>
  void bind(Function*& function, const char* symbol) {
    if (library_ == nullptr) return;
    function = reinterpret_cast<Function*>(dlsym(library_, symbol));
    if (function == nullptr) problem_ = str_cat(name_, " has no ", symbol);
  }
  // Why the library cannot be used; empty if it can.
  const std::string& problem() const { return problem_; }

 private:
  void* library_ = nullptr;
  std::string name_;
  std::string problem_;
};

}  // namespace specdec::cuda
