#include "cuda/emulation/context.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "core/host_memory.h"
#include "core/str_cat.h"
#include "specdec/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Pushes the callee-saved registers, switches stacks, pops them.
extern "C" void specdec_switch_stacks(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl specdec_switch_stacks
.hidden specdec_switch_stacks
.type specdec_switch_stacks, @function
specdec_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size specdec_switch_stacks, . - specdec_switch_stacks
)");
#endif

namespace specdec::cuda::emulation {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kUsableBytes = 252 * 1024;
#else
constexpr size_t kUsableBytes = 60 * 1024;
#endif

// Bytes of a stack: whole pages, and a guard page below them.
size_t stack_bytes() {
  return (kUsableBytes + page_bytes() - 1) / page_bytes() * page_bytes() + page_bytes();
}

}  // namespace

void prepare(Context& context, const Stack& stack, void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack.begin, stack.size_bytes);
#endif
  context.stack_begin = stack.begin;
  context.stack_bytes = stack.size_bytes;
  context.fake_stack = nullptr;
#if defined(__x86_64__)
  // Six registers, the return address, and a null return address for `entry`. The stack pointer is
  // then 8 past a multiple of 16, as after a call.
  auto* top = reinterpret_cast<uint64_t*>(stack.begin + stack.size_bytes);
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  context.stack_pointer = top;
#else
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = stack.begin;
  context.saved.uc_stack.ss_size = stack.size_bytes;
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
#endif
}

void describe_own_stack([[maybe_unused]] Context& context) {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  void* begin = nullptr;
  if (pthread_attr_getstack(&attributes, &begin, &context.stack_bytes) == 0) {
    context.stack_begin = begin;
  }
  pthread_attr_destroy(&attributes);
#endif
}

void switch_context(Context& from, Context& to, [[maybe_unused]] bool from_is_finished) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(from_is_finished ? nullptr : &from.fake_stack, to.stack_begin,
                                 to.stack_bytes);
#endif
#if defined(__x86_64__)
  specdec_switch_stacks(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.saved, &to.saved);
#endif
  enter_context(from);
}

void enter_context([[maybe_unused]] Context& context) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(context.fake_stack, nullptr, nullptr);
#endif
}

StackPool::~StackPool() {
  for (const Mapping& mapping : mappings_) {
#if defined(__SANITIZE_ADDRESS__)
    // Later mappings at these addresses must not inherit the marks of our frames.
    __asan_unpoison_memory_region(mapping.begin, mapping.size_bytes);
#endif
    munmap(mapping.begin, mapping.size_bytes);
  }
}

std::vector<Stack> StackPool::take(size_t count) {
  if (free_.size() < count) {
    const size_t missing = count - free_.size();
    const size_t size_bytes = missing * stack_bytes();
    void* mapped = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes for emulated threads"));
    }
    mappings_.push_back({mapped, size_bytes});
    for (size_t i = 0; i < missing; ++i) {
      unsigned char* begin = static_cast<unsigned char*>(mapped) + i * stack_bytes();
      mprotect(begin, page_bytes(), PROT_NONE);
      // Stack tops have different offsets within 4 KiB; otherwise the frames of a warp's lanes
      // would compete for the same few cache lines.
      const size_t unused_bytes = i * 9 * 64 % 4096;
      free_.push_back({begin + page_bytes(), stack_bytes() - page_bytes() - unused_bytes});
    }
  }
  std::vector<Stack> stacks(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return stacks;
}

void StackPool::give_back(std::vector<Stack> stacks) {
  free_.insert(free_.end(), stacks.begin(), stacks.end());
}

}  // namespace specdec::cuda::emulation
