/* Shared by the benchmark's upstream and client: time, buffers, one epoll loop. */
#ifndef INFERD_EVENT_LOOP_H
#define INFERD_EVENT_LOOP_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline int64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static inline void fatal(const char *what)
{
    perror(what);
    exit(2);
}

/* Bytes that wait: to be parsed, or to be written. */
struct buffer {
    char *data;
    size_t size, room;
};

static inline void append(struct buffer *to, const char *data, size_t size)
{
    if (to->size + size + 1 > to->room) {
        to->room = (to->size + size + 1) * 2;
        to->data = realloc(to->data, to->room);
        if (to->data == NULL)
            fatal("memory");
    }
    memcpy(to->data + to->size, data, size);
    to->size += size;
    to->data[to->size] = '\0';
}

static inline void drop(struct buffer *from, size_t size)
{
    memmove(from->data, from->data + size, from->size - size + 1);
    from->size -= size;
}

static inline void prepare_socket(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

static inline void watch(int loop, int fd, uint32_t events, void *owner, int how)
{
    struct epoll_event event = {.events = events, .data.ptr = owner};
    if (epoll_ctl(loop, how, fd, &event) < 0)
        fatal("epoll_ctl");
}

static inline struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

#endif
