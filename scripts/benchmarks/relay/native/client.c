/* The benchmark's load: many chat requests over kept connections, every event of a stream checked.
 *
 * client PORT KEY MODEL CONNECTIONS TOKENS SECONDS RATE BODY_BYTES stream|whole [steered]
 * RATE 0: each connection sends its next request when the last has ended (they begin spread over the
 * first second); else RATE requests a second are begun, on idle connections, whatever is unanswered.
 * No request begins after SECONDS. Prints a line `EVENTS REQUESTS OPEN` every 250 ms and one JSON
 * object at the end.
 * Steered, lines of standard input say what to do instead of SECONDS and RATE: `open N` keeps N
 * requests open (begun at RATE a second; with less than are open none is begun), `rate R` begins R
 * a second, `report` prints the JSON object and begins its times anew. A stream may then end before
 * TOKENS, properly. With the end of the input no request begins any more.
 */
#include "event_loop.h"
#include <math.h>
#include <sys/resource.h>

#define BINS 1000      /* of a histogram of times from 1 us on */
#define STEP 1.02      /* from bin to bin */
#define LINE_MAX_BYTES 8192
#define PATIENCE_NS 20000000000 /* for what is open when the time is over */
#define REPORT_NS 250000000

enum part { HEAD, SIZE, DATA, DATA_END, FIXED };

struct connection {
    int fd, busy, status, connected, done;
    enum part part;
    size_t left, written;
    int64_t asked_ns, seen_ns;
    int events, lost;
    struct buffer head, line;
    struct connection *next_idle;
};

struct histogram {
    long counts[BINS], all;
    int64_t most_ns;
};

static struct histogram first, gap, took;
static struct connection *idle;
static struct buffer request;
static long events_seen, requests_done, errors, incomplete, late, disordered;
static int loop, open_now, streams, tokens, port;
static int steered, wanted; /* requests that are to be open; -1: as many as the rate brings */
static double rate;
static int64_t ends_ns, since_ns;

static void observe(struct histogram *into, int64_t ns)
{
    double us = (double)ns / 1000.0;
    int bin = us > 1.0 ? (int)(log(us) / log(STEP)) : 0;
    if (bin >= BINS)
        bin = BINS - 1;
    into->counts[bin]++;
    into->all++;
    if (ns > into->most_ns)
        into->most_ns = ns;
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
    else if (streams && (steered ? !one->done : one->events != tokens))
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
        if (number != one->events) {
            one->lost = 1;
            disordered++;
        }
        if (one->events++ == 0)
            observe(&first, now - one->asked_ns);
        else
            observe(&gap, now - one->seen_ns);
        one->seen_ns = now;
        events_seen++;
    } else if (one->line.size >= 12 && memcmp(one->line.data, "data: [DONE]", 12) == 0) {
        one->done = 1;
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

/* As much of the request as the socket takes now. */
static void ask(struct connection *one)
{
    ssize_t count = write(one->fd, request.data + one->written, request.size - one->written);
    if (count < 0 && errno != EAGAIN) {
        finish(one, 1);
        return;
    }
    int waited = one->written > 0;
    one->written += count > 0 ? (size_t)count : 0;
    if (one->written < request.size)
        watch(loop, one->fd, EPOLLIN | EPOLLOUT, one, EPOLL_CTL_MOD);
    else if (waited)
        watch(loop, one->fd, EPOLLIN, one, EPOLL_CTL_MOD);
}

static void begin(struct connection *one)
{
    if (!one->connected)
        reconnect(one);
    one->busy = 1;
    one->part = HEAD;
    one->head.size = one->line.size = 0;
    one->events = one->lost = one->done = 0;
    one->written = 0;
    one->asked_ns = now_ns();
    open_now++;
    ask(one);
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
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
        + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"seconds\":%.3f,\"requests\":%ld,\"events\":%ld,\"errors\":%ld,\"incomplete\":%ld,"
        "\"late\":%ld,\"ttft_us\":[%.1f,%.1f],\"gap_us\":[%.1f,%.1f],\"took_us\":[%.1f,%.1f],"
        "\"gap_max_us\":%.1f,\"disordered\":%ld,\"open\":%d,\"cpu_s\":%.6f}\n",
        seconds, requests_done, events_seen, errors, incomplete, late,
        percentile_us(&first, 0.5), percentile_us(&first, 0.99), percentile_us(&gap, 0.5),
        percentile_us(&gap, 0.99), percentile_us(&took, 0.5), percentile_us(&took, 0.99),
        (double)gap.most_ns / 1e3, disordered, open_now, cpu_s);
}

/* Begin what is due. `all` connections; `begun` requests so far by the clock. */
static long begin_due(struct connection *all, int connections, long begun)
{
    double elapsed = (double)(now_ns() - since_ns) / 1e9;
    if (now_ns() > ends_ns)
        return begun;
    if (rate > 0 || steered) {
        while (begun < (long)(elapsed * rate)) {
            begun++;
            if (wanted >= 0 && open_now >= wanted)
                continue;
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

/* What standard input says; 0 once it has ended. */
static int steer(long *begun)
{
    static struct buffer input;
    char block[4096], *end;
    ssize_t count = read(STDIN_FILENO, block, sizeof block);
    if (count == 0)
        return 0;
    if (count > 0)
        append(&input, block, (size_t)count);
    while (input.size && (end = memchr(input.data, '\n', input.size)) != NULL) {
        if (strncmp(input.data, "open ", 5) == 0) {
            wanted = atoi(input.data + 5);
        } else if (strncmp(input.data, "rate ", 5) == 0) {
            rate = atof(input.data + 5);
            since_ns = now_ns();
            *begun = 0;
        } else {
            report((double)(now_ns() - since_ns) / 1e9);
            fflush(stdout);
            memset(&first, 0, sizeof first);
            memset(&gap, 0, sizeof gap);
            memset(&took, 0, sizeof took);
        }
        drop(&input, (size_t)(end - input.data) + 1);
    }
    return 1;
}

int main(int count, char **given)
{
    if (count != 10 && count != 11) {
        fprintf(stderr, "usage: client PORT KEY MODEL CONNECTIONS TOKENS SECONDS RATE BODY_BYTES "
            "stream|whole [steered]\n");
        return 2;
    }
    struct epoll_event ready[512];
    int connections = atoi(given[4]);
    struct connection *all = calloc((size_t)connections, sizeof *all);
    steered = count == 11;
    wanted = steered ? 0 : -1;
    rate = atof(given[7]);
    port = atoi(given[1]);
    tokens = atoi(given[5]);
    streams = strcmp(given[9], "stream") == 0;
    write_request(given[2], given[3], atoi(given[8]));
    signal(SIGPIPE, SIG_IGN);
    loop = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        if (!steered)
            reconnect(&all[i]);
        if (rate > 0 || steered) {
            all[i].next_idle = idle;
            idle = &all[i];
        }
    }
    int64_t began = now_ns(), told = began;
    long begun = 0;
    since_ns = began;
    ends_ns = steered ? INT64_MAX - PATIENCE_NS : began + (int64_t)(atof(given[6]) * 1e9);
    if (steered)
        fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    while (now_ns() < ends_ns || (open_now && now_ns() < ends_ns + PATIENCE_NS)) {
        if (steered && ends_ns > now_ns() && !steer(&begun))
            ends_ns = now_ns();
        begun = begin_due(all, connections, begun);
        int some = epoll_wait(loop, ready, 512, 1);
        for (int i = 0; i < some; i++) {
            struct connection *one = ready[i].data.ptr;
            if (ready[i].events & EPOLLOUT && one->busy)
                ask(one);
            else
                readable(one);
        }
        if (now_ns() - told > REPORT_NS) {
            told = now_ns();
            printf("%ld %ld %d\n", events_seen, requests_done, open_now);
            fflush(stdout);
        }
    }
    errors += open_now;
    report((double)(now_ns() - began) / 1e9);
    return 0;
}
