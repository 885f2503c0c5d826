// Ranks that mpirun has started, over the MPI library they find when they run.
//
// The library is not needed to build this one. Two binary interfaces are known: Open MPI's
// (libmpi.so.40, versions 4 and 5) and MPI 5's own (libmpi_abi.so.1, which MPICH 5 has). Every call
// that waits is one that can be looked after, so that deadlines and aborts hold. A rank that is
// killed ends by the deadline at the latest: most launchers end all ranks of a job when one ends.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace specdec {

// The ranks of MPI_COMM_WORLD, which all call this at the same point. `library`: the path of the
// MPI library; "": the usual names. Throws Unavailable where there is none, or one that does not
// fit.
std::unique_ptr<Communicator> join_mpi_group(std::chrono::milliseconds timeout,
                                             const std::string& library = "");

}  // namespace specdec
