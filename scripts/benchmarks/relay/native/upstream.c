/* A cheap worker for benchmarks: answers as SGLang does, at a set pace, for next to no CPU.
 *
 * upstream PORT EVENTS_PER_S FIRST_EVENT_MS MODEL [PADDING_BYTES]
 * A stream sends its first event after FIRST_EVENT_MS and then EVENTS_PER_S of them a second
 * (0: all at once), as many as max_tokens says; an event's text carries its number and so much padding. A whole answer
 * comes at once. `GET /bench` tells how many events it has sent and how many streams are open;
 * `GET /bench?pace=N` sets the pace of all streams, `GET /bench?end=N` ends N of them with their next
 * event. Ends on SIGTERM.
 */
#include "event_loop.h"

#define SLOTS 4096 /* of a wheel that turns one slot a millisecond */
#define DEFAULT_TOKENS 16
#define NAME_MAX_BYTES 256
#define PADDING_MAX_BYTES 6000

struct connection {
    int fd;
    struct buffer in, out;
    struct connection *next; /* in its slot of the wheel, or of those to be freed */
    int64_t due_ns;
    int streams, tokens, sent, closed, queued;
    char id[NAME_MAX_BYTES], model[NAME_MAX_BYTES];
};

static struct connection *wheel[SLOTS], *dead;
static int64_t turned_ms, interval_ns, first_ns;
static int loop, open_streams, padding;
static long events_sent, to_end;
static const char *own_model;

static void set_pace(double events_per_s)
{
    interval_ns = events_per_s > 0 ? (int64_t)(1e9 / events_per_s) : 0;
}

static void schedule(struct connection *one)
{
    int64_t slot_ms = one->due_ns / 1000000 + 1;
    if (slot_ms <= turned_ms)
        slot_ms = turned_ms + 1;
    one->next = wheel[slot_ms % SLOTS];
    wheel[slot_ms % SLOTS] = one;
    one->queued = 1;
}

static void lose(struct connection *one)
{
    if (one->closed)
        return;
    one->closed = 1;
    open_streams -= one->streams;
    close(one->fd);
    if (!one->queued) { /* else the wheel still holds it */
        one->next = dead;
        dead = one;
    }
}

static void flush(struct connection *one)
{
    size_t done = 0;
    while (!one->closed && done < one->out.size) {
        ssize_t count = write(one->fd, one->out.data + done, one->out.size - done);
        if (count < 0 && errno == EAGAIN)
            break;
        if (count <= 0) {
            lose(one);
            return;
        }
        done += (size_t)count;
    }
    if (one->closed)
        return;
    if (done)
        drop(&one->out, done);
    watch(loop, one->fd, EPOLLIN | (one->out.size ? EPOLLOUT : 0), one, EPOLL_CTL_MOD);
}

static void chunk(struct connection *one, const char *data, size_t size)
{
    char head[16];
    append(&one->out, head, (size_t)sprintf(head, "%zx\r\n", size));
    append(&one->out, data, size);
    append(&one->out, "\r\n", 2);
}

static void event(struct connection *one, const char *delta, const char *end)
{
    char text[PADDING_MAX_BYTES + 1024];
    int size = snprintf(text, sizeof text,
        "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":1796073379,"
        "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":null%s},"
        "\"logprobs\":null,%s}]}\n\n", one->id, one->model, delta, end);
    chunk(one, text, (size_t)size);
}

static void next_event(struct connection *one)
{
    char text[PADDING_MAX_BYTES + 512];
    if (one->sent == 0)
        event(one, ",\"role\":\"assistant\",\"content\":\"\"",
            "\"finish_reason\":null,\"matched_stop\":null");
    sprintf(text, ",\"content\":\" w%05d%*s\"", one->sent++, padding, "");
    event(one, text, "\"finish_reason\":null,\"matched_stop\":null");
    events_sent++;
    if (to_end > 0) {
        to_end--;
        one->tokens = one->sent;
    }
    if (one->sent < one->tokens)
        return;
    event(one, "", "\"finish_reason\":\"length\",\"matched_stop\":null");
    int size = snprintf(text, sizeof text,
        "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":1796073379,"
        "\"model\":\"%s\",\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"total_tokens\":%d,"
        "\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":0},"
        "\"reasoning_tokens\":0,\"completion_tokens_details\":null}}\n\n",
        one->id, one->model, 40 + one->tokens, one->tokens);
    chunk(one, text, (size_t)size);
    chunk(one, "data: [DONE]\n\n", 14);
    append(&one->out, "0\r\n\r\n", 5);
    one->streams = 0;
    open_streams--;
}

static void answer(struct connection *one, const char *body)
{
    char head[256];
    size_t size = strlen(body);
    append(&one->out, head, (size_t)sprintf(head,
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
        "content-length: %zu\r\n\r\n", size));
    append(&one->out, body, size);
}

/* What a benchmark asks in the middle of a run. */
static void control(struct connection *one, const char *asked)
{
    char body[256];
    if (strncmp(asked, "?pace=", 6) == 0)
        set_pace(atof(asked + 6));
    else if (strncmp(asked, "?end=", 5) == 0)
        to_end = atol(asked + 5);
    sprintf(body, "{\"sent\":%ld,\"open\":%d}", events_sent, open_streams);
    answer(one, body);
}

static void get(struct connection *one, const char *path)
{
    char body[1024];
    if (strncmp(path, "/bench", 6) == 0)
        control(one, path + 6);
    else if (strncmp(path, "/v1/loads", 9) == 0)
        answer(one, "{\"loads\":[{\"dp_rank\":0,\"num_running_reqs\":0,\"num_waiting_reqs\":0,"
            "\"num_used_tokens\":0,\"max_total_num_tokens\":100000000}]}");
    else if (strncmp(path, "/v1/models", 10) == 0) {
        sprintf(body, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\","
            "\"created\":1,\"owned_by\":\"bench\",\"max_model_len\":131072}]}", own_model);
        answer(one, body);
    } else {
        sprintf(body, "{\"status\":\"ok\",\"is_generation\":true,\"model_path\":\"%s\","
            "\"served_model_name\":\"%s\",\"tokenizer_path\":\"%s\",\"version\":\"0.5.23\","
            "\"tp_size\":1,\"dp_size\":1}", own_model, own_model, own_model);
        answer(one, body);
    }
}

/* The value of a JSON string or number that no other key ends in; what is missing stays. */
static void find(const char *body, const char *key, char *value)
{
    const char *at = strstr(body, key);
    if (at == NULL)
        return;
    at += strlen(key);
    at += strspn(at, " :\"");
    size_t size = strcspn(at, "\",}");
    if (size < NAME_MAX_BYTES) {
        memcpy(value, at, size);
        value[size] = '\0';
    }
}

static void post(struct connection *one, const char *body)
{
    char tokens[NAME_MAX_BYTES] = "", stream[NAME_MAX_BYTES] = "", whole[2048];
    static unsigned count;
    sprintf(one->id, "%032x", ++count);
    strcpy(one->model, own_model);
    find(body, "\"rid\"", one->id);
    find(body, "\"max_tokens\"", tokens);
    find(body, "\"max_completion_tokens\"", tokens);
    find(body, "\"stream\"", stream);
    one->tokens = atoi(tokens) > 0 ? atoi(tokens) : DEFAULT_TOKENS;
    one->sent = 0;
    if (strcmp(stream, "true") != 0) {
        snprintf(whole, sizeof whole,
            "{\"id\":\"%s\",\"object\":\"chat.completion\",\"created\":1796073379,\"model\":\"%s\","
            "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
            "\"The capital of France is Paris.\",\"reasoning_content\":null},\"logprobs\":null,"
            "\"finish_reason\":\"stop\",\"matched_stop\":2}],\"usage\":{\"prompt_tokens\":40,"
            "\"total_tokens\":48,\"completion_tokens\":8,\"prompt_tokens_details\":"
            "{\"cached_tokens\":0},\"reasoning_tokens\":0,\"completion_tokens_details\":null}}",
            one->id, one->model);
        answer(one, whole);
        return;
    }
    const char *head = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
        "content-type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
    append(&one->out, head, strlen(head));
    one->streams = 1;
    open_streams++;
    one->due_ns = now_ns() + first_ns;
    schedule(one);
}

/* The size of a chunked body with all its framing, its bytes moved together in place and ended by
 * a null; 0 while it is not whole. */
static size_t unchunk(char *body, const char *end)
{
    const char *from = body, *line;
    char *to = body;
    while ((line = memmem(from, (size_t)(end - from), "\r\n", 2)) != NULL) {
        size_t size = strtoul(from, NULL, 16);
        if ((size_t)(end - line) < size + 4)
            return 0;
        from = line + 2 + size + 2;
        if (size == 0) {
            *to = '\0';
            return (size_t)(from - body);
        }
        memmove(to, line + 2, size);
        to += size;
    }
    return 0;
}

static void requests(struct connection *one)
{
    while (!one->closed && !one->streams && one->in.size) {
        char *end = strstr(one->in.data, "\r\n\r\n");
        if (end == NULL)
            return;
        *end = '\0';
        const char *length = strcasestr(one->in.data, "\r\ncontent-length:");
        int chunked = strcasestr(one->in.data, "\r\ntransfer-encoding: chunked") != NULL;
        *end = '\r';
        char *body = end + 4, *limit = one->in.data + one->in.size, after = '\0';
        size_t size = length ? (size_t)atol(length + 17) : 0;
        if ((size_t)(limit - body) < size)
            return;
        if (chunked) { /* a whole one only: clients here send theirs at once */
            if (memmem(body, (size_t)(limit - body), "\r\n0\r\n\r\n", 7) == NULL)
                return;
            size = unchunk(body, limit);
        } else {
            after = body[size];
            body[size] = '\0';
        }
        const char *path = strchr(one->in.data, ' ');
        if (path == NULL) { /* another protocol */
            lose(one);
            return;
        }
        int is_post = strncmp(one->in.data, "POST", 4) == 0;
        if (is_post && strstr(path, "/completions") != NULL)
            post(one, body);
        else
            get(one, path + 1);
        if (!chunked)
            body[size] = after;
        drop(&one->in, (size_t)(body + size - one->in.data));
    }
}

static void readable(struct connection *one)
{
    char block[65536];
    ssize_t count;
    while ((count = read(one->fd, block, sizeof block)) > 0)
        append(&one->in, block, (size_t)count);
    if (count == 0 || errno != EAGAIN) {
        lose(one);
        return;
    }
    requests(one);
    flush(one);
}

static void turn(void)
{
    int64_t now = now_ns(), until = now / 1000000;
    while (turned_ms < until) {
        struct connection *one = wheel[++turned_ms % SLOTS], *next;
        wheel[turned_ms % SLOTS] = NULL;
        for (; one != NULL; one = next) {
            next = one->next;
            one->queued = 0;
            if (one->closed) {
                one->next = dead;
                dead = one;
            } else if (one->due_ns > now) { /* a whole turn later */
                schedule(one);
            } else {
                do
                    next_event(one);
                while (interval_ns == 0 && one->streams);
                if (one->streams) {
                    one->due_ns += interval_ns;
                    schedule(one);
                } else {
                    requests(one);
                }
                flush(one);
            }
        }
    }
}

static void bury(void)
{
    while (dead != NULL) {
        struct connection *one = dead;
        dead = one->next;
        free(one->in.data);
        free(one->out.data);
        free(one);
    }
}

static void welcome(int listener)
{
    int fd;
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        struct connection *one = calloc(1, sizeof *one);
        one->fd = fd;
        prepare_socket(fd);
        watch(loop, fd, EPOLLIN, one, EPOLL_CTL_ADD);
    }
}

int main(int count, char **given)
{
    if (count != 5 && count != 6) {
        fprintf(stderr, "usage: upstream PORT EVENTS_PER_S FIRST_EVENT_MS MODEL [PADDING_BYTES]\n");
        return 2;
    }
    struct epoll_event events[512];
    struct sockaddr_in address = loopback(atoi(given[1]));
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    signal(SIGPIPE, SIG_IGN);
    set_pace(atof(given[2]));
    first_ns = (int64_t)(atof(given[3]) * 1e6);
    own_model = given[4];
    padding = count == 6 ? atoi(given[5]) : 0;
    if (padding > PADDING_MAX_BYTES)
        padding = PADDING_MAX_BYTES;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 8192) < 0)
        fatal("listen");
    fcntl(listener, F_SETFL, O_NONBLOCK);
    loop = epoll_create1(0);
    watch(loop, listener, EPOLLIN, NULL, EPOLL_CTL_ADD);
    turned_ms = now_ns() / 1000000;
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        int ready = epoll_wait(loop, events, 512, 1);
        for (int i = 0; i < ready; i++) {
            struct connection *owner = events[i].data.ptr;
            if (owner == NULL)
                welcome(listener);
            else if (!owner->closed && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                readable(owner);
            else if (!owner->closed)
                flush(owner);
        }
        turn();
        bury();
    }
}
