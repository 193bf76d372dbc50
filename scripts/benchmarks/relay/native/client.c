/* The benchmark's load: many chat requests over kept connections, every event of a stream checked.
 *
 * client PORT KEY MODEL CONNECTIONS TOKENS SECONDS RATE BODY_BYTES stream|whole
 * RATE 0: each connection sends its next request when the last has ended (they begin spread over the
 * first second); else RATE requests a second are begun, on idle connections, whatever is unanswered.
 * No request begins after SECONDS. Prints a line `EVENTS REQUESTS OPEN` every 250 ms and one JSON
 * object at the end.
 */
#include "event_loop.h"
#include <math.h>

#define BINS 1000      /* of a histogram of times from 1 us on */
#define STEP 1.02      /* from bin to bin */
#define LINE_MAX_BYTES 8192
#define PATIENCE_NS 20000000000 /* for what is open when the time is over */
#define REPORT_NS 250000000

enum part { HEAD, SIZE, DATA, DATA_END, FIXED };

struct connection {
    int fd, busy, status, connected;
    enum part part;
    size_t left;
    int64_t asked_ns, seen_ns;
    int events, lost;
    struct buffer head, line;
    struct connection *next_idle;
};

struct histogram {
    long counts[BINS], all;
};

static struct histogram first, gap, took;
static struct connection *idle;
static struct buffer request;
static long events_seen, requests_done, errors, incomplete, late;
static int loop, open_now, streams, tokens, port;
static int64_t ends_ns;

static void observe(struct histogram *into, int64_t ns)
{
    double us = (double)ns / 1000.0;
    int bin = us > 1.0 ? (int)(log(us) / log(STEP)) : 0;
    if (bin >= BINS)
        bin = BINS - 1;
    into->counts[bin]++;
    into->all++;
}

static double percentile_us(const struct histogram *of, double share)
{
    long left = (long)((double)of->all * share);
    for (int bin = 0; bin < BINS; bin++) {
        left -= of->counts[bin];
        if (left < 0)
            return pow(STEP, bin + 0.5);
    }
    return 0.0;
}

static void reconnect(struct connection *one)
{
    struct sockaddr_in address = loopback(port);
    if (one->connected)
        close(one->fd);
    one->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (one->fd < 0)
        fatal("socket");
    if (connect(one->fd, (struct sockaddr *)&address, sizeof address) < 0)
        fatal("connect");
    prepare_socket(one->fd);
    watch(loop, one->fd, EPOLLIN, one, EPOLL_CTL_ADD);
    one->connected = 1;
}

static void finish(struct connection *one, int failed)
{
    int64_t now = now_ns();
    one->busy = 0;
    open_now--;
    if (failed || one->status != 200)
        errors++;
    else if (streams && one->events != tokens)
        incomplete++;
    else {
        requests_done++;
        observe(&took, now - one->asked_ns);
    }
    if (failed)
        reconnect(one);
    one->next_idle = idle;
    idle = one;
}

/* One line of an event stream: does it carry the text that is due? */
static void read_line(struct connection *one)
{
    char *at = one->line.data ? strstr(one->line.data, "\"content\":\" w") : NULL;
    if (at != NULL) {
        int64_t now = now_ns();
        int number = atoi(at + 13);
        if (number != one->events)
            one->lost = 1;
        if (one->events++ == 0)
            observe(&first, now - one->asked_ns);
        else
            observe(&gap, now - one->seen_ns);
        one->seen_ns = now;
        events_seen++;
    }
    one->line.size = 0;
}

static void body(struct connection *one, const char *data, size_t size)
{
    if (!streams)
        return;
    while (size) {
        const char *end = memchr(data, '\n', size);
        size_t part = end ? (size_t)(end - data) + 1 : size;
        if (one->line.size + part < LINE_MAX_BYTES)
            append(&one->line, data, part);
        if (end)
            read_line(one);
        data += part;
        size -= part;
    }
}

static void head(struct connection *one)
{
    const char *length = strcasestr(one->head.data, "\r\ncontent-length:");
    one->status = atoi(one->head.data + 9);
    one->part = length ? FIXED : SIZE;
    one->left = length ? (size_t)atol(length + 17) : 0;
    one->head.size = 0;
    if (length && one->left == 0)
        finish(one, 0);
}

/* One step through the bytes of an answer; how many it took. */
static size_t step(struct connection *one, const char *data, size_t size)
{
    size_t part = size < one->left ? size : one->left;
    switch (one->part) {
    case HEAD:
        append(&one->head, data, 1);
        if (one->head.size >= 4 && memcmp(one->head.data + one->head.size - 4, "\r\n\r\n", 4) == 0)
            head(one);
        return 1;
    case SIZE:
        append(&one->head, data, 1);
        if (data[0] == '\n') {
            one->left = strtoul(one->head.data, NULL, 16);
            one->head.size = 0;
            one->part = one->left ? DATA : DATA_END;
            if (!one->left)
                one->left = SIZE_MAX; /* the last chunk: its blank line ends the answer */
        }
        return 1;
    case DATA:
        body(one, data, part);
        one->left -= part;
        if (!one->left)
            one->part = DATA_END;
        return part;
    case DATA_END:
        if (data[0] == '\n') {
            if (one->left == SIZE_MAX)
                finish(one, one->lost);
            else
                one->part = SIZE;
        }
        return 1;
    case FIXED:
        one->left -= part;
        if (!one->left)
            finish(one, 0);
        return part;
    }
    return size;
}

static void readable(struct connection *one)
{
    char block[65536];
    ssize_t count;
    while ((count = read(one->fd, block, sizeof block)) > 0)
        for (size_t at = 0; at < (size_t)count && one->busy;)
            at += step(one, block + at, (size_t)count - at);
    if (count < 0 && errno == EAGAIN)
        return;
    if (one->busy)
        finish(one, 1);
    else
        reconnect(one);
}

static void begin(struct connection *one)
{
    one->busy = 1;
    one->part = HEAD;
    one->head.size = one->line.size = 0;
    one->events = one->lost = 0;
    one->asked_ns = now_ns();
    open_now++;
    if (write(one->fd, request.data, request.size) != (ssize_t)request.size)
        finish(one, 1); /* requests here fit a socket's buffer */
}

static void write_request(const char *key, const char *model, int body_bytes)
{
    struct buffer text = {0};
    char part[2048];
    append(&text, part, (size_t)snprintf(part, sizeof part,
        "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"", model));
    while ((int)text.size < body_bytes - 64)
        append(&text, "What holds at peak? ", 20);
    append(&text, part, (size_t)snprintf(part, sizeof part,
        "Go.\"}],\"max_tokens\":%d,\"stream\":%s}", tokens, streams ? "true" : "false"));
    append(&request, part, (size_t)snprintf(part, sizeof part,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n"
        "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", port, key, text.size));
    append(&request, text.data, text.size);
}

static void report(double seconds)
{
    printf("{\"seconds\":%.3f,\"requests\":%ld,\"events\":%ld,\"errors\":%ld,\"incomplete\":%ld,"
        "\"late\":%ld,\"ttft_us\":[%.1f,%.1f],\"gap_us\":[%.1f,%.1f],\"took_us\":[%.1f,%.1f]}\n",
        seconds, requests_done, events_seen, errors, incomplete, late,
        percentile_us(&first, 0.5), percentile_us(&first, 0.99), percentile_us(&gap, 0.5),
        percentile_us(&gap, 0.99), percentile_us(&took, 0.5), percentile_us(&took, 0.99));
}

/* Begin what is due. `all` connections; `begun` requests so far by the clock. */
static long begin_due(struct connection *all, int connections, double rate, long begun, int64_t since)
{
    double elapsed = (double)(now_ns() - since) / 1e9;
    if (now_ns() > ends_ns)
        return begun;
    if (rate > 0) {
        while (begun < (long)(elapsed * rate)) {
            begun++;
            if (idle == NULL) {
                late++;
                continue;
            }
            struct connection *one = idle;
            idle = one->next_idle;
            begin(one);
        }
        return begun;
    }
    while (begun < connections && begun <= (long)(elapsed * connections))
        begin(&all[begun++]);
    for (struct connection *one = idle; one != NULL;) {
        struct connection *next = one->next_idle;
        begin(one);
        one = next;
    }
    idle = NULL;
    return begun;
}

int main(int count, char **given)
{
    if (count != 10) {
        fprintf(stderr, "usage: client PORT KEY MODEL CONNECTIONS TOKENS SECONDS RATE BODY_BYTES "
            "stream|whole\n");
        return 2;
    }
    struct epoll_event ready[512];
    int connections = atoi(given[4]);
    double rate = atof(given[7]);
    struct connection *all = calloc((size_t)connections, sizeof *all);
    port = atoi(given[1]);
    tokens = atoi(given[5]);
    streams = strcmp(given[9], "stream") == 0;
    write_request(given[2], given[3], atoi(given[8]));
    signal(SIGPIPE, SIG_IGN);
    loop = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        reconnect(&all[i]);
        if (rate > 0) {
            all[i].next_idle = idle;
            idle = &all[i];
        }
    }
    int64_t since = now_ns(), told = since;
    long begun = 0;
    ends_ns = since + (int64_t)(atof(given[6]) * 1e9);
    while (now_ns() < ends_ns || (open_now && now_ns() < ends_ns + PATIENCE_NS)) {
        begun = begin_due(all, connections, rate, begun, since);
        int some = epoll_wait(loop, ready, 512, 1);
        for (int i = 0; i < some; i++)
            readable(ready[i].data.ptr);
        if (now_ns() - told > REPORT_NS) {
            told = now_ns();
            printf("%ld %ld %d\n", events_seen, requests_done, open_now);
            fflush(stdout);
        }
    }
    errors += open_now;
    report((double)(now_ns() - since) / 1e9);
    return 0;
}
