#include "comm/system_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#if !defined(__linux__)
#include <fcntl.h>
#endif

namespace specdec::system {
namespace {

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

}  // namespace

#if defined(__linux__)

int new_tcp_socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0); }

int accept_tcp(int listener, sockaddr* peer, socklen_t* length) {
  return accept4(listener, peer, length, SOCK_CLOEXEC);
}

void keep_alive(int socket) {
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

int send_flags(bool more) { return MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0); }

#else

namespace {

int prepared(int socket) {
  if (socket < 0) return socket;
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  set(socket, SOL_SOCKET, SO_NOSIGPIPE, 1);
  return socket;
}

}  // namespace

int new_tcp_socket(int family) { return prepared(socket(family, SOCK_STREAM, 0)); }

int accept_tcp(int listener, sockaddr* peer, socklen_t* length) {
  return prepared(accept(listener, peer, length));
}

void keep_alive(int socket) {
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPALIVE, 10);  // called TCP_KEEPIDLE elsewhere
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

int send_flags(bool) { return MSG_DONTWAIT; }

#endif

}  // namespace specdec::system
