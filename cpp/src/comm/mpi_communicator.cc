#include "comm/mpi_communicator.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/message_communicator.h"
#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using Clock = std::chrono::steady_clock;

// Handles are pointers in both interfaces; every status is ignored, by a null pointer in both.
using Handle = void*;
constexpr int kTold = 0;  // the tag of what ends a group; groups' messages have their own from 1
const char* const kGone = "left the group";
// Messages of a rank that has left arrive within that time, whatever way they take.
constexpr std::chrono::milliseconds kLastWords{500};
constexpr int kYields = 2000;  // before a rank that waits sleeps between two looks
constexpr std::chrono::microseconds kSleep{100};

struct Farewell {
  int32_t is_failure = 0;  // 0: the rank leaves
  int32_t rank = 0;        // whose failure it is
  char cause[248] = {};
};

// The functions of the library. Calls are made by one thread at a time.
struct Library {
  int (*init_thread)(int*, char***, int, int*);
  int (*initialized)(int*);
  int (*finalized)(int*);
  int (*query_thread)(int*);
  int (*finalize)();
  int (*comm_dup)(Handle, Handle*);
  int (*comm_rank)(Handle, int*);
  int (*comm_size)(Handle, int*);
  int (*comm_set_errhandler)(Handle, Handle);
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*irecv)(void*, int, Handle, int, int, Handle, Handle*);
  int (*test)(Handle*, int*, void*);
  int (*cancel)(Handle*);
  int (*request_free)(Handle*);
  int (*error_string)(int, char*, int*);
  Handle world;
  Handle byte;
  Handle errors_return;
  int thread_serialized;
  int thread_multiple;
  std::mutex calling;
  bool may_finalize = false;  // this library started MPI, and no group has failed

  explicit Library(const std::string& name);
  ~Library() {
    int is_over = 1;
    if (may_finalize && finalized(&is_over) == 0 && is_over == 0) finalize();
  }
};

Library::Library(const std::string& name) {
  const char* const usual[] = {"libmpi.so.40", "libmpi_abi.so.1"};
  void* opened = nullptr;
  std::string tried;
  for (const char* each : usual) {
    const std::string file = name.empty() ? each : name;
    opened = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (opened != nullptr) break;
    tried += str_cat(tried.empty() ? "" : "; ", dlerror());
    if (!name.empty()) break;
  }
  if (opened == nullptr) {
    throw Unavailable(
        str_cat("MPI: no library (", tried,
                "); install Open MPI, or MPICH 5, or give the path of libmpi.so.40 or "
                "libmpi_abi.so.1"));
  }
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(opened, symbol));
    if (function == nullptr) throw Unavailable(str_cat("MPI: the library has no ", symbol));
  };
  find(init_thread, "MPI_Init_thread");
  find(initialized, "MPI_Initialized");
  find(finalized, "MPI_Finalized");
  find(query_thread, "MPI_Query_thread");
  find(finalize, "MPI_Finalize");
  find(comm_dup, "MPI_Comm_dup");
  find(comm_rank, "MPI_Comm_rank");
  find(comm_size, "MPI_Comm_size");
  find(comm_set_errhandler, "MPI_Comm_set_errhandler");
  find(isend, "MPI_Isend");
  find(irecv, "MPI_Irecv");
  find(test, "MPI_Test");
  find(cancel, "MPI_Cancel");
  find(request_free, "MPI_Request_free");
  find(error_string, "MPI_Error_string");
  Dl_info info{};
  const bool has_file = dladdr(reinterpret_cast<void*>(init_thread), &info) != 0;
  if (dlsym(opened, "ompi_mpi_comm_world") != nullptr) {
    find(world, "ompi_mpi_comm_world");
    find(byte, "ompi_mpi_byte");
    find(errors_return, "ompi_mpi_errors_return");
    thread_serialized = 2;
    thread_multiple = 3;
  } else if (has_file && std::strstr(info.dli_fname, "libmpi_abi") != nullptr) {
    world = reinterpret_cast<Handle>(0x101);
    byte = reinterpret_cast<Handle>(0x247);
    errors_return = reinterpret_cast<Handle>(0x143);
    thread_serialized = 2048;
    thread_multiple = 4096;
  } else {
    throw Unavailable(
        str_cat("MPI: ", has_file ? info.dli_fname : "the library",
                " is neither Open MPI nor has the interface of MPI 5; give the path of "
                "libmpi.so.40 or libmpi_abi.so.1"));
  }
}

// Loaded and started once a process: MPI cannot start twice.
Library& start_mpi(const std::string& name) {
  static Library mpi(name);
  const std::lock_guard lock(mpi.calling);
  int is_started = 0, is_over = 0, threads = 0;
  mpi.initialized(&is_started);
  mpi.finalized(&is_over);
  if (is_over != 0) throw Unavailable("MPI: has ended in this process; start the ranks again");
  if (is_started == 0) {
    if (mpi.init_thread(nullptr, nullptr, mpi.thread_multiple, &threads) != 0)
      throw Unavailable("MPI: MPI_Init_thread failed; start the ranks with mpirun");
    mpi.may_finalize = true;
  }
  mpi.query_thread(&threads);
  if (threads < mpi.thread_serialized)
    throw Unavailable(
        "MPI: the library does not let several threads call it (MPI_THREAD_SERIALIZED)");
  return mpi;
}

// What the groups of a process share.
class MpiJob {
 public:
  explicit MpiJob(Library& mpi) : mpi(mpi) {
    const std::lock_guard lock(mpi.calling);
    if (mpi.comm_dup(mpi.world, &comm) != 0)  // its tags are this engine's own
      throw Unavailable("MPI: MPI_Comm_dup failed");
    mpi.comm_set_errhandler(comm, mpi.errors_return);
    mpi.comm_rank(comm, &rank);
    mpi.comm_size(comm, &size);
    peers_.resize(size);
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      mpi.irecv(&peers_[other].told, sizeof(Farewell), mpi.byte, other, kTold, comm,
                &peers_[other].hearing);
    }
  }
  ~MpiJob() {
    const std::lock_guard lock(mpi.calling);
    if (!failure_) {
      failure_.emplace();  // lives until the sends below have ended
      tell();
    }
    const auto deadline = Clock::now() + kLastWords;
    for (Peer& peer : peers_) {
      int done = 0;
      while (peer.telling != nullptr && done == 0 && Clock::now() < deadline &&
             mpi.test(&peer.telling, &done, nullptr) == 0)
        std::this_thread::yield();
      if (peer.hearing == nullptr || peer.has_left) continue;
      mpi.cancel(&peer.hearing);
      for (done = 0; done == 0 && Clock::now() < deadline;)
        if (mpi.test(&peer.hearing, &done, nullptr) != 0) break;
    }
  }

  uint32_t new_group() { return ++num_groups_ * static_cast<uint32_t>(size) + rank; }

  void fail(int of, std::string_view cause) noexcept {
    const std::lock_guard lock(mpi.calling);
    fail_locked(of, cause);
  }
  void fail_locked(int of, std::string_view cause) noexcept {
    if (failure_) return;
    set_failure(of, cause);
    tell();
  }

  // Takes what the others have told.
  void listen() {
    const std::lock_guard lock(mpi.calling);
    for (int other = 0; other < size; ++other) {
      Peer& peer = peers_[other];
      int done = 0;
      if (other == rank || peer.has_left) continue;
      if (mpi.test(&peer.hearing, &done, nullptr) != 0 || done == 0) continue;
      peer.has_left = true;
      peer.left_at = Clock::now();
      if (peer.told.is_failure != 0) set_failure(peer.told.rank, peer.told.cause);
    }
  }
  void check(const char* operation) {
    const std::lock_guard lock(mpi.calling);
    if (failure_) throw RankFailure(failure_->rank, operation, failure_->cause);
  }
  bool is_gone(int other) {
    const std::lock_guard lock(mpi.calling);
    return peers_[other].has_left && Clock::now() - peers_[other].left_at > kLastWords;
  }
  std::string text_of(int error) {
    char text[512] = "unknown error";
    int length = 0;
    mpi.error_string(error, text, &length);
    return str_cat("MPI: ", text);
  }

  Library& mpi;
  Handle comm = nullptr;
  int rank = 0;
  int size = 1;

 private:
  struct Peer {
    Farewell told;
    Handle hearing = nullptr;
    Handle telling = nullptr;
    bool has_left = false;
    Clock::time_point left_at;
  };
  void set_failure(int of, std::string_view cause) {
    if (failure_) return;
    mpi.may_finalize = false;  // it would wait for the rank that is gone
    failure_.emplace();
    failure_->is_failure = 1;
    failure_->rank = of;
    std::memcpy(failure_->cause, cause.data(), std::min(cause.size(), sizeof failure_->cause - 1));
  }
  void tell() {
    for (int other = 0; other < size; ++other) {
      if (other != rank && !peers_[other].has_left)
        mpi.isend(&*failure_, sizeof(Farewell), mpi.byte, other, kTold, comm,
                  &peers_[other].telling);
    }
  }

  std::vector<Peer> peers_;
  std::optional<Farewell> failure_;
  uint32_t num_groups_ = 1;
};

class MpiCommunicator final : public MessageCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiJob> job, uint32_t group, int first, int size,
                  std::chrono::milliseconds timeout)
      : MessageCommunicator(job->rank - first, size, timeout),
        job_(std::move(job)),
        tag_(static_cast<int>(group)),
        first_(first),
        sends_(size),
        receives_(size) {}
  ~MpiCommunicator() override { end_requests(); }

  std::unique_ptr<Communicator> subgroup(int first, int size) override {
    SPECDEC_CHECK(first >= 0 && first <= rank() && rank() < first + size &&
                  first + size <= this->size());
    uint32_t group = job_->new_group();
    for (int other = first + 1; rank() == first && other < first + size; ++other)
      send(other, std::as_bytes(std::span(&group, 1)));
    if (rank() != first) receive(first, std::as_writable_bytes(std::span(&group, 1)));
    return std::make_unique<MpiCommunicator>(job_, group, first_ + first, size, timeout());
  }

  void abort(std::string_view cause) noexcept override { fail(rank(), cause); }

 protected:
  size_t write_some(int rank, std::span<const std::byte> bytes, bool) override {
    const std::lock_guard lock(job_->mpi.calling);
    int error = 0;
    if (sends_[rank] == nullptr) {
      error = job_->mpi.isend(bytes.data(), static_cast<int>(bytes.size()), job_->mpi.byte,
                              first_ + rank, tag_, job_->comm, &sends_[rank]);
    }
    return finished(rank, sends_[rank], error, bytes.size());
  }
  size_t read_some(int rank, std::span<std::byte> bytes) override {
    const std::lock_guard lock(job_->mpi.calling);
    int error = 0;
    if (receives_[rank] == nullptr) {
      error = job_->mpi.irecv(bytes.data(), static_cast<int>(bytes.size()), job_->mpi.byte,
                              first_ + rank, tag_, job_->comm, &receives_[rank]);
    }
    return finished(rank, receives_[rank], error, bytes.size());
  }
  void wait(std::span<const Pending> pending, std::chrono::milliseconds longest) override {
    job_->listen();
    if (pending.empty()) job_->listen();  // the first look may only bring in what the second sees
    for (const Pending& each : pending)
      if (job_->is_gone(first_ + each.rank)) fail(each.rank, kGone);
    if (longest.count() == 0) num_waits_ = 0;
    if (++num_waits_ < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  void fail(int rank, std::string_view cause) noexcept override {
    job_->fail(first_ + rank, cause);
  }
  void check(const char* operation) override {
    try {
      job_->check(operation);
    } catch (...) {
      end_requests();  // their bytes are about to go
      throw;
    }
  }

 private:
  // A request moves all of its bytes or, so far, none.
  size_t finished(int rank, Handle& request, int error, size_t num_bytes) {
    int done = 0;
    if (error == 0) error = job_->mpi.test(&request, &done, nullptr);
    if (error != 0) job_->fail_locked(first_ + rank, job_->text_of(error));
    if (done == 0) return 0;
    request = nullptr;
    num_waits_ = 0;
    return num_bytes;
  }

  void end_requests() {
    const std::lock_guard lock(job_->mpi.calling);
    for (auto* requests : {&sends_, &receives_}) {
      for (Handle& request : *requests) {
        if (request == nullptr) continue;
        job_->mpi.cancel(&request);
        job_->mpi.request_free(&request);
        request = nullptr;
      }
    }
  }

  std::shared_ptr<MpiJob> job_;
  int tag_;
  int first_;
  std::vector<Handle> sends_;  // by rank; null: none
  std::vector<Handle> receives_;
  int num_waits_ = 0;  // since something moved
};

}  // namespace

std::unique_ptr<Communicator> join_mpi_group(std::chrono::milliseconds timeout,
                                             const std::string& library) {
  auto job = std::make_shared<MpiJob>(start_mpi(library));
  const int size = job->size;
  return std::make_unique<MpiCommunicator>(std::move(job), /*group=*/1, 0, size, timeout);
}

}  // namespace specdec
