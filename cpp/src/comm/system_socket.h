// The calls and options of TCP sockets in which operating systems differ. Sockets are closed when
// the process starts another program, and a peer that is gone raises no signal.
#pragma once

#include <sys/socket.h>

namespace specdec::system {

// Both: -1 with errno.
int new_tcp_socket(int family);
int accept_tcp(int listener, sockaddr* peer, socklen_t* length);

// A host that vanishes without closing its connection is noticed in half a minute.
void keep_alive(int socket);

// Flags of a send() that neither waits nor raises a signal. `more`: another send follows at once.
int send_flags(bool more);

}  // namespace specdec::system
